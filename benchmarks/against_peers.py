"""Figure 5, the peers: the same work under Flower's simulation engine and under pfl-research, in turns with ours."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from engine import simulation, synthetic_cifar
from safetensors.torch import save_file

from fedprompt.backbone.cache import Needs

HERE = Path(__file__).parent
PEERS = {"Flower simulation": "flower_peer.py", "pfl-research": "pfl_peer.py"}


def export_work(folder: Path, clients: int, images: int) -> Path:
    """Write the clients' pixels, CLS features and labels where the peers' own environment can read them."""
    root = synthetic_cifar(folder, clients * images)
    federation = simulation(root, clients, "head-tune")
    data = federation.train_data
    batches = [one.batch(torch.arange(len(one)), Needs(cls=True, embedded=False)) for one in data]
    tensors = {
        "cls": torch.cat([batch.cls for batch in batches if batch.cls is not None]),
        "pixels": torch.cat([one.pixels for one in data]),
        "labels": torch.cat([batch.labels for batch in batches]),
    }
    save_file(tensors, folder / "work.safetensors")
    about = {"clients": clients, "classes": len(federation.dataset.classes), "sizes": [len(one) for one in data]}
    (folder / "work.json").write_text(json.dumps(about))
    return root


def ours(root: Path, clients: int, method: str, rounds: int) -> list[float]:
    """Seconds of each of our rounds, the first left out as with the peers."""
    federation = simulation(root, clients, method, **{f"methods.{method}.head": "global"})
    state, seconds = federation.start(), []
    for _ in range(rounds):
        began = time.perf_counter()
        state, _ = federation.round(state)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def theirs(python: Path, script: str, folder: Path, kind: str, rounds: int) -> list[float]:
    """Seconds of each of a peer's rounds, the first left out: it starts workers and reads data."""
    command = [str(python), str(HERE / "peers" / script), str(folder), kind, str(rounds), str(os.cpu_count())]
    environment = os.environ | {"PYTHONPATH": str(HERE / "peers")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600, env=environment)
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stderr[-3000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    seconds, losses = told["seconds"], told["losses"]
    if len(seconds) != rounds or len(losses) != rounds or not all(map(math.isfinite, losses)):
        raise RuntimeError(f"{script} did not do the work: {told}\n{done.stderr[-3000:]}")
    return list(seconds[1:])


def compare(
    python: Path, folder: Path, clients: int, images: int, method: str, rounds: int, turns: int = 3
) -> dict[str, Any]:
    """How many times as long as ours a peer's round takes: median over turns, and the range."""
    root = export_work(folder, clients, images)
    own: list[float] = []
    peers: dict[str, list[float]] = {name: [] for name in PEERS}
    for _ in range(turns):
        own.append(statistics.median(ours(root, clients, method, rounds)))
        for name, script in PEERS.items():
            peers[name].append(statistics.median(theirs(python, script, folder, method, rounds)))
    found: dict[str, Any] = {"method": method, "clients": clients, "images": images, "seconds": statistics.median(own)}
    found["peers"] = {}
    for name, seconds in peers.items():
        each = sorted(their / mine for their, mine in zip(seconds, own, strict=True))
        found["peers"][name] = {
            "seconds": statistics.median(seconds),
            "ratio": statistics.median(each),
            "lowest": each[0],
            "highest": each[-1],
        }
    return found
