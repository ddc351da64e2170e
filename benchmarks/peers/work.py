"""The work that all engines do alike: one local epoch of Head-Tune or FedVPT at each of many clients.

The models are plain torch modules, as the documentation of Flower and of pfl-research has them; the ViT inside is ours
in each case, so that what differs is the engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedprompt.backbone.vit import Prompt
from fedprompt.backbone.weights import load_backbone

BATCH, LEARNING_RATE, MOMENTUM, LENGTH = 32, 0.01, 0.9, 10


class HeadTune(nn.Module):
    """A linear head on CLS features."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


class FedVPT(nn.Module):
    """Ten prompt tokens in the first layer of the frozen mini ViT, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = [load_backbone("mini")]  # in a list: torch must not count it among the trained parameters
        width = self.backbone[0].vit.shape.width
        self.prompt = nn.Parameter(torch.randn(1, LENGTH, width) * 0.02)
        self.head = nn.Linear(width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        backbone = self.backbone[0]
        embedded = backbone.vit.embed(backbone.normalise(pixels))
        out: Tensor = self.head(backbone.vit.prompted(embedded, [Prompt(self.prompt, flows=True)]))
        return out


def make_model(kind: str, classes: int) -> nn.Module:
    width = load_backbone("mini").vit.shape.width
    return HeadTune(classes, width) if kind == "head-tune" else FedVPT(classes)


def clients_data(folder: Path, kind: str) -> list[tuple[Tensor, Tensor]]:
    """Each client's inputs (CLS features, or pixels) and labels."""
    tensors = load_file(folder / "work.safetensors")
    sizes = json.loads((folder / "work.json").read_text())["sizes"]
    inputs = tensors["cls" if kind == "head-tune" else "pixels"].split(sizes)
    return list(zip(inputs, tensors["labels"].split(sizes), strict=True))


def local_epoch(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Plain SGD with momentum over the client's images in a random order; the mean loss."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for index in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[index]), labels[index])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)
