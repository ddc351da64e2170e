"""Figure 5, our side: what a round costs beyond local training, and memory, over the number of clients."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
from timing import peak_mib

import fedprompt.federation.round as round_module
from fedprompt.config import load_config
from fedprompt.federation.simulation import Simulation


def synthetic_cifar(folder: Path, images: int, seed: int = 0) -> Path:
    """Random pictures in the layout of CIFAR-100, so that the product's own loader reads them."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for split, count in (("train", images), ("test", 10_000)):
        data = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = [int(i % 100) for i in range(count)]
        (root / split).write_bytes(pickle.dumps({b"data": data, b"fine_labels": labels}))
    names = [f"class {i}".encode() for i in range(100)]
    (root / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}))
    return root


def simulation(root: Path, clients: int, method: str, **changes: Any) -> Simulation:
    """A federation of so many clients over those pictures, all of whom train in each round."""
    settings = {
        "data.root": str(root),
        "backbone.weights": "mini",
        "backbone.precision": "fp32",
        "partition.kind": "iid",
        "partition.clients": clients,
        "training.epochs": 1,
        "training.batch": 32,
        "training.participation": 1.0,
        **changes,
    }
    return Simulation(load_config("cifar100", {"method": method, **settings}))


def overhead(root: Path, clients: int, method: str, images: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Wall time of a round over the time inside local training, and the seconds of both."""
    changes = {"data.train_per_domain": clients * images, "training.epochs": epochs}
    federation = simulation(root, clients, method, **changes)
    inside, original = [0.0], round_module.train

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            inside[0] += time.perf_counter() - began

    round_module.train = timed
    try:
        state, _ = federation.round(federation.start())  # reads images and computes features
        found = []
        for _ in range(rounds):
            inside[0] = 0.0
            began = time.perf_counter()
            state, _ = federation.round(state)
            found.append((time.perf_counter() - began, inside[0]))
    finally:
        round_module.train = original
    found.sort(key=lambda pair: pair[0] / pair[1])
    whole, local = found[len(found) // 2]
    return {
        "method": method,
        "clients": clients,
        "images": images,
        "epochs": epochs,
        "overhead": whole / local,
        "seconds": whole,
        "local_seconds": local,
        "peak_mib": peak_mib(),
    }
