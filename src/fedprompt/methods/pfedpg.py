"""pFedPG (Yang et al., ICCV 2023): the server learns to generate a prompt for each client from how its prompts moved.

The server keeps a base prompt, a descriptor of each client and one attention layer (paper, sec. 3.3). For client n

    P_n = P_base + softmax((d_n W_Q)(P_base W_K)^T / sqrt(key width)) (P_base W_V) W_O,

one vector that is added to every token of the base prompt. The client trains P_n and its head and sends back only the
trained prompt P~_n. To the server P_n - P~_n stands for the gradient of the client's loss by P_n: through the generator
(a vector-Jacobian product) it is the gradient of ½ ||P_n - P~_n||² by all that the server keeps, and the server takes
one step down it. None of what the server keeps ever travels.

Few rounds make few differences: descriptors get their gradient through the softmax, where little of it arrives. On
digits6, whose clients are alike, prompts differed between clients by about 0.1 % of the common shift after five rounds.

A client is tested with the prompt that is generated for it. For a client that joins after training, the same step fits
a descriptor of its own while the rest is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedprompt.methods.base import NEWCOMER, State, Tensors, Update, weighted_mean
from fedprompt.methods.fedvpt import FedVPT

GENERATOR = ("query", "key", "value", "output")  # W_Q, W_K, W_V, W_O
LEARNED = ("base_prompt", "descriptors", *(f"generator.{name}" for name in GENERATOR))


class PFedPG(FedVPT):
    """A prompt for each client, made by a generator that only the server has; heads stay with their clients."""

    key = "pfedpg"
    title = "pFedPG"
    paper = "Yang et al., 2023"
    rank = 40

    class Settings(FedVPT.Settings):
        """Settings of pFedPG."""

        server_learning_rate: PositiveFloat = Field(
            0.001,
            description="of all that the server keeps; the paper's, under which prompts hardly move in few rounds",
        )
        base_learning_rate: PositiveFloat | None = Field(
            None, description="of the base prompt if not the same; with 1 it moves as an average of prompts does"
        )
        server_momentum: NonNegativeFloat = Field(0.0, lt=1, description="of the server's SGD, kept between rounds")
        server_clip: PositiveFloat | None = Field(50.0, description="largest norm of the server's gradient (pFedHN)")
        clients_count: Literal["mean", "sum", "images"] = Field(
            "mean",
            description="how clients add up in the server's gradient: each alike as a mean, which does not grow with "
            "their number, or as a sum; or by their images, as other methods' averages do",
        )
        key_width: PositiveInt | None = Field(None, description="of queries and keys; by default the backbone's width")
        value_width: PositiveInt | None = Field(None, description="of values; by default the backbone's width")
        descriptor_start: Literal["uniform", "normal"] = Field(
            "uniform", description="uniform: within -1 and 1; normal: of standard deviation 0.02"
        )
        zero_output: bool = Field(
            True, description="W_O starts at zero, so that training starts from the base prompt as FedVPT does"
        )
        joining_rounds: NonNegativeInt = Field(
            5, description="exchanges, of one epoch each, in which the server learns a new client's descriptor"
        )
        new_descriptor: Literal["mean", "fresh"] = Field(
            "mean", description="a new client's starts as the mean of those that trained, or as theirs did"
        )

    settings: Settings

    # What there is

    def shared(self, generator: torch.Generator) -> Tensors:
        return {}

    def server(self, generator: torch.Generator) -> Tensors:
        settings, width, clients = self.settings, self.vit.shape.width, self.task.clients
        keys, values = settings.key_width or width, settings.value_width or width
        tensors = {"base_prompt": super().shared(generator)["prompt"]}
        shapes = ((width, keys), (width, keys), (width, values), (values, width))
        for name, (rows, columns) in zip(GENERATOR, shapes, strict=True):
            bound = rows**-0.5  # torch's own start of a linear layer
            tensors[f"generator.{name}"] = (torch.rand(rows, columns, generator=generator) * 2 - 1) * bound
        if settings.zero_output:
            tensors["generator.output"].zero_()
        # One more than there are clients: the last row is what a new client's starts from if it is to be fresh.
        shape = (clients + 1, width)
        if settings.descriptor_start == "uniform":
            descriptors = torch.rand(shape, generator=generator) * 2 - 1
        else:
            descriptors = torch.randn(shape, generator=generator) * 0.02
        tensors["descriptors"], tensors["fresh_descriptor"] = descriptors[:-1], descriptors[-1]
        if settings.server_momentum:
            tensors |= {f"velocity.{name}": torch.zeros_like(tensors[name]) for name in LEARNED}
        tensors["trained"] = torch.zeros(clients, dtype=torch.bool)  # whose descriptor has learned something
        return tensors

    def descriptor(self, server: Tensors, client: int) -> Tensor:
        """The descriptor (width,) of a client, or of the one that is joining."""
        if client != NEWCOMER:
            return server["descriptors"][client]
        if "newcomer" in server:
            return server["newcomer"]
        trained = server["descriptors"][server["trained"]]
        if self.settings.new_descriptor == "fresh" or not len(trained):
            return server["fresh_descriptor"]
        return trained.mean(0)

    # At the server

    def payload(self, state: State, client: int) -> Tensors:
        prompt = generate(state.server, self.descriptor(state.server, client))
        return {"prompt": prompt} | super().payload(state, client)

    def expected(self, state: State) -> Tensors:
        return {"prompt": state.server["base_prompt"]} | state.shared

    def aggregate(self, state: State, updates: Sequence[Update]) -> State:
        """One step of the server down the mean over the clients of ½ ||P_n - P~_n||²; heads by where they live."""
        heads = {name: value for name, value in weighted_mean(updates).items() if name in state.shared}
        return State(heads, state.personal, self._step(state.server, updates))

    def _step(self, server: Tensors, updates: Sequence[Update]) -> Tensors:
        """The server's tensors after one step of SGD; descriptors of clients that were away stay as they are."""
        momentum = self.settings.server_momentum
        gradients = self.gradients(server, updates)
        took_part = torch.zeros_like(server["trained"])
        took_part[[update.client for update in updates]] = True
        after = server | {"trained": server["trained"] | took_part}
        for name, gradient in zip(LEARNED, clipped(gradients, self.settings.server_clip), strict=True):
            moves = took_part.unsqueeze(-1) if name == "descriptors" else torch.ones_like(took_part[:1])
            velocity = gradient
            if momentum:
                old = server[f"velocity.{name}"]
                velocity = after[f"velocity.{name}"] = torch.where(moves, momentum * old + gradient, old)
            after[name] = torch.where(moves, server[name] - self._server_rate(name) * velocity, server[name])
        return after

    def gradients(self, server: Tensors, updates: Sequence[Update]) -> tuple[Tensor, ...]:
        """What the clients' prompts say, through the generator, about each of LEARNED (a vector-Jacobian product)."""
        leaves = {name: server[name].detach().requires_grad_(True) for name in LEARNED}
        ordered = sorted(updates, key=lambda update: update.client)  # sums come out alike whoever answers first
        images = sum(update.examples for update in ordered)
        generated, upstream = [], []
        for update in ordered:
            share = {"mean": 1 / len(ordered), "sum": 1.0, "images": update.examples / images}
            prompt = generate(leaves, leaves["descriptors"][update.client])  # the numbers that were sent
            generated.append(prompt)
            # Before minus after: a client's way down its loss is minus the gradient.
            upstream.append(share[self.settings.clients_count] * (prompt.detach() - update.tensors["prompt"]))
        return torch.autograd.grad(generated, [leaves[name] for name in LEARNED], upstream)

    def _server_rate(self, name: str) -> float:
        if name == "base_prompt" and self.settings.base_learning_rate is not None:
            return self.settings.base_learning_rate
        return self.settings.server_learning_rate

    # New clients

    @property
    def joining_rounds(self) -> int:
        return self.settings.joining_rounds

    def meet(self, state: State, update: Update) -> State:
        """The server's step for one client, on its descriptor alone; base prompt and generator are frozen."""
        descriptor = self.descriptor(state.server, NEWCOMER).detach().clone().requires_grad_(True)
        before = generate(state.server, descriptor)
        gradients = torch.autograd.grad(before, [descriptor], before.detach() - update.tensors["prompt"])
        (gradient,) = clipped(gradients, self.settings.server_clip)
        moved = descriptor.detach() - self.settings.server_learning_rate * gradient
        return State(state.shared, state.personal, {**state.server, "newcomer": moved})


def generate(server: Tensors, descriptor: Tensor) -> Tensor:
    """The prompt (1, length, width) for a client with this descriptor (width,)."""
    base = server["base_prompt"]
    query, key, value, output = (server[f"generator.{name}"] for name in GENERATOR)
    keys = base @ key  # (1, length, key width)
    attention = (keys @ (descriptor @ query) / keys.shape[-1] ** 0.5).softmax(-1)  # (1, length)
    shift: Tensor = attention.unsqueeze(1) @ (base @ value) @ output  # (1, 1, width)
    return base + shift


def clipped(gradients: Sequence[Tensor], largest: float | None) -> list[Tensor]:
    """Gradients shortened together so that their norm is at most ``largest``."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    scale = 1.0 if largest is None else (largest / norm.clamp_min(largest)).item()
    return [gradient * scale for gradient in gradients]
