"""FedProx (Li et al., 2020) on the model of FedVPT-D: deep prompts, and the head where it is aggregated."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from fedprompt.backbone.cache import Batch
from fedprompt.methods.base import Context, Tensors
from fedprompt.methods.fedvpt_d import FedVPTDeep


class FedProx(FedVPTDeep):
    """FedVPT-D with a pull of what a client trains towards what the server sent."""

    key = "fedprox"
    title = "FedProx"
    paper = "Li et al., 2020"
    rank = 110

    class Settings(FedVPTDeep.Settings):
        """Settings of FedProx."""

        mu: NonNegativeFloat = Field(0.01, description="strength of the pull; 0 is FedVPT-D")

    settings: Settings

    def loss(self, params: Tensors, batch: Batch, context: Context) -> Tensor:
        trained = [name for name in context.received if params[name].requires_grad]
        pull = sum((params[name] - context.received[name]).square().sum() for name in trained)
        return super().loss(params, batch, context) + 0.5 * self.settings.mu * pull
