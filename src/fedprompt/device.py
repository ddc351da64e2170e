"""Where to compute."""

from __future__ import annotations

import torch

from fedprompt.errors import UserError


def pick_device(wanted: str) -> str:
    """``auto`` takes CUDA, then Apple's MPS, then the CPU; any other name must be there.

    >>> pick_device("cpu")
    'cpu'
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return next(name for name, available in there.items() if available)
    if not there.get(wanted, False):
        raise UserError(f"The device {wanted!r} is not available here; use device = 'auto' or 'cpu'.")
    return wanted
