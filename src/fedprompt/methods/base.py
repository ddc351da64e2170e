"""What a method is: one file that declares its tensors and overrides hooks. It never repeats the training loop.

State is explicit: flat dicts of named tensors in three groups.

- *shared* tensors travel between clients and server and are aggregated;
- *personal* tensors never leave their client;
- *server* tensors never leave the server.

:meth:`Method.initial` is the declaration that engine, checkpoint, guard, byte count and tests all read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, field_validator
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.backbone.vit import Prompt
from fedprompt.backbone.weights import Backbone
from fedprompt.randomness import torch_generator

Tensors = dict[str, Tensor]
HEAD = ("head.weight", "head.bias")
NEWCOMER = -1  # the number of a client that joins after training


@dataclass(frozen=True)
class State:
    """Named tensors in their three groups; ``personal`` is that of one client, or what a fresh client starts with."""

    shared: Tensors
    personal: Tensors
    server: Tensors


@dataclass(frozen=True)
class Task:
    """What a method is built for."""

    backbone: Backbone
    classes: int
    clients: int


@dataclass
class Context:
    """Where a local step stands: what the server sent, whose turn it is, the noise, and a place for figures.

    ``memo`` is for tensors that a method computes once in a client's round, or counts over its steps.
    """

    received: Tensors
    round: int
    client: int
    generator: torch.Generator
    stage: int = 0
    part: str = ""  # the name of the stage
    logs: dict[str, list[float]] = field(default_factory=dict)
    memo: Tensors = field(default_factory=dict)

    def log(self, name: str, value: Tensor | float) -> None:
        self.logs.setdefault(name, []).append(float(value.detach()) if isinstance(value, Tensor) else value)


@dataclass(frozen=True)
class Stage:
    """A part of local training: how many epochs (as a multiple of the configured ones), and what it trains."""

    names: frozenset[str]
    epochs: int = 1
    name: str = ""  # tells a loss which part it is in (``context.part``); new clients fine-tune in one without a name


@dataclass(frozen=True)
class Update:
    """What a client sends back."""

    client: int
    tensors: Tensors
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)


class Method:
    """FedAvg over the shared tensors with a linear head on the CLS feature: the base that every method changes."""

    key: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    rank: ClassVar[int] = 1000  # place in lists; the paper's order
    fixed_feature: ClassVar[bool] = False  # no randomness in :meth:`feature`: new clients then compute it once an image

    class Settings(BaseModel):
        """Settings that every method has."""

        model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

        learning_rate: PositiveFloat = Field(0.01, description="of head and prompts (the paper's eta)")
        prompt_learning_rate: PositiveFloat | None = Field(
            None, description="of the prompts if not the same; frozen tokens are long vectors and move slowly"
        )
        momentum: NonNegativeFloat = Field(0.9, lt=1, description="of SGD; restarted each round")
        weight_decay: NonNegativeFloat = Field(0.0, description="of SGD, on all that is trained")
        step_limit: PositiveFloat | None = Field(
            None,
            description="the longest step of a prompt token, as a share of the token's length; by default any (inf). "
            "LayerNorm sees directions alone: a step longer than its token leaves nothing of it",
        )
        head: Literal["local", "global", "local_plus_mean"] = Field(
            "local",
            description="local: stays with its client; global: aggregated; local_plus_mean: local, and the server also "
            "averages what clients trained, for new clients to start from",
        )
        head_start: Literal["zeros", "torch", "vpt"] = Field(
            "zeros", description="zeros; torch: Linear's own; vpt: kaiming-normal"
        )
        new_head: Literal["mean", "fresh"] = Field(
            "mean", description="what a new client's head starts from; mean where the server has one"
        )

        @field_validator("step_limit")
        @classmethod
        def _no_limit(cls, limit: float | None) -> float | None:
            """A file that lifts the limit of another cannot say None, and TOML has a word for it."""
            return None if limit == math.inf else limit

    settings: Settings

    def __init__(self, settings: BaseModel, task: Task) -> None:
        self.settings = settings  # type: ignore[assignment]
        self.task = task
        self.vit = task.backbone.vit
        self.device = self.vit.pos_embed.device

    # What there is

    @property
    def needs(self) -> Needs:
        """What of the frozen backbone it reads."""
        return Needs()

    def shared(self, generator: torch.Generator) -> Tensors:
        """Fresh shared tensors beside the head."""
        return {}

    def server(self, generator: torch.Generator) -> Tensors:
        """Fresh tensors that never leave the server."""
        return {}

    def initial(self, seed: int) -> State:
        """All tensors at the start, in their groups. The same seed gives the same tensors on every machine."""
        head = self._fresh_head(torch_generator(seed, "start", "head"))
        shared = self.shared(torch_generator(seed, "start", "shared"))
        personal: Tensors = {}
        if self.settings.head == "global":
            shared |= head
        else:
            personal |= head
        if self.settings.head == "local_plus_mean":
            shared |= {f"mean_{name}": value.clone() for name, value in head.items()}
        server = self.server(torch_generator(seed, "start", "server"))
        groups = (
            {name: value.to(self.device) for name, value in group.items()} for group in (shared, personal, server)
        )
        return State(*groups)

    def _fresh_head(self, generator: torch.Generator) -> Tensors:
        classes, width = self.task.classes, self.vit.shape.width
        weight, bias = torch.zeros(classes, width), torch.zeros(classes)
        if self.settings.head_start == "torch":
            bound = width**-0.5
            weight = (torch.rand(classes, width, generator=generator) * 2 - 1) * bound
            bias = (torch.rand(classes, generator=generator) * 2 - 1) * bound
        elif self.settings.head_start == "vpt":
            weight = torch.randn(classes, width, generator=generator) * (2 / classes) ** 0.5
        return dict(zip(HEAD, (weight, bias), strict=True))

    # At the server

    def payload(self, state: State, client: int) -> Tensors:
        """What the server sends to a client."""
        return {name: value for name, value in state.shared.items() if not name.startswith("mean_head")}

    def expected(self, state: State) -> Tensors:
        """Tensors of the names, shapes and types that an update must have: what a client sends in a round."""
        return state.shared

    def bytes_sent(self, state: State) -> int:
        """What one client sends in one round."""
        return sum(value.nbytes for value in self.expected(state).values())

    def aggregate(self, state: State, updates: Sequence[Update]) -> State:
        """The server's new state: the mean of the clients' tensors, weighted by their number of images."""
        return State(weighted_mean(updates), state.personal, state.server)

    # At a client

    def stages(self, params: Tensors) -> list[Stage]:
        """The parts of local training; one that trains everything unless a method says otherwise."""
        return [Stage(frozenset(params))]

    def learning_rate(self, name: str) -> float:
        """The step size for one tensor."""
        settings = self.settings
        if name == "prompt" and settings.prompt_learning_rate is not None:
            return settings.prompt_learning_rate
        return settings.learning_rate

    def step_limit(self, name: str) -> float | None:
        """The longest step of one row of a tensor, as a share of the row's length; None for any."""
        return self.settings.step_limit if name.endswith("prompt") else None

    def loss(self, params: Tensors, batch: Batch, context: Context) -> Tensor:
        """What local training minimises, as a mean over the batch."""
        cross_entropy = F.cross_entropy(self.logits(params, batch), batch.labels)
        context.log("cross_entropy", cross_entropy)
        return cross_entropy

    def step(self, name: str, step: Tensor, context: Context) -> Tensor:
        """A last change to the step about to be added to a tensor."""
        return step

    def upload(self, params: Tensors, context: Context) -> Tensors:
        """What a client sends back after training: the shared tensors."""
        mean_head = {f"mean_{name}": params[name] for name in HEAD} if self.settings.head == "local_plus_mean" else {}
        kept = set() if self.settings.head == "global" else set(HEAD)
        return {name: value for name, value in params.items() if name not in kept} | mean_head

    # Prediction

    def prompts(self, params: Tensors) -> list[Prompt]:
        """The prompts that the whole batch shares."""
        return []

    def feature(self, params: Tensors, batch: Batch) -> Tensor:
        """What the head reads of each image (batch, width)."""
        assert batch.embedded is not None
        return self.vit.prompted(batch.embedded, self.prompts(params))

    def logits(self, params: Tensors, batch: Batch) -> Tensor:
        """Class scores (batch, classes)."""
        feature = self.feature(params, batch) if batch.final is None else batch.final
        return F.linear(feature, params["head.weight"], params["head.bias"])

    def predict(self, params: Tensors, batch: Batch, generator: torch.Generator) -> Tensor:
        """Class probabilities (draws, batch, classes), NaN where a draw was not made.

        Their mean over the draws that were made is the prediction.
        """
        return self.logits(params, batch).softmax(-1).unsqueeze(0)

    # New clients

    @property
    def joining_rounds(self) -> int:
        """Exchanges with the server before a client that joins after training fine-tunes; see :meth:`meet`."""
        return 0

    def meet(self, state: State, update: Update) -> State:
        """What the server makes of a joining client's update: it may learn about that client and nothing else."""
        return state

    def adapts(self, name: str) -> bool:
        """Whether a client that joins after training fine-tunes this tensor: its head and nothing else."""
        return name in HEAD

    def newcomer(self, state: State) -> Tensors:
        """All tensors of a client that joins after training, before it fine-tunes."""
        params = {**self.payload(state, NEWCOMER), **state.personal}
        if self.settings.head == "local_plus_mean" and self.settings.new_head == "mean":
            params |= {name: state.shared[f"mean_{name}"] for name in HEAD}
        return params


def weighted_mean(updates: Sequence[Update]) -> Tensors:
    """The mean of each tensor over the updates, weighted by their number of images.

    Summed in float64 and in the order of the clients' numbers, so that it does not depend on who answered first.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    total = sum(update.examples for update in ordered)
    mean: Tensors = {}
    for name, like in ordered[0].tensors.items():
        summed = torch.zeros_like(like, dtype=torch.float64)
        for update in ordered:
            summed.add_(update.tensors[name], alpha=update.examples / total)
        mean[name] = summed.to(like.dtype)
    return mean
