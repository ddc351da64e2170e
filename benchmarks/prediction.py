"""Figure 3: prediction with V = 5 draws, and with as many as each image needs, against textbook code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from models import CLASSES, Case, backbone, images
from textbook import TextbookPFedBayesPT
from timing import ratios, take_turns

from fedprompt.backbone.cache import ClientData
from fedprompt.federation.simulation import Simulation
from fedprompt.methods.base import Method, Task, Tensors
from fedprompt.methods.pfedbayespt import PFedBayesPT
from fedprompt.randomness import torch_generator
from fedprompt.runs import Run

SAMPLES = 5  # the paper's V


@torch.no_grad()
def predict(method: Method, params: Tensors, data: ClientData, batch: int) -> torch.Tensor:
    """Class probabilities (draws, images, classes) of all images; features are computed anew, as for new images."""
    generator = torch_generator(0, "predict")
    chunks = [
        method.predict(params, data.batch(index, method.needs), generator)
        for index in torch.arange(len(data)).split(batch)
    ]
    return torch.cat(chunks, dim=1)


def all_draws(case: Case) -> dict[str, Any]:
    """V = 5 for every image: textbook against ours, with features known (a test set in a run) and not (new images)."""
    settings = PFedBayesPT.Settings(samples=SAMPLES)
    formats = (torch.float32, torch.bfloat16)
    models = {dtype: backbone(case.shape, dtype) for dtype in formats}
    methods = {dtype: PFedBayesPT(settings, Task(models[dtype], CLASSES, 1)) for dtype in formats}
    textbook = TextbookPFedBayesPT(settings, Task(models[torch.float32], CLASSES, 1))
    state = textbook.initial(0)
    params = {**state.shared, **state.personal}
    params["head.weight"] = torch.randn(params["head.weight"].shape, generator=torch.Generator().manual_seed(1))
    known = {dtype: images(models[dtype], case.images // 2) for dtype in formats}
    new = {
        dtype: ClientData(models[dtype], lambda d=dtype: known[d].pixels, known[dtype].labels, keep=False)
        for dtype in formats
    }
    found: dict[str, torch.Tensor] = {}

    def run(name: str, method: Method, data: ClientData) -> None:
        found[name] = predict(method, params, data, case.batch).mean(0)

    candidates = {"textbook fp32": (textbook, known[torch.float32])}
    for dtype, label in zip(formats, ("fp32", "bf16"), strict=True):
        candidates[f"fedprompt {label}, new images"] = (methods[dtype], new[dtype])
        candidates[f"fedprompt {label}, features kept"] = (methods[dtype], known[dtype])
    turns = {name: (lambda name=name, pair=pair: run(name, *pair)) for name, pair in candidates.items()}
    figures = ratios(take_turns(turns, 3), "textbook fp32")
    for name, own in figures.items():
        own["difference"] = float((found[name] - found["textbook fp32"]).abs().max())
    return {"case": case.name, "images": case.images // 2, "batch": case.batch, "candidates": figures}


def as_many_as_needed(folder: Path, tolerances: tuple[float, ...], repeats: int, timed: int) -> dict[str, Any]:
    """On a trained run: draws used, accuracy and agreement with V = 5 over tolerances, and times against textbook.

    Accuracy and agreement are over all test images; ``timed`` of each client's serve for the times.
    """
    done = Run(folder)
    ours = _clients(done, done.config.backbone.precision)
    plain = _clients(done, "fp32")  # the textbook's
    labels = torch.cat([data.labels for _, _, data in ours])

    def whole(clients: list[_Client], kind: type[Method], **changes: Any) -> torch.Tensor:
        chunks = []
        for method, params, data in clients:
            own = kind(method.settings.model_copy(update={"samples": SAMPLES, **changes}), method.task)
            chunks.append(predict(own, params, data, done.config.evaluation.batch))
        return torch.cat(chunks, dim=1)

    settings = {"fedprompt V=5": {}} | {f"stop_early={one:g}": {"stop_early": one} for one in tolerances}
    few, plain_few = ([_first(client, timed) for client in clients] for clients in (ours, plain))
    turns = {"textbook V=5": lambda: whole(plain_few, TextbookPFedBayesPT)}
    for name, changes in settings.items():
        turns[name] = lambda changes=changes: whole(few, PFedBayesPT, **changes)
    figures = ratios(take_turns(turns, repeats), "textbook V=5")
    drawn = {name: whole(ours, PFedBayesPT, **changes) for name, changes in settings.items()}
    reference = drawn["fedprompt V=5"].mean(0).argmax(-1)
    for name, own in drawn.items():
        predicted = own.nanmean(0).argmax(-1)
        figures[name]["accuracy"] = float((predicted == labels).double().mean())
        figures[name]["agreement"] = float((predicted == reference).double().mean())
        figures[name]["draws"] = float((~own[..., 0].isnan()).sum(0).double().mean())
    return {"run": f"{done.config.name}, {ours[0][0].vit.shape.image} px", "images": len(labels), "candidates": figures}


_Client = tuple[Method, Tensors, ClientData]


def _clients(done: Run, precision: str) -> list[_Client]:
    """Method, trained tensors and test images of each client, on a backbone of this number format."""
    backbone = done.config.backbone.model_copy(update={"precision": precision})
    simulation = Simulation(done.config.model_copy(update={"backbone": backbone}))
    state, method = done.state(), simulation.method
    groups = simulation.groups(state)
    return [
        (method, {**method.payload(groups, one), **simulation.personal(state, one)}, simulation.held_data[one])
        for one in simulation.members
    ]


def _first(client: _Client, count: int) -> _Client:
    method, params, data = client
    return method, params, ClientData(method.task.backbone, lambda: data.pixels[:count], data.labels[:count])
