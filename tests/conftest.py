"""What tests share: a tiny random ViT, a small preset, and the real files where they are there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.backbone.weights import Backbone

REPOSITORY = Path(__file__).resolve().parent.parent

# A run of seconds: six clients with two styles each, two dozen images a client.
SMALL = {
    "training.rounds": 3,
    "training.batch": 16,
    "data.train_per_domain": 24,
    "data.test_per_domain": 12,
    "partition.domains_per_client": 2,
}


@pytest.fixture(scope="session", autouse=True)
def _threads():
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def tiny_backbone() -> Backbone:
    """A random ViT with two layers on 16 px images."""
    torch.manual_seed(0)
    vit = VisionTransformer(Shape(width=24, depth=2, heads=2, patch=4, image=16))
    for parameter in vit.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return Backbone(vit.freeze(), (0.5,) * 3, (0.5,) * 3, "tiny", "0" * 64)
