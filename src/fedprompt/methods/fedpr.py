"""FedPR (Feng et al., CVPR 2023): clients move the prompt only where the global prompt does not reach.

With p (length, width) the prompt of a layer as the server sent it, a local step U (length, width) becomes U T, where T
projects on the directions of the *width* axis that matter least to p: its right singular vectors but the first ones.
What the clients learned together, the row space of p, is so left as it was; T is found anew in every round.

The authors drop a fixed share of the directions, a fifth. A prompt of ten tokens spans at most ten; the others that are
dropped depend on nothing but the routine that finds them, so they are found in float64 on the CPU.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedprompt.errors import UserError
from fedprompt.methods.base import Context, Task
from fedprompt.methods.fedvpt_d import FedVPTDeep


class FedPR(FedVPTDeep):
    """FedVPT-D, or FedVPT, whose prompt steps are projected on the null space of the global prompt."""

    key = "fedpr"
    title = "FedPR"
    paper = "Feng et al., 2023"
    rank = 50

    class Settings(FedVPTDeep.Settings):
        """Settings of FedPR."""

        variant: Literal["deep", "shallow"] = Field(
            "deep", description="prompts of their own in each layer, as FedVPT-D, or in the first alone, as FedVPT"
        )
        keep_ratio: float = Field(0.8, gt=0, le=1, description="share of the directions that steps may take")
        exact_null: bool = Field(
            False, description="drop exactly the directions that the global prompt spans, whatever keep_ratio says"
        )
        normalise: bool = Field(
            False,
            description="divide the projector by its Frobenius norm, as the authors' code does under Adam; under SGD "
            "that is a learning rate some twenty times smaller, so it is off",
        )
        project_first_round: bool = Field(
            False, description="project in round 1 too, away from the start, which nobody has learned"
        )

    settings: Settings

    def __init__(self, settings: BaseModel, task: Task) -> None:
        super().__init__(settings, task)
        if self.settings.variant == "shallow" and self.settings.depth is not None:
            raise UserError("methods.fedpr.depth is for the deep variant; leave it out where variant is shallow.")

    @property
    def depth(self) -> int:
        return 1 if self.settings.variant == "shallow" else super().depth

    def step(self, name: str, step: Tensor, context: Context) -> Tensor:
        if name != "prompt" or (context.round == 1 and not self.settings.project_first_round):
            return step
        if "dropped" not in context.memo:
            context.memo["dropped"] = self.dropped(context.received["prompt"]).to(step)
        dropped = context.memo["dropped"]  # (layers, directions, width)
        kept = step - (step @ dropped.mT) @ dropped  # U T with T = 1 - V V^T, on the width axis
        if not self.settings.normalise:
            return kept
        used = dropped.any(-1).sum(-1)  # (layers,), rows of zeros are no directions
        return kept / (step.shape[-1] - used).sqrt()[:, None, None]  # the Frobenius norm of T

    def dropped(self, prompt: Tensor) -> Tensor:
        """Orthonormal directions (layers, directions, width) that no step may take.

        Where layers drop different numbers of directions, rows of zeros fill up.
        """
        length, width = prompt.shape[1:]
        values: Tensor
        directions: Tensor
        _, values, directions = torch.linalg.svd(prompt.cpu().double(), full_matrices=True)  # V is that of p^T p
        if not self.settings.exact_null:
            # Rounded, so that a fifth of 320 is 64 although 320 * (1 - 0.8) is a hair less.
            return directions[:, : int(round(width * (1 - self.settings.keep_ratio), 6))]
        tolerance = values[:, :1] * max(length, width) * torch.finfo(prompt.dtype).eps
        spans = (values > tolerance).unsqueeze(-1)  # (layers, min(length, width), 1)
        return directions[:, : spans.shape[1]] * spans
