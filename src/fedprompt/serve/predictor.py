"""Prediction with uncertainty: a client's own classifier out of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedprompt.backbone.cache import Batch, frozen_features
from fedprompt.errors import UserError
from fedprompt.methods.base import Method, Tensors
from fedprompt.randomness import torch_generator

Images = Sequence[Any] | np.ndarray[Any, Any] | Tensor


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of some images, and how much they move between the draws of the prompt."""

    classes: tuple[str, ...]
    probabilities: Tensor  # (images, classes), mean over draws
    spread: Tensor  # (images, classes), standard deviation over draws; zero for methods that draw nothing
    draws: Tensor  # (draws, images, classes)

    @property
    def labels(self) -> list[str]:
        """The most probable class of each image."""
        return [self.classes[int(i)] for i in self.probabilities.argmax(-1)]


class Predictor:
    """A client's classifier: the aggregated shared tensors with the client's own."""

    def __init__(self, method: Method, params: Tensors, classes: tuple[str, ...], seed: int) -> None:
        self.method = method
        self.params = params
        self.classes = classes
        self.seed = seed

    @torch.no_grad()
    def __call__(self, images: Images, batch: int = 64) -> Prediction:
        """Predict image files, Pillow images, or uint8 arrays (rows, columns, 3); tensors may be (3, rows, columns)."""
        side = self.method.vit.shape.image
        items = [images] if isinstance(images, str | Path | Image.Image) else list(images)
        if not items:
            raise UserError("There is no image to predict.")
        pixels = torch.stack([_pixels(item, side) for item in items])
        generator = torch_generator(self.seed, "predict")
        draws = torch.cat([self._predict(chunk, generator) for chunk in pixels.split(batch)], dim=1)
        spread = draws.std(0, unbiased=False)
        return Prediction(self.classes, draws.mean(0), spread, draws)

    def _predict(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        backbone, needs = self.method.task.backbone, self.method.needs
        frozen = frozen_features(backbone, pixels, needs)
        embedded = None
        if needs.embedded:
            embedded = backbone.vit.embed(backbone.normalise(pixels.to(self.method.device)))
        return self.method.predict(
            self.params, Batch(frozen.labels, embedded, frozen.cls, frozen.features), generator
        ).cpu()


def _pixels(item: Any, side: int) -> Tensor:
    """One image of any kind as uint8 (3, side, side)."""
    picture = _open(item)
    picture = ImageOps.exif_transpose(picture).convert("RGB")
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _open(item: Any) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, str | Path):
        try:
            picture = Image.open(item)
            picture.load()
        except FileNotFoundError:
            raise UserError(f"There is no image file {str(item)!r}.") from None
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            raise UserError(f"{str(item)!r} is not an image that can be read.") from None
        return picture
    array = item.numpy() if isinstance(item, Tensor) else np.asarray(item)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise UserError("An image array must be uint8 with rows, columns and, if coloured, three channels.")
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    return Image.fromarray(array)
