"""pFedBayesPT-G: the ablation with an ordinary Gaussian posterior (Ye et al., 2025, RQ4)."""

from __future__ import annotations

from fedprompt.methods.pfedbayespt import PFedBayesPT


class PFedBayesPTGaussian(PFedBayesPT):
    """No mask: psi is a function of the image, and the posterior a Gaussian.

    At test the prompt is its mean, as in the full method, and so V = 1; ``sample_noise`` draws V prompts instead.
    """

    key = "pfedbayespt-g"
    title = "pFedBayesPT-G"
    rank = 80

    @property
    def masked(self) -> bool:
        return False
