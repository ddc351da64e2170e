"""FedVPT-D: as FedVPT, with prompts of their own in every layer (VPT-Deep; Jia et al., 2022)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from fedprompt.backbone.vit import Prompt
from fedprompt.methods.base import Tensors
from fedprompt.methods.fedvpt import FedVPT


class FedVPTDeep(FedVPT):
    """Each layer's prompts replace those of the layer before."""

    key = "fedvpt-d"
    title = "FedVPT-D"
    rank = 30

    class Settings(FedVPT.Settings):
        """Settings of FedVPT-D."""

        depth: PositiveInt | None = Field(None, description="the first layers that get prompts; by default all")
        beyond: Literal["flow", "drop"] = Field("flow", description="what the last prompts do in deeper layers")

    settings: Settings

    @property
    def depth(self) -> int:
        return min(self.settings.depth or self.vit.shape.depth, self.vit.shape.depth)

    def prompts(self, params: Tensors) -> list[Prompt]:
        return [Prompt(params["prompt"], flows=self.settings.beyond == "flow")]
