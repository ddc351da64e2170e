"""Randomness is addressed, not consumed.

Each generator is derived from a seed and an address such as ``("train", round, client)``. So a draw does not depend on
what was drawn before it: not on the order of clients, on how often one evaluates, on the engine, or on where a run
resumed. Draws are made on the CPU and then moved, so they do not depend on the device either.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

Address = str | int


def _key(seed: int, address: tuple[Address, ...]) -> int:
    text = repr((seed, *address)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def torch_generator(seed: int, *address: Address) -> torch.Generator:
    """A CPU generator that depends on the seed and the address alone.

    >>> draws = [torch.rand(1, generator=torch_generator(0, "train", 3, 7)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return torch.Generator().manual_seed(_key(seed, address) % 2**63)


def numpy_generator(seed: int, *address: Address) -> np.random.Generator:
    """As :func:`torch_generator`, for numpy."""
    return np.random.Generator(np.random.Philox(key=_key(seed, address)))
