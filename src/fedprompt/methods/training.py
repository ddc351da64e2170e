"""The one training loop: it draws batches, takes gradients and steps, and knows nothing of methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbone.cache import ClientData, KnownFeatures
from fedprompt.config import TrainingSettings
from fedprompt.methods.base import Context, Method, Stage, Tensors
from fedprompt.randomness import torch_generator


@dataclass(frozen=True)
class Schedule:
    """How long a client trains, and with what share of its learning rates."""

    epochs: int
    batch: int
    falls_over: int | None = None  # rounds over which shared tensors' rates fall along half a cosine; None keeps them

    @classmethod
    def of(cls, settings: TrainingSettings) -> Schedule:
        """What the settings ask of a client in a round."""
        falls_over = settings.rounds if settings.schedule == "cosine" else None
        return cls(settings.epochs, settings.batch, falls_over)

    def share(self, round_number: int) -> float:
        """The factor of shared tensors' learning rates in a round, counted from 1.

        What stays with a client keeps its rate: nobody averages it, and one first asked late has it all to learn.

        >>> [round(Schedule(1, 32, falls_over=4).share(number), 2) for number in (1, 2, 3, 4)]
        [1.0, 0.85, 0.5, 0.15]
        """
        return 1.0 if self.falls_over is None else (1 + math.cos(math.pi * (round_number - 1) / self.falls_over)) / 2


def train(
    method: Method,
    start: Tensors,
    data: ClientData | KnownFeatures,
    schedule: Schedule,
    context: Context,
    seed: int,
    stages: list[Stage] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Tensors:
    """Train a client's tensors on its data by SGD and return them; ``start`` is left as it was."""
    params = {name: value.clone() for name, value in start.items()}
    for number, stage in enumerate(method.stages(params) if stages is None else stages):
        context.stage, context.part = number, stage.name
        _run_stage(method, params, data, schedule, context, stage, seed, on_step)
    return params


def _run_stage(
    method: Method,
    params: Tensors,
    data: ClientData | KnownFeatures,
    schedule: Schedule,
    context: Context,
    stage: Stage,
    seed: int,
    on_step: Callable[[], None],
) -> None:
    trained = [name for name in params if name in stage.names]
    velocity = {name: torch.zeros_like(params[name]) for name in trained}
    settings, share = method.settings, schedule.share(context.round)
    rates = {name: method.learning_rate(name) * (share if name in context.received else 1.0) for name in trained}
    limits = {name: method.step_limit(name) for name in trained}
    for epoch in range(stage.epochs * schedule.epochs):
        address = ("order", context.round, context.client, context.stage, epoch)
        order = torch.randperm(len(data), generator=torch_generator(seed, *address))
        for index in order.split(schedule.batch):
            batch = data.batch(index, method.needs)
            for name in trained:
                params[name].requires_grad_(True)
            loss = method.loss(params, batch, context)
            gradients = torch.autograd.grad(loss, [params[name] for name in trained])
            with torch.no_grad():
                for name, gradient in zip(trained, gradients, strict=True):
                    params[name] = params[name].detach()
                    velocity[name].mul_(settings.momentum).add_(gradient)
                    if settings.weight_decay:
                        velocity[name].add_(params[name], alpha=settings.weight_decay)
                    step = method.step(name, -rates[name] * velocity[name], context)
                    if (limit := limits[name]) is not None:
                        kept = within(step, params[name], limit)
                        step, velocity[name] = step * kept, velocity[name] * kept  # or the next steps make up for it
                    params[name] += step
            context.log("loss", loss)
            on_step()


def within(step: Tensor, tensor: Tensor, limit: float) -> Tensor:
    """What to multiply each row of a step with so that it is at most ``limit`` times as long as the row it changes.

    A row of zeros, which has no direction yet, may go anywhere.

    >>> step = torch.tensor([[3.0, 4.0], [0.3, 0.4], [3.0, 4.0]])
    >>> within(step, torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]), 0.5).squeeze()
    tensor([0.1000, 1.0000, 1.0000])
    """
    longest = limit * tensor.norm(dim=-1, keepdim=True)
    length = step.norm(dim=-1, keepdim=True)
    return torch.where((length > longest) & (longest > 0), longest / length, 1.0)
