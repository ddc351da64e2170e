"""One client's own test images with what its model makes of them: the surest and the least sure."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedprompt.data.partition import partition
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.methods import methods
from fedprompt.report.sorting import Entry
from fedprompt.runs import Run

LOOKED_AT = 300  # images at most that are predicted to find the surest
SHOWN = 4  # of each kind
CLASSES = 4  # the most probable ones of each image
SIDE = 112  # pixels
BINS = 10


@dataclass(frozen=True)
class Shown:
    """An image and its prediction."""

    png: bytes
    truth: str
    predicted: str
    domain: str
    classes: list[tuple[str, float, list[float], bool]]  # name, mean probability, draws, whether it is the right one


@dataclass(frozen=True)
class Gallery:
    """What one client's model makes of its own images."""

    title: str
    client: int
    images: int
    draws: int
    surest: list[Shown]
    least_sure: list[Shown]
    reliability: list[tuple[float, float, int]]  # mean confidence, share right, images; for each bin that has any


def choose(entries: Sequence[Entry]) -> Entry | None:
    """The run whose predictions are worth a look: of the methods that draw prompts if there is one, a finished one."""
    order = list(methods())
    able = [entry for entry in entries if (entry.run.folder / "checkpoint.safetensors").is_file()]
    return max(
        able,
        key=lambda entry: (entry.finished, entry.method == "pfedbayespt", order.index(entry.method), -entry.seed),
        default=None,
    )


def look(runs: Sequence[Run], client: int) -> Gallery | str:
    """A gallery out of the run that is worth it most, or a sentence that says why there is none."""
    entry = choose([Entry(run) for run in runs])
    if entry is None:
        return "No images are shown: no run has a checkpoint yet."
    clients = entry.run.about["clients"]
    if not 0 <= client < clients:  # the user's own mistake, not a gap of this machine
        raise UserError(f"There is no client {client}; clients are 0 to {clients - 1}.")
    try:
        return gallery(entry, client)
    except (UserError, OSError) as error:
        return f"No images are shown. {error}"


def gallery(entry: Entry, client: int) -> Gallery:
    """Predict one client's images with its own model; the data set and the weights of the run must be there."""
    config, run = entry.run.config, entry.run
    predictor = run.predictor(client)  # says what is wrong with the client's number, the weights or the checkpoint
    dataset = open_dataset(config.data)
    if list(dataset.classes) != list(run.about["classes"]):
        raise UserError(f"The data set {dataset.name} has other classes than those that {run.folder} was trained on.")
    part = partition(dataset, config.partition, config.seed, config.data.validation)[client]
    split, index = (dataset.test, part.test) if entry.split == "test" else (dataset.train, part.validation)
    chosen = index[np.unique(np.linspace(0, len(index) - 1, min(LOOKED_AT, len(index))).round().astype(int))]
    pixels = split.images(chosen, predictor.method.vit.shape.image)
    labels = torch.from_numpy(split.labels[chosen])
    prediction = predictor(pixels)
    confidence = prediction.probabilities.max(-1).values
    order = confidence.argsort(descending=True, stable=True).tolist()
    shown = {
        place: Shown(
            _png(pixels[place]),
            dataset.classes[int(labels[place])],
            prediction.labels[place],
            dataset.domains[int(split.domains[chosen[place]])] if len(dataset.domains) > 1 else "",
            _classes(prediction.draws[:, place], dataset.classes, int(labels[place])),
        )
        for place in {*order[:SHOWN], *order[-SHOWN:]}
    }
    first = order[: min(SHOWN, (len(order) + 1) // 2)]
    last = [place for place in order[::-1][:SHOWN] if place not in first]
    right = prediction.probabilities.argmax(-1) == labels
    return Gallery(
        f"{entry.title} on {entry.data_title}, {entry.column}, seed {entry.seed}",
        client,
        len(chosen),
        len(prediction.draws),
        [shown[place] for place in first],
        [shown[place] for place in last],
        bins(confidence, right),
    )


def bins(confidence: Tensor, right: Tensor) -> list[tuple[float, float, int]]:
    """Mean confidence, share of right answers and number of images, for each tenth of confidence that has any.

    >>> bins(torch.tensor([0.75, 0.75, 0.25]), torch.tensor([True, False, True]))
    [(0.25, 1.0, 1), (0.75, 0.5, 2)]
    """
    place = (confidence * BINS).long().clamp_max(BINS - 1)
    found = []
    for number in range(BINS):
        inside = place == number
        if inside.any():
            means = (confidence[inside].double().mean(), right[inside].double().mean())
            found.append((float(means[0]), float(means[1]), int(inside.sum())))
    return found


def data_address(png: bytes) -> str:
    """A picture as an address that holds it all."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _classes(draws: Tensor, names: Sequence[str], truth: int) -> list[tuple[str, float, list[float], bool]]:
    """The most probable classes, the right one among them, each with its probability in every draw."""
    mean = draws.mean(0)  # (classes,)
    best = mean.argsort(descending=True, stable=True)[:CLASSES].tolist()
    if truth not in best:
        best[-1] = truth
    return [(names[i], float(mean[i]), draws[:, i].tolist(), i == truth) for i in best]


def _png(pixels: Tensor) -> bytes:
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    if picture.width > SIDE:
        picture = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    picture.save(out, "png", optimize=True)
    return out.getvalue()
