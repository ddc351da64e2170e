"""FedVPT: visual prompt tuning (Jia et al., 2022), shallow, with the prompt averaged and the head kept local."""

from __future__ import annotations

import torch
from pydantic import Field, PositiveInt

from fedprompt.backbone.prompt_start import PromptStart, initial_prompt
from fedprompt.backbone.vit import Prompt
from fedprompt.methods.base import Method, Tensors


class FedVPT(Method):
    """Prompt tokens that enter the first layer and flow on; clients share them and keep their heads."""

    key = "fedvpt"
    title = "FedVPT"
    paper = "Jia et al., 2022"
    rank = 20
    fixed_feature = True

    class Settings(Method.Settings):
        """Settings of FedVPT."""

        length: PositiveInt = Field(10, description="prompt tokens per layer (the paper's K)")
        prompt_start: PromptStart = Field("blank", description="uniform (VPT), blank or tokens")

    settings: Settings

    @property
    def depth(self) -> int:
        """Layers that get prompts of their own."""
        return 1

    def shared(self, generator: torch.Generator) -> Tensors:
        settings = self.settings
        start = initial_prompt(self.task.backbone, settings.prompt_start, self.depth, settings.length, generator)
        return {"prompt": start}

    def prompts(self, params: Tensors) -> list[Prompt]:
        return [Prompt(params["prompt"], flows=True)]
