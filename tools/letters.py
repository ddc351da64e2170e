"""Printed letters in random colours on parts of photographs: the second half of the mini ViT's pre-training.

The 26 letters of the alphabet, capital and small, no digit, in the fonts that matplotlib ships. Photographs alone
teach a small ViT to look past strokes; letters teach it that strokes matter, as the labels and signs in a large web
collection would.
"""

from __future__ import annotations

import math
import string
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

LETTERS = string.ascii_letters  # capital and small count as one class: scaled, many look alike
CLASSES = 26
_SIDE = 48  # of the drawn masks; shifted, turned and scaled down to 32 px afterwards


def draw_masks() -> tuple[Tensor, Tensor]:
    """Every letter in every font, as (n, 1, 48, 48) in [0, 1], and its class."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = sorted(
        path for path in folder.glob("*.ttf") if path.stem.startswith(("DejaVuSans", "DejaVuSerif", "STIXG"))
    )
    masks, classes = [], []
    for file in files:
        if "Display" in file.stem:
            continue
        font = ImageFont.truetype(str(file), 38)
        for number, letter in enumerate(LETTERS):
            picture = Image.new("L", (_SIDE, _SIDE))
            ImageDraw.Draw(picture).text((_SIDE / 2, _SIDE / 2), letter, fill=255, font=font, anchor="mm")
            masks.append(np.array(picture, dtype=np.float32) / 255)
            classes.append(number % CLASSES)
    return torch.from_numpy(np.stack(masks)).unsqueeze(1), torch.tensor(classes)


def uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


def letter_images(
    masks: Tensor, photographs: Tensor, index: Tensor, hardness: float, generator: torch.Generator
) -> Tensor:
    """Letters ``masks[index]`` over photographs (n, 3, 32, 32) with values in 0..255: (n, 3, 32, 32).

    ``hardness`` 0 gives plain upright letters on an even ground, 1 the full range of shapes, colours and noise: from
    the hard ones alone a small ViT learns nothing for a long time.
    """
    batch = len(index)
    shape = _strokes(_turned(masks[index], hardness, generator), hardness, generator)  # (n, 1, 32, 32)
    flat = uniform((batch, 3, 1, 1), 0, 255, generator).expand(-1, -1, 32, 32)
    blurred = F.avg_pool2d(F.pad(photographs, (2, 2, 2, 2), mode="reflect"), 5, stride=1)
    ground = torch.where(_some(batch, 0.4 * hardness, generator), blurred, flat)
    ground = torch.where(_some(batch, 0.25 * hardness, generator), photographs, ground)
    # A colour far from the ground's mean brightness, or the letter could not be seen.
    brightness = ground.mean((1, 2, 3), keepdim=True)
    away = torch.where(brightness < 128, 1.0, -1.0)
    contrast = uniform((batch, 1, 1, 1), 120 - 60 * hardness, 160, generator)
    colour = brightness + away * contrast + hardness * uniform((batch, 3, 1, 1), -60, 60, generator)
    image = ground * (1 - shape) + colour * shape
    loudness = 60 * hardness * uniform((batch, 1, 1, 1), 0, 1, generator).square()
    return (image + loudness * torch.randn(image.shape, generator=generator)).clamp(0, 255)


def _some(batch: int, probability: float, generator: torch.Generator) -> Tensor:
    return torch.rand(batch, 1, 1, 1, generator=generator) < probability


def _turned(masks: Tensor, hardness: float, generator: torch.Generator) -> Tensor:
    """Each mask turned, sheared, scaled and shifted a little, at 32 px."""
    batch = len(masks)
    angle = hardness * uniform((batch,), -0.35, 0.35, generator)
    scale = 0.85 + hardness * uniform((batch, 2), -0.2, 0.25, generator)
    shear = hardness * uniform((batch,), -0.3, 0.3, generator)
    matrix = torch.zeros(batch, 2, 3)
    matrix[:, 0, 0], matrix[:, 0, 1] = angle.cos() * scale[:, 0], -angle.sin() + shear
    matrix[:, 1, 0], matrix[:, 1, 1] = angle.sin(), angle.cos() * scale[:, 1]
    matrix[:, :, 2] = hardness * uniform((batch, 2), -0.15, 0.15, generator)
    grid = F.affine_grid(matrix, [batch, 1, 32, 32], align_corners=False)
    return F.grid_sample(masks, grid, align_corners=False)


def _strokes(shape: Tensor, hardness: float, generator: torch.Generator) -> Tensor:
    """As they are, bolder, or as outlines; some dissolved into grains."""
    batch = len(shape)
    bold = F.max_pool2d(shape, 3, stride=1, padding=1)
    outline = (bold + F.max_pool2d(-shape, 3, stride=1, padding=1)).clamp(0, 1)
    drawn = torch.where(_some(batch, 0.4, generator), bold, shape)
    drawn = torch.where(_some(batch, 0.3 * hardness, generator), outline, drawn)
    grains = (torch.rand(drawn.shape, generator=generator) < 0.65).float()
    return torch.where(_some(batch, 0.15 * hardness, generator), drawn * grains, drawn)


def preview(path: Path) -> None:
    """Write a sheet of 64 letters, to look at."""
    generator = torch.Generator().manual_seed(0)
    masks, _ = draw_masks()
    photographs = torch.rand(64, 3, 32, 32, generator=generator) * 255
    images = letter_images(masks, photographs, torch.randint(0, len(masks), (64,), generator=generator), 1.0, generator)
    rows = int(math.sqrt(64))
    sheet = images.view(rows, rows, 3, 32, 32).permute(0, 3, 1, 4, 2).reshape(rows * 32, rows * 32, 3)
    Image.fromarray(sheet.to(torch.uint8).numpy()).resize((768, 768), Image.Resampling.NEAREST).save(path)
