"""pFedBayesPT-D: the deterministic ablation (Ye et al., 2025, RQ4)."""

from __future__ import annotations

from fedprompt.methods.pfedbayespt import PFedBayesPT


class PFedBayesPTDeterministic(PFedBayesPT):
    """No mask and no noise: the prompt is a function of the image, trained by cross-entropy alone."""

    key = "pfedbayespt-d"
    title = "pFedBayesPT-D"
    rank = 90

    @property
    def masked(self) -> bool:
        return False

    @property
    def gaussian(self) -> bool:
        return False
