"""Does an image need its own prompt? Finished runs of pFedBayesPT, judged with prompts that were made for other images.

    python tools/own_prompts.py STORE --out results/own-prompts.json STUDY...

Every image of the evaluation split is classified four times, each time with the whole image's mean prompt (no mask, no
noise): its own, that of another image of its client, that of an image of another client, and the mean over the client's
training images. Runs are those of pFedBayesPT among the finished cells of the studies.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbone.cache import ClientData, Needs
from fedprompt.evaluation.metrics import accuracy, summary
from fedprompt.federation.checkpoint import FederationState, write_atomically
from fedprompt.federation.simulation import Simulation
from fedprompt.methods.base import Tensors
from fedprompt.methods.pfedbayespt import PFedBayesPT
from fedprompt.randomness import torch_generator
from fedprompt.studies.finding import finished


def by_prompt(simulation: Simulation, state: FederationState) -> dict[str, Any]:
    """With each kind of prompt Average, Worst Local and the share of images that get another class than with their own.

    ``apart`` is how far an image's prompt lies from its client's mean, as a share of its length.
    """
    method = simulation.method
    assert isinstance(method, PFedBayesPT)
    groups, batch = simulation.groups(state), simulation.config.evaluation.batch
    accuracies: dict[str, list[float]] = {}
    changed: dict[str, list[float]] = {}
    apart = []
    for place, client in enumerate(simulation.members):
        data = simulation.held_data[client]
        params = {**method.payload(groups, client), **simulation.personal(state, client)}
        own = _prompts(method, params, data, batch)
        mean = _prompts(method, params, simulation.train_data[client], batch).mean(0, keepdim=True)
        elsewhere = simulation.held_data[simulation.members[(place + 1) % len(simulation.members)]]
        generator = torch_generator(simulation.config.seed, "own prompts", client)
        given = {
            "own": own,
            "another": own[_another(len(own), generator)],
            "stranger": _prompts(method, params, elsewhere, batch)[
                torch.randint(len(elsewhere), (len(own),), generator=generator)
            ],
            "mean": mean.expand_as(own),
        }
        chances = {kind: _chances(method, params, data, prompts, batch) for kind, prompts in given.items()}
        for kind, found in chances.items():
            accuracies.setdefault(kind, []).append(accuracy(found, data.labels))
            changed.setdefault(kind, []).append(1 - accuracy(found, chances["own"].argmax(-1)))
        apart.append(float((own - own.mean(0)).square().mean().sqrt() / own.square().mean().sqrt()))
    return {
        "round": state.round,
        "prompts": {kind: {**summary(found), "changed": fmean(changed[kind])} for kind, found in accuracies.items()},
        "apart": fmean(apart),
    }


def _another(count: int, generator: torch.Generator) -> Tensor:
    """For each of so many images another one: the next along a random circle through all of them."""
    circle = torch.randperm(count, generator=generator)
    other = torch.empty_like(circle)
    other[circle] = circle.roll(1)
    return other


@torch.no_grad()
def _prompts(method: PFedBayesPT, params: Tensors, data: ClientData, batch: int) -> Tensor:
    """The mean prompt of each whole image (images, layers, length, width)."""
    return torch.cat(
        [method.posterior(params, data.batch(index, method.needs), None)[0][0].cpu() for index in _split(data, batch)]
    )


@torch.no_grad()
def _chances(method: PFedBayesPT, params: Tensors, data: ClientData, prompts: Tensor, batch: int) -> Tensor:
    """Class probabilities (images, classes) of images with the prompts given."""
    return torch.cat(
        [
            method.log_likelihoods(params, data.batch(index, Needs()), prompts[index].unsqueeze(0).to(method.device))[0]
            .exp()
            .cpu()
            for index in _split(data, batch)
        ]
    )


def _split(data: ClientData, batch: int) -> tuple[Tensor, ...]:
    return torch.arange(len(data)).split(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="folder of the studies, with checkpoints")
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; runs that are in it are not measured again")
    given = parser.parse_args()
    runs = [
        run
        for study in given.studies
        for run in finished(study, "cpu", out=given.store)
        if run.config.method == "pfedbayespt"
    ]
    known = json.loads(given.out.read_text("utf-8")) if given.out.is_file() else {}
    for number, run in enumerate(runs, 1):
        if run.folder.name not in known:
            print(f"{number} of {len(runs)}: {run.folder.name}", file=sys.stderr)
            known[run.folder.name] = by_prompt(Simulation(run.config), run.state())
            write_atomically(given.out, json.dumps(known, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
