"""How prompts start. LayerNorm blows up any small vector, so a random prompt is a full-size random token.

Cosine between the CLS feature with and without ten prompts in all layers of a small ViT, before training: uniform 0.17,
tokens of real pictures 0.91, tokens of a blank picture 0.98. So the start decides how far few rounds get. But of ten
tokens of a blank picture hardly two are different, and alike tokens learn alike (results/tuning.md).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.weights import Backbone

PromptStart = Literal["uniform", "blank", "tokens"]


def initial_prompt(
    backbone: Backbone, start: PromptStart, layers: int, length: int, generator: torch.Generator
) -> Tensor:
    """Fresh prompts (layers, length, width) for the first ``layers`` layers; no client's data is needed.

    - ``uniform``: as in VPT, within +-sqrt(6 / (3 patch^2 + width));
    - ``blank``: the tokens that the backbone itself makes, layer by layer, of an even grey picture;
    - ``tokens``: the same of two public photographs (those that scikit-learn ships).
    """
    shape = backbone.vit.shape
    if start == "uniform":
        bound = math.sqrt(6 / (3 * shape.patch**2 + shape.width))
        return (torch.rand(layers, length, shape.width, generator=generator) * 2 - 1) * bound
    pictures = torch.full((1, 3, shape.image, shape.image), 128, dtype=torch.uint8)
    if start == "tokens":
        pictures = _public_photographs(shape.image)
    with torch.no_grad():
        images = backbone.normalise(pictures.to(backbone.vit.pos_embed.device))
        tokens = backbone.vit.layer_inputs(images, layers)[:, :, 1:].float().cpu()  # (pictures, layers, patches, width)
    tokens = tokens.transpose(0, 1).flatten(1, 2)  # (layers, pictures * patches, width)
    chosen = torch.linspace(0, tokens.shape[1] - 1, length).round().long()
    return tokens[:, chosen].clone()


def _public_photographs(side: int) -> Tensor:
    photographs = [torch.from_numpy(np.array(image)) for image in load_sample_images().images]  # (rows, columns, 3)
    resized = [
        F.interpolate(p.permute(2, 0, 1).unsqueeze(0), size=(side, side), mode="bicubic", antialias=True)
        for p in photographs
    ]
    return torch.cat(resized)
