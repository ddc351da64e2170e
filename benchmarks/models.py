"""ViTs of the usual shapes with random weights, and images without meaning: speed does not look at them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.backbone.weights import Backbone

CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A backbone's shape and how much work one measurement is."""

    name: str
    shape: Shape
    images: int
    batch: int
    repeats: int


CASES = (
    Case("ViT-Ti/16, 112 px", Shape(192, 12, 3, 16, 112), images=128, batch=32, repeats=7),
    Case("ViT-Ti/16, 224 px", Shape(192, 12, 3, 16, 224), images=64, batch=32, repeats=5),
    Case("ViT-B/16, 224 px", Shape(768, 12, 12, 16, 224), images=16, batch=16, repeats=5),
)


def backbone(shape: Shape, dtype: torch.dtype = torch.float32) -> Backbone:
    """A frozen ViT with the same random weights at each call, cast to ``dtype``."""
    torch.manual_seed(0)
    vit = VisionTransformer(shape)
    for parameter in vit.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return Backbone(vit.to(dtype).freeze(), (0.5,) * 3, (0.5,) * 3, "random", "0" * 64)


def images(backbone: Backbone, count: int, seed: int = 0) -> ClientData:
    """A client with random pictures, its frozen features kept in memory."""
    generator = torch.Generator().manual_seed(seed)
    side = backbone.vit.shape.image
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator).to(torch.uint8)
    return ClientData(backbone, lambda: pixels, torch.arange(count) % CLASSES)
