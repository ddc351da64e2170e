"""What every data set looks like to the rest: two splits with labels and domains, and pixels on request."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from fedprompt.errors import UserError
from fedprompt.progress import track

T = TypeVar("T")
Indices = NDArray[np.int64]
_SLOW = 200  # images; a smaller request is over before a bar would be of use
_NAMED = 10  # unreadable files that an error names; the rest are counted


class Split(ABC):
    """One half of a data set: a label and a domain for every image, and its pixels when asked."""

    labels: Indices  # (n,)
    domains: Indices  # (n,)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def images(self, index: Indices, side: int) -> Tensor:
        """The images at ``index`` as RGB, uint8 (n, 3, side, side), resized (bicubic, antialiased) where needed."""

    @abstractmethod
    def take(self, index: Indices) -> Split:
        """A split of the images at ``index`` alone, in that order."""


class ArraySplit(Split):
    """A split whose images lie in memory.

    >>> split = ArraySplit(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), np.arange(5), np.zeros(5, dtype=np.int64))
    >>> split.images(np.array([3, 1]), side=16).shape
    torch.Size([2, 3, 16, 16])
    """

    def __init__(self, pixels: Tensor, labels: NDArray[Any], domains: NDArray[Any]) -> None:
        _check_lengths(len(pixels), labels, domains)
        self.pixels = pixels  # (n, 3, height, width) uint8
        self.labels = labels.astype(np.int64)
        self.domains = domains.astype(np.int64)

    def images(self, index: Indices, side: int) -> Tensor:
        chosen = self.pixels[torch.from_numpy(np.asarray(index, dtype=np.int64))]
        if chosen.shape[-2:] == (side, side) or len(chosen) == 0:
            return chosen.reshape(len(chosen), 3, side, side)
        # On uint8 this is Pillow's filter, for the whole batch at once.
        return F.interpolate(chosen, size=(side, side), mode="bicubic", antialias=True)

    def take(self, index: Indices) -> ArraySplit:
        return ArraySplit(self.pixels[torch.from_numpy(index)], self.labels[index], self.domains[index])


class FileSplit(Split):
    """A split whose images are files, decoded when asked for."""

    def __init__(self, paths: Sequence[Path], labels: NDArray[Any], domains: NDArray[Any]) -> None:
        _check_lengths(len(paths), labels, domains)
        self.paths = tuple(paths)
        self.labels = labels.astype(np.int64)
        self.domains = domains.astype(np.int64)

    def images(self, index: Indices, side: int) -> Tensor:
        out = torch.zeros(len(index), 3, side, side, dtype=torch.uint8)
        paths = [self.paths[i] for i in index]
        bad: list[str] = []
        for row, result in enumerate(in_threads(lambda path: _decode_or_reason(path, side), paths, "Reading images")):
            if isinstance(result, str):
                bad.append(f"{paths[row]} ({result})")
            else:
                out[row] = torch.from_numpy(result).permute(2, 0, 1)
        if bad:
            raise UserError(
                f'{count_and_name(bad)}; mend or remove them, or set data.unreadable = "skip" to leave such files out.'
            )
        return out

    def take(self, index: Indices) -> FileSplit:
        return FileSplit([self.paths[i] for i in index], self.labels[index], self.domains[index])


@dataclass(frozen=True)
class Dataset:
    """A data set: its classes, its domains, and the two splits."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    train: Split
    test: Split
    unreadable: tuple[str, ...] = ()  # files left out because they could not be decoded


def decode(path: Path, side: int | None = None) -> NDArray[np.uint8]:
    """One image file as RGB (height, width, 3), turned as its camera said, resized to a square if ``side`` is given."""
    with Image.open(path) as file:
        image = _eight_bit(ImageOps.exif_transpose(file), file.format).convert("RGB")
    if side is not None and image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BICUBIC)
    return np.array(image)  # a copy: Pillow's own memory is read-only, which torch does not like


def _eight_bit(image: Image.Image, file_format: str | None) -> Image.Image:
    """Scale 16-bit pixels: Pillow's own conversion clips at 255, which turns a 16-bit X-ray into a white square."""
    if image.mode.startswith("I;16") or (image.mode == "I" and file_format == "PNG"):  # as older Pillows call it
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its 32-bit pixels have no agreed scale: save it with 8 or 16 bits")
    return image


def why_unreadable(path: Path) -> str | None:
    """Why the file at ``path`` is not an image that can be decoded in full, or None if it is."""
    result = _decode_or_reason(path, None)
    return result if isinstance(result, str) else None


def count_and_name(bad: Sequence[str]) -> str:
    """A clause that counts the unreadable files and names the first of them.

    >>> count_and_name(["a.png (truncated)"])
    '1 image file cannot be read: a.png (truncated)'
    """
    noun = "image file" if len(bad) == 1 else "image files"
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return f"{len(bad)} {noun} cannot be read: {', '.join(bad[:_NAMED])}{more}"


def in_threads(function: Callable[[Path], T], paths: Sequence[Path], title: str) -> Iterator[T]:
    """``function`` of every path, in order, on all cores (Pillow lets go of the interpreter while it decodes)."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(function, paths)
        yield from track(results, title, len(paths)) if len(paths) > _SLOW else results


def _decode_or_reason(path: Path, side: int | None) -> NDArray[np.uint8] | str:
    try:
        return decode(path, side)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on a broken file
        reason = str(error).replace(str(path), "").replace("''", "the file").strip()
        return reason or type(error).__name__


def _check_lengths(images: int, labels: NDArray[Any], domains: NDArray[Any]) -> None:
    if not images == len(labels) == len(domains):
        raise ValueError(f"{images} images, {len(labels)} labels and {len(domains)} domains do not go together")
