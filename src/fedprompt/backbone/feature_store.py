"""Frozen features on disk: memory-mapped, found again by later runs and other processes, checked when read.

An entry is a folder named by a digest of all that decides its content: the backbone's checksum, the images' own bytes,
how they are normalised, what is read of the backbone, and the number format::

    <digest>/about.json     what it holds, in full
    <digest>/<name>.npy     one row for each image
    <digest>/check.npy      a CRC-32 of each image's rows

It is written under another name and renamed when whole. A row is checked when first read; an entry that is damaged, cut
short or says it is something else is thrown away and made anew. The files hold numbers only and are never unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Row = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # shape of one image's row, and its number format

# numpy has no bfloat16: its bits are kept as integers.
_STORED: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("<f4"),
    torch.bfloat16: np.dtype("<i2"),
    torch.float16: np.dtype("<f2"),
}
_BEGUN = ".begun-"
_ABANDONED = 86_400  # seconds after which an entry that was never finished is thrown away


class DamagedError(Exception):
    """An entry does not hold what it should."""


def default_folder() -> Path:
    """Where features are kept: ``FEDPROMPT_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("FEDPROMPT_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen).expanduser() if chosen else Path(cache).expanduser() / "fedprompt" / "features"


def address(about: Mapping[str, Any]) -> str:
    """The name of the entry with this content."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


class Entry:
    """Features of a set of images, read row by row from the disk."""

    def __init__(self, folder: Path, about: Mapping[str, Any], row: Row, images: int) -> None:
        self.folder = folder
        self.row = row
        try:
            if json.loads((folder / "about.json").read_text("utf-8")) != about:
                raise DamagedError(f"{folder} says it is something else")
            self.check = np.load(folder / "check.npy", allow_pickle=False)
            self.arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in row}
        except (OSError, ValueError, EOFError) as error:
            raise DamagedError(f"{folder} cannot be read: {error}") from None
        if self.check.shape != (images,) or self.check.dtype != np.uint32:
            raise DamagedError(f"{folder} holds other images")
        for name, (shape, dtype) in row.items():
            if self.arrays[name].shape != (images, *shape) or self.arrays[name].dtype != _STORED[dtype]:
                raise DamagedError(f"{folder} holds {name} of another shape")
        self.checked = np.zeros(images, dtype=bool)
        with suppress(OSError):
            os.utime(folder)  # it was used: the oldest are removed first

    def rows(self, index: Tensor) -> dict[str, Tensor]:
        """The rows at these places; each is compared with its checksum when first read, and damage ends the entry."""
        places = index.numpy()
        found = {name: array[places] for name, array in self.arrays.items()}
        for i in np.flatnonzero(~self.checked[places]):
            if _checksum([array[i] for array in found.values()]) != self.check[places[i]]:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise DamagedError(f"row {places[i]} does not match its checksum")
            self.checked[places[i]] = True
        return {name: torch.from_numpy(array).view(self.row[name][1]) for name, array in found.items()}


class FeatureStore:
    """A folder of entries that stays below a size; the entries that were not used for longest go first."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit  # bytes

    def get(self, about: Mapping[str, Any], row: Row, images: int) -> Entry:
        """The entry with this content; raises :class:`DamagedError` if it is not there or not whole."""
        return Entry(self.folder / address(about), about, row, images)

    def build(self, about: Mapping[str, Any], row: Row, images: int, chunks: Iterator[dict[str, Tensor]]) -> Entry:
        """Write an entry from its rows, in order; raises ``OSError`` where the disk or the limit does not allow it."""
        size = images * sum(int(np.prod(shape)) * _STORED[dtype].itemsize for shape, dtype in row.values())
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / address(about)
        shutil.rmtree(target, ignore_errors=True)  # damaged, or it would have been used
        self._make_room(size)
        begun = Path(tempfile.mkdtemp(prefix=_BEGUN, dir=self.folder))
        try:
            _write(begun, about, row, images, chunks)
            with suppress(OSError):  # another process may have been faster; its entry is the same
                begun.rename(target)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
        return self.get(about, row, images)

    def _make_room(self, size: int) -> None:
        """Remove what was not used for longest; a process that is reading it keeps its view."""
        if size > min(self.limit, shutil.disk_usage(self.folder).free * 0.9):
            raise OSError("no room for the features of these images")
        entries = sorted((entry.stat().st_mtime, entry) for entry in self.folder.iterdir() if entry.is_dir())
        sizes = [sum(file.stat().st_size for file in entry.iterdir()) for _, entry in entries]
        total = sum(sizes)
        for (used, entry), freed in zip(entries, sizes, strict=True):
            begun = entry.name.startswith(_BEGUN)
            if total + size <= self.limit and not begun:
                break
            if not begun or time.time() - used > _ABANDONED:
                shutil.rmtree(entry, ignore_errors=True)
                total -= freed


def _write(folder: Path, about: Mapping[str, Any], row: Row, images: int, chunks: Iterator[dict[str, Tensor]]) -> None:
    arrays = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=_STORED[dtype], shape=(images, *shape))
        for name, (shape, dtype) in row.items()
    }
    check = np.zeros(images, dtype=np.uint32)
    place = 0
    for chunk in chunks:
        plain = {name: _as_numpy(chunk[name]) for name in arrays}
        count = len(next(iter(plain.values())))
        for name, array in arrays.items():
            array[place : place + count] = plain[name]
        for i in range(count):
            check[place + i] = _checksum([plain[name][i] for name in arrays])
        place += count
    for array in arrays.values():
        array.flush()
    np.save(folder / "check.npy", check)
    (folder / "about.json").write_text(json.dumps(dict(about)), "utf-8")


def _as_numpy(tensor: Tensor) -> NDArray[Any]:
    stored = tensor.cpu().contiguous()
    return (stored.view(torch.int16) if stored.dtype == torch.bfloat16 else stored).numpy()


def _checksum(parts: list[NDArray[Any]]) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(np.ascontiguousarray(part).data, value)
    return value
