"""Where to compute, and in which number format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from fedprompt.errors import UserError

Precision = Literal["auto", "fp32", "bf16"]
PAYS_FROM = 192  # width from which bf16 is faster where it is native


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


def pick_dtype(precision: Precision, device: str, width: int) -> torch.dtype:
    """The number format of a backbone of this width: ``fp32``, ``bf16``, or with ``auto`` the faster of both.

    That is bf16 where the device computes in it natively and the matrices are large enough for it to pay, see
    ``benchmarks``.

    >>> pick_dtype("fp32", "cpu", 768)
    torch.float32
    """
    if precision == "auto":
        precision = "bf16" if width >= PAYS_FROM and _native_bf16(device) else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


def _native_bf16(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    if device == "cpu":
        probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch before 2.6 lacks them
        return any(getattr(torch.cpu, probe, bool)() for probe in probes)
    return False


def free_memory() -> int:
    """Bytes of memory that are free to use."""
    try:
        text = Path("/proc/meminfo").read_text("ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):  # not Linux: half of what is there
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 4 * 2**30
