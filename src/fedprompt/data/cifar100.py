"""CIFAR-100 from the official python pickles (Krizhevsky, 2009): 100 classes, no domains."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedprompt.data.dataset import ArraySplit, Dataset
from fedprompt.data.root import find_root
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError

_REMEDY = "run `fedprompt data get cifar100`, or set data.root to the folder that holds its train, test and meta"

# What the official files need, and nothing else: a pickle may otherwise run any code.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-100 file needs")
        return super().find_class(module, name)


def open_cifar100(settings: DataSettings) -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test images of 32 px, one domain."""
    root = find_root(settings, "cifar-100-python", _REMEDY)
    splits = {}
    for split in ("train", "test"):
        images, labels, names = read_split(root, split)
        splits[split] = ArraySplit(images, labels.numpy(), np.zeros(len(labels)))
    return Dataset("cifar100", tuple(names), ("all",), splits["train"], splits["test"])


def read_split(folder: Path, split: str) -> tuple[Tensor, Tensor, list[str]]:
    """Images (n, 3, 32, 32) as uint8, fine labels (n,) and class names of ``folder/train`` or ``folder/test``."""
    data, labels = _read(folder / split, b"data", b"fine_labels")
    (raw_names,) = _read(folder / "meta", b"fine_label_names")
    names = [name.decode() for name in raw_names]
    if getattr(data, "dtype", None) != np.uint8 or data.shape != (len(labels), 3 * 32 * 32):
        raise UserError(f"The file {folder / split} does not hold one row of 3,072 bytes for each label; {_REMEDY}.")
    if len(labels) and not 0 <= min(labels) <= max(labels) < len(names):
        raise UserError(f"The file {folder / split} has labels outside 0 to {len(names) - 1}; {_REMEDY}.")
    # A copy, because torch will not share memory that a pickle made read-only.
    images = torch.from_numpy(np.array(data).reshape(-1, 3, 32, 32))
    return images, torch.tensor(labels, dtype=torch.int64), names


def _read(path: Path, *keys: bytes) -> list[Any]:
    """The values of ``keys`` in a CIFAR-100 pickle."""
    try:
        with path.open("rb") as file:
            content = _RestrictedUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise UserError(f"CIFAR-100's file {path.name!r} is missing in {path.parent}; {_REMEDY}.") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise UserError(f"The file {path} is not a CIFAR-100 pickle ({error}); {_REMEDY}.") from error
    if not isinstance(content, dict) or any(key not in content for key in keys):
        wanted = " and ".join(key.decode() for key in keys)
        raise UserError(f"The file {path} lacks {wanted}, so it is not CIFAR-100 (is it CIFAR-10?); {_REMEDY}.")
    return [content[key] for key in keys]
