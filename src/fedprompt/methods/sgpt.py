"""SGPT (Deng et al., CVPR 2024): prompts that all images share, and prompts of the group to which an image belongs.

Which group that is, an image's query says: its frozen CLS feature, compared by cosine with one trained key a group.

1. In training the choice is balanced: (1 - cosine) is multiplied by how often the group was chosen so far in the whole
   federation, which the server counts, and a client adds its own choices as it goes. In testing it is not.
2. A client trains in two stages: first head and shared prompts, without groups and on CLS; then head, group prompts and
   keys, with the shared prompts frozen and on the mean of CLS and the group's tokens. *Each stage takes the configured
   epochs*, so that a client trains twice as long as with other methods.
3. The server averages group prompts and keys and moves only part of the way (momentum). Of a key, a client has a say by
   how many images it gave that group.

Three things differ from the authors' code. All clients of a round start from the same counts (there, a client sees what
those before it chose), so that a round does not depend on the order of its clients. Keys start with unit length, the
first as well; a cosine does not see it. And prompts start as tokens of a blank picture, because in few rounds a small
ViT hardly recovers from random ones; ``prompt_start = "authors"`` is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.backbone.prompt_start import PromptStart, initial_prompt
from fedprompt.backbone.vit import Prompt, accumulating
from fedprompt.errors import UserError
from fedprompt.methods.base import HEAD, Context, Method, Stage, State, Task, Tensors, Update, weighted_mean

SHARED_PROMPTS = ("shared_prompt", "first_prompt")
SHARED, GROUPS = "shared", "groups"  # the two stages
SELECTED = "selected"  # how many images of all clients chose each group so far, as a client is told


class SGPT(Method):
    """Shared prompts, then prompts of a group that each image selects; both are averaged and heads stay local."""

    key = "sgpt"
    title = "SGPT"
    paper = "Deng et al., 2024"
    rank = 60
    fixed_feature = True

    class Settings(Method.Settings):
        """Settings of SGPT."""

        groups: PositiveInt = Field(20, description="groups of images; the authors: 20, or the number of domains")
        shared_blocks: PositiveInt = Field(4, description="first layers, each of which adds shared prompts")
        group_blocks: PositiveInt = Field(3, description="layers after these, each of which adds group prompts")
        shared_length: PositiveInt = Field(1, description="shared prompt tokens per layer")
        group_length: PositiveInt = Field(1, description="group prompt tokens per layer")
        first_length: NonNegativeInt = Field(0, description="further shared prompt tokens in the first layer")
        prompt_start: Literal["blank", "tokens", "uniform", "authors"] = Field(
            "blank", description="blank, tokens or uniform (VPT); authors: shared at zero, of groups uniform"
        )
        query_blocks: PositiveInt | None = Field(
            None, description="layers before the query is taken, by default all; the authors: 6 where domains differ"
        )
        selection: Literal["image", "batch_majority"] = Field(
            "image", description="in training; batch_majority (the authors, for domains): one group a batch"
        )
        balance_floor: PositiveFloat = Field(5e-4, description="what is added to a group's frequency")
        key_weight: NonNegativeFloat = Field(1.0, description="of the loss that draws a key to its images")
        key_learning_rate: PositiveFloat = Field(0.01, description="of the keys")
        group_momentum: NonNegativeFloat = Field(0.5, le=1, description="of the group prompts at the server")
        key_momentum: NonNegativeFloat = Field(0.5, le=1, description="of the keys at the server; 0 for domains")
        few: NonNegativeInt = Field(
            50, description="images that a group must exceed in a round for its key to be weighed by them"
        )

    settings: Settings

    def __init__(self, settings: BaseModel, task: Task) -> None:
        super().__init__(settings, task)
        if self.settings.groups > self.vit.shape.width:
            raise UserError(
                f"methods.sgpt.groups is {self.settings.groups}, but a backbone of width {self.vit.shape.width} has no "
                "more orthogonal keys than that; take fewer groups."
            )

    # What there is

    @property
    def group_start(self) -> int:
        """The first layer with group prompts; a shallow backbone has fewer shared ones, so that groups have a layer."""
        return min(self.settings.shared_blocks, self.vit.shape.depth - 1)

    @property
    def needs(self) -> Needs:
        return Needs(cls=True, cls_blocks=self.settings.query_blocks)

    def shared(self, generator: torch.Generator) -> Tensors:
        settings, shape, backbone = self.settings, self.vit.shape, self.task.backbone
        groups, length, further = settings.groups, settings.shared_length, settings.first_length
        start: PromptStart = "uniform" if settings.prompt_start == "authors" else settings.prompt_start
        common = initial_prompt(backbone, start, max(self.group_start, 1), length + further, generator)
        if settings.prompt_start == "authors":
            common.zero_()
        # Tokens are of different places in the picture, so that groups start apart.
        layers = min(self.group_start + settings.group_blocks, shape.depth)
        each = initial_prompt(backbone, start, layers, groups * settings.group_length, generator)[self.group_start :]
        tensors = {
            "shared_prompt": common[:, :length].contiguous(),  # (layers, length, width)
            "group_prompt": each.unflatten(1, (groups, -1)).transpose(0, 1).contiguous(),  # (groups, layers, ...)
            "keys": orthogonal_keys(groups, shape.width, generator),
        }
        return tensors | ({"first_prompt": common[:1, length:].contiguous()} if further else {})

    def server(self, generator: torch.Generator) -> Tensors:
        return {"counts": torch.zeros(self.settings.groups, dtype=torch.long)}  # images that chose each group so far

    # At the server

    def payload(self, state: State, client: int) -> Tensors:
        return super().payload(state, client) | {SELECTED: state.server["counts"]}

    def expected(self, state: State) -> Tensors:
        return super().expected(state) | {"assigned": state.server["counts"]}

    def aggregate(self, state: State, updates: Sequence[Update]) -> State:
        """Means by images, but keys by those of their group; group prompts and keys keep part of what they were."""
        settings, old = self.settings, state.shared
        mean = weighted_mean(updates)
        del mean["assigned"]
        assigned, keys = group_keys(updates, settings.few)
        mean["group_prompt"] = torch.lerp(mean["group_prompt"], old["group_prompt"], settings.group_momentum)
        mean["keys"] = torch.lerp(keys.to(old["keys"]), old["keys"], settings.key_momentum)
        return State(mean, state.personal, {"counts": state.server["counts"] + assigned})

    # At a client

    def stages(self, params: Tensors) -> list[Stage]:
        common = frozenset(name for name in params if name in (*HEAD, *SHARED_PROMPTS))
        return [Stage(common, name=SHARED), Stage(frozenset((*HEAD, "group_prompt", "keys")), name=GROUPS)]

    def learning_rate(self, name: str) -> float:
        if name == "keys":
            return self.settings.key_learning_rate
        return super().learning_rate("prompt" if name not in HEAD else name)

    def loss(self, params: Tensors, batch: Batch, context: Context) -> Tensor:
        """Cross-entropy, and in the second stage the pull of images on the keys they chose."""
        if context.part == GROUPS:
            cosine = self.similarity(params, batch)
            so_far = context.memo.get("assigned", torch.zeros_like(params[SELECTED]))
            chosen = self.balanced_choice(cosine.detach(), params[SELECTED] + so_far)
            context.memo["assigned"] = so_far + chosen.bincount(minlength=self.settings.groups)
            near = cosine.gather(1, chosen.unsqueeze(1)).mean()
            context.log("key_similarity", near)
            known = replace(batch, final=self.group_feature(params, batch, chosen))
            return super().loss(params, known, context) - self.settings.key_weight * near
        if context.part == SHARED:  # CLS and the shared prompts alone
            batch = replace(batch, final=super().feature(params, batch))
        return super().loss(params, batch, context)  # the head of a new client trains as it is tested

    def upload(self, params: Tensors, context: Context) -> Tensors:
        sent = {name: value for name, value in super().upload(params, context).items() if name != SELECTED}
        return sent | {"assigned": context.memo["assigned"]}

    # Selection

    def similarity(self, params: Tensors, batch: Batch) -> Tensor:
        """Cosine (batch, groups) between the queries of images and the keys of groups."""
        assert batch.cls is not None
        return F.normalize(F.relu(batch.cls), dim=-1) @ F.normalize(params["keys"], dim=-1).T

    def balanced_choice(self, cosine: Tensor, counts: Tensor) -> Tensor:
        """The group of each image (batch,) in training; before anything was counted, simply the nearest."""
        frequency = counts / counts.sum().clamp_min(1)
        chosen = ((1 - cosine) * (frequency + self.settings.balance_floor)).argmin(-1)
        if self.settings.selection == "batch_majority":
            counts = chosen.bincount()
            majority = (counts == counts.max()).nonzero()[0]  # the first of equals
            chosen = majority.expand(len(chosen))
        return chosen

    # Prediction

    def prompts(self, params: Tensors) -> list[Prompt]:
        further = [Prompt(params["first_prompt"], flows=True)] if self.settings.first_length else []
        return [*accumulating(params["shared_prompt"]), *further]

    def group_feature(self, params: Tensors, batch: Batch, chosen: Tensor) -> Tensor:
        """What the head reads (batch, width) of images that are in these groups (batch,)."""
        assert batch.embedded is not None
        tokens = params["group_prompt"][chosen].transpose(0, 1)  # (layers, batch, length, width)
        prompts = [*self.prompts(params), *accumulating(tokens, self.group_start, read=True)]
        return self.vit.outputs(batch.embedded, prompts).mean(1)  # of CLS and the group's tokens

    def feature(self, params: Tensors, batch: Batch) -> Tensor:
        return self.group_feature(params, batch, self.similarity(params, batch).argmax(-1))


def orthogonal_keys(groups: int, width: int, generator: torch.Generator) -> Tensor:
    """Orthonormal rows (groups, width): Gram-Schmidt, from the first on, of xavier-uniform ones."""
    bound = (6 / (groups + width)) ** 0.5
    rows = (torch.rand(groups, width, generator=generator).double() * 2 - 1) * bound
    basis, triangle = torch.linalg.qr(rows.T)  # Gram-Schmidt but for the signs
    keys: Tensor = (basis * triangle.diagonal().sign()).T
    return keys.float().contiguous()


def group_keys(updates: Sequence[Update], few: int) -> tuple[Tensor, Tensor]:
    """Images that the clients gave each group (groups,), and the mean of each key (groups, width) weighted by them.

    A key whose group has no more than ``few`` images is a plain mean. In float64 and in the order of the clients'
    numbers, so that it does not depend on who answered first.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    assigned = torch.stack([update.tensors["assigned"] for update in ordered]).clamp_min(0)  # (clients, groups)
    keys = torch.stack([update.tensors["keys"].double() for update in ordered])  # (clients, groups, width)
    total = assigned.sum(0)
    weight = torch.where(total > few, assigned / total.clamp_min(1).double(), 1 / len(ordered))
    return total, (weight.unsqueeze(-1) * keys).sum(0)
