"""digits6: scikit-learn's handwritten digits drawn in six styles; ten classes, six domains, nothing to download.

The 1,797 digits (8 px) are cut into disjoint training and test digits, and each is drawn as a 32 px colour image in
every style. What an image looks like depends on the digit and the style alone, so the data set is the same everywhere.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedprompt.data.dataset import ArraySplit, Dataset, Indices
from fedprompt.data.digits6_styles import STYLES, Draws
from fedprompt.data.settings import DataSettings
from fedprompt.data.stratify import stratified_choice
from fedprompt.randomness import numpy_generator

SIDE = 32
TEST_DIGITS = 600
_SEED = 6  # part of the data set's definition: another value would be another data set
_UNIFORMS, _FIELDS = 20, 4  # how many random numbers and random 32 px fields a style may use for one image


def open_digits6(settings: DataSettings) -> Dataset:
    """The six-style digits, drawn in about two seconds the first time and kept in memory."""
    images, labels = _drawn()
    test = stratified_choice(labels, TEST_DIGITS, numpy_generator(_SEED, "digits6", "test"))
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Dataset(
        name="digits6",
        classes=tuple("0123456789"),
        domains=tuple(STYLES),
        train=_split(images, labels, train),
        test=_split(images, labels, test),
    )


@cache  # 33 MB, and the same for all settings
def _drawn() -> tuple[Tensor, Indices]:
    """Every digit in every style, uint8 (styles, digits, 3, 32, 32), and the digits' labels (digits,)."""
    pixels, labels = _digits()
    return torch.stack([_render(pixels, style) for style in STYLES]), labels


def _digits() -> tuple[Tensor, Indices]:
    """The 8 px digits in [0, 1] (n, 1, 8, 8) and their labels (n,)."""
    # Here, because scikit-learn takes a second to import and other data sets do not need it.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(digits.images).float()[:, None] / 16, digits.target.astype(np.int64)


def _split(images: Tensor, labels: Indices, digits: Indices) -> ArraySplit:
    """These digits in every style, one style after the other."""
    styles = len(images)
    pixels = images[:, torch.from_numpy(digits)].flatten(0, 1)
    return ArraySplit(pixels, np.tile(labels[digits], styles), np.repeat(np.arange(styles), len(digits)))


def _render(pixels: Tensor, style: str) -> Tensor:
    """All digits in one style, uint8 (n, 3, 32, 32)."""
    draws = _draws(style, len(pixels))
    image = STYLES[style](_strokes(pixels, draws.uniform), draws)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


def _draws(style: str, count: int) -> Draws:
    """The random numbers of every digit in this style, each from its own address."""
    uniform = np.empty((count, _UNIFORMS), dtype=np.float32)
    normal = np.empty((count, _FIELDS, SIDE, SIDE), dtype=np.float32)
    for digit in range(count):
        generator = numpy_generator(_SEED, "digits6", style, digit)
        generator.random(dtype=np.float32, out=uniform[digit])
        generator.standard_normal(dtype=np.float32, out=normal[digit])
    return Draws(torch.from_numpy(uniform), torch.from_numpy(normal))


def _strokes(pixels: Tensor, uniform: Tensor) -> Tensor:
    """Enlarge, turn, scale and shift each digit a little: coverage by the pen in [0, 1], (n, 1, 32, 32)."""
    smooth = F.interpolate(pixels, size=(48, 48), mode="bicubic")
    angle = (uniform[:, 0] - 0.5) * math.radians(40)
    scale = 32 / (23 + 5 * uniform[:, 1])  # the 8 px cell becomes 23 to 28 px wide
    shear = (uniform[:, 2] - 0.5) * 0.4
    shift = (uniform[:, 3:5] - 0.5) * 0.3
    cos, sin = angle.cos() * scale, angle.sin() * scale
    across = torch.stack([cos, shear * cos - sin, shift[:, 0]], 1)
    down = torch.stack([sin, shear * sin + cos, shift[:, 1]], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), [len(pixels), 1, SIDE, SIDE], align_corners=False)
    return F.grid_sample(smooth, grid, mode="bilinear", align_corners=False).clamp(0, 1)
