"""Prediction with uncertainty: a client's own classifier out of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fedprompt.backbone.cache import ClientData
from fedprompt.data.dataset import decode
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
    draws: Tensor  # (draws, images, classes); NaN for draws that were not needed, see ``stop_early``

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
        """Predict image files, Pillow images, or uint8 arrays and tensors (rows, columns, 3) or (3, rows, columns).

        A list of any of these, one alone, or an array of many; greyscale too.
        """
        side = self.method.vit.shape.image
        items = _items(images)
        if not items:
            raise UserError("There is no image to predict.")
        pixels = torch.stack([_pixels(item, side) for item in items])
        unknown = torch.zeros(len(pixels), dtype=torch.long)
        data = ClientData(self.method.task.backbone, lambda: pixels, unknown, keep=False)
        generator = torch_generator(self.seed, "predict")
        chunks = [
            self.method.predict(self.params, data.batch(index, self.method.needs), generator).cpu()
            for index in torch.arange(len(pixels)).split(batch)
        ]
        draws = torch.cat(chunks, dim=1)
        mean = draws.nanmean(0)
        spread = (draws - mean).square().nanmean(0).sqrt()
        return Prediction(self.classes, mean, spread, draws)


def _items(images: Images) -> list[Any]:
    """The images one by one: an array or tensor of four dimensions is many, one of fewer is a single image."""
    if isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray | Tensor) and images.ndim < 4):
        return [images]
    return list(images)


def _pixels(item: Any, side: int) -> Tensor:
    """One image of any kind as uint8 (3, side, side), by the same steps as the images a client trained on."""
    if isinstance(item, str | Path):
        return torch.from_numpy(_decode(Path(item), side)).permute(2, 0, 1)
    picture = item if isinstance(item, Image.Image) else _from_array(item)
    if picture.mode[0] in "IF":  # Pillow would clip 16-bit pixels at 255
        raise UserError("An image in memory must have 8 bits a channel; give one with more bits as a file.")
    picture = ImageOps.exif_transpose(picture).convert("RGB")
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _decode(path: Path, side: int) -> NDArray[np.uint8]:
    try:
        return decode(path, side)
    except FileNotFoundError:
        raise UserError(f"There is no image file {str(path)!r}.") from None
    except Exception:  # Pillow's decoders raise nearly anything on a broken file
        raise UserError(f"{str(path)!r} is not an image that can be read.") from None


def _from_array(item: Any) -> Image.Image:
    array = item.cpu().numpy() if isinstance(item, Tensor) else np.asarray(item)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or not array.size:
        raise UserError("An image array must be uint8 with rows, columns and, if coloured, three channels.")
    return Image.fromarray(np.ascontiguousarray(array))
