"""Figure 6: how time and memory grow with clients, images, prompt length, depth, V, J and S.

Each point runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from engine import simulation, synthetic_cifar
from matplotlib.figure import Figure
from timing import alone, peak_mib

KEY = "methods.pfedbayespt."
FEW = 2  # images of each client where clients grow
# What grows, and the settings of each point; a round is ten clients of 32 images unless said otherwise.
AXES: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "clients": [(n, {"clients": n, "images": FEW}) for n in (10, 100, 1000, 10_000)],
    "images per client": [(n, {"images": n}) for n in (32, 64, 128, 256)],
    "prompt length (K)": [(n, {KEY + "length": n}) for n in (1, 5, 10, 20, 50)],
    "instance depth": [(n, {KEY + "instance_depth": n}) for n in (1, 2, 4, 6)],
    "draws at test (V)": [(n, {KEY + "samples": n}) for n in (1, 2, 5, 10, 20)],
    "own draws (J)": [(n, {KEY + "draws": n}) for n in (1, 2, 4)],
    "extra draws (S)": [(n, {KEY + "extra_draws": n}) for n in (0, 1, 2, 4, 8)],
}
COHORT, IMAGES, STORED = 10, 32, 20_000


def one_point(root: Path, changes: dict[str, Any]) -> dict[str, float]:
    """Seconds of a round and of an evaluation of ten clients, and the peak of memory, in this process."""
    changes = dict(changes)
    clients = changes.pop("clients", COHORT)
    images = changes.pop("images", IMAGES)
    settings = {"training.participation": COHORT / clients, "data.train_per_domain": clients * images, **changes}
    federation = simulation(root, clients, "pfedbayespt", **settings)
    state, _ = federation.round(federation.start())
    began = time.perf_counter()
    state, _ = federation.round(state)
    trained = time.perf_counter() - began
    method, data = federation.method, federation.train_data[federation.cohort(1)[0]]
    params = {**method.payload(federation.groups(state), 0), **federation.fresh.personal}
    with torch.no_grad():
        batch = data.batch(torch.arange(min(32, len(data))), method.needs)
        generator = torch.Generator().manual_seed(0)
        method.predict(params, batch, generator)
        began = time.perf_counter()
        method.predict(params, batch, generator)
    personal = sum(value.nbytes for own in state.personal.values() for value in own.values())
    return {
        "round_seconds": trained,
        "images_trained": COHORT * images,
        "predict_seconds": time.perf_counter() - began,
        "images_predicted": len(batch),
        "peak_mib": peak_mib(),
        "personal_mib": personal / 2**20,
    }


def images_mib(clients: int) -> float:
    """What the images of so many clients take, 32 x 32 pixels as uint8, where clients grow."""
    return clients * FEW * 3 * 32 * 32 / 2**20


def grow() -> dict[str, list[dict[str, Any]]]:
    """All points, each in a process of its own."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = synthetic_cifar(Path(folder), STORED)
        for axis, points in AXES.items():
            found[axis] = []
            for value, changes in points:
                found[axis].append({"value": value, **alone(one_point, root, changes)})
    return found


def picture(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """A panel for each axis: milliseconds an image, and memory."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    panels = figure.subplots(2, 4).flatten()
    for axes, (name, points) in zip(panels, found.items(), strict=False):
        values = [point["value"] for point in points]
        time_key, count_key = ("predict_seconds", "images_predicted") if "V" in name else (
            "round_seconds", "images_trained")  # fmt: skip
        per_image = [1000 * point[time_key] / point[count_key] for point in points]
        axes.plot(values, per_image, marker="o", color="#2f6690")
        axes.set(title=name, ylim=(0, None), ylabel="ms an image")
        memory = axes.twinx()
        memory.plot(values, [point["peak_mib"] for point in points], marker=".", color="#d1603d", linestyle="--")
        memory.set(ylim=(0, None))
        memory.set_ylabel("peak MiB", color="#d1603d")
        if name == "clients":
            axes.set_xscale("log")
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    figure.suptitle("pFedBayesPT on the mini ViT: time (blue) and memory (orange)")
    return figure
