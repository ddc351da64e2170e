"""The training objective of pFedBayesPT: a bound on log p(y | x) for a semi-implicit posterior of the prompt.

An image x has J prompts p^j ~ q(p | psi^j), each from its own random parameters psi^j = (mean, log_std), and S extra
parameters psi~^s drawn the same way and shared by all j. The paper's bound (eq. final_objective) is

    log 1/J sum_j p(y, p^j | x) / Omega^j,    Omega^j = 1/(S+1) [q(p^j | psi^j) + sum_s q(p^j | psi~^s)].

Everything is computed in log space and at least in fp32: a log density of 9,216 dimensions is about 1e4 nats, where
half precision has steps of several nats and ``exp`` has long underflowed. Nothing here draws a random number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Densities(NamedTuple):
    """Log densities of the J prompts of each image; all lack the constant of :func:`log_normal`."""

    log_prior: Tensor  # (draws, batch), log p(p^j)
    own: Tensor  # (draws, batch), log q(p^j | psi^j)
    log_omega: Tensor  # (draws, batch), log Omega^j


def log_normal(prompt: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian, summed over all but the first two dimensions: (draws, batch).

    The constant -0.5 log(2 pi) of each dimension is left out: it is the same in prior and posterior and cancels.
    ``mean`` and ``log_std`` broadcast against ``prompt`` (draws, batch, ...).
    """
    prompt, mean, log_std = (_precise(tensor) for tensor in (prompt, mean, log_std))
    noise = (prompt - mean) * torch.exp(-log_std)
    return (-0.5 * noise.square() - log_std).flatten(2).sum(-1)


def densities(
    prompt: Tensor,  # (draws, batch, ...), as the next two
    mean: Tensor,
    log_std: Tensor,
    extra_mean: Tensor,  # (extra, batch, ...), as the next; extra may be 0
    extra_log_std: Tensor,
    *,
    prior_std: float = 1.0,
) -> Densities:
    """Log prior N(0, prior_std^2 I), own log posterior and log mixture of each prompt."""
    with torch.autocast(prompt.device.type, enabled=False):
        prompt = _precise(prompt)
        log_prior = log_normal(prompt, prompt.new_zeros(()), prompt.new_tensor(math.log(prior_std)))
        own = log_normal(prompt, mean, log_std)
        # One extra component at a time: together they would be a tensor of (extra, draws, batch, ...).
        others = [log_normal(prompt, *psi) for psi in zip(extra_mean, extra_log_std, strict=True)]
        log_omega = torch.stack([own, *others]).logsumexp(dim=0) - math.log(len(others) + 1)
    return Densities(log_prior, own, log_omega)


def bound(log_likelihood: Tensor, log_densities: Densities, *, kl_weight: float = 1.0) -> Tensor:
    """The bound (batch,) from log p(y | x, p^j) (draws, batch) and the prompts' densities."""
    with torch.autocast(log_likelihood.device.type, enabled=False):
        log_ratio = log_densities.log_prior - log_densities.log_omega
        log_weight = _precise(log_likelihood) + kl_weight * log_ratio
        return log_weight.logsumexp(dim=0) - math.log(len(log_weight))


def surrogate_elbo(
    log_likelihood: Tensor,  # (draws, batch)
    prompt: Tensor,  # (draws, batch, ...), as the next two
    mean: Tensor,
    log_std: Tensor,
    extra_mean: Tensor,  # (extra, batch, ...), as the next; extra may be 0
    extra_log_std: Tensor,
    *,
    prior_std: float = 1.0,
    kl_weight: float = 1.0,
) -> Tensor:
    """The bound on log p(y | x) of each image (batch,), to be maximised; exact for ``kl_weight`` 1.

    A prompt drawn from its prior costs nothing, so only the likelihood remains:

    >>> prompt, prior = torch.randn(1, 2, 12, 8), torch.zeros(1, 2, 12, 8)
    >>> surrogate_elbo(torch.tensor([[-0.25, -2.0]]), prompt, prior, prior, prior, prior)
    tensor([-0.2500, -2.0000])
    """
    log_densities = densities(prompt, mean, log_std, extra_mean, extra_log_std, prior_std=prior_std)
    return bound(log_likelihood, log_densities, kl_weight=kl_weight)


def mixture_gap(log_densities: Densities) -> Tensor:
    """What the mixture adds to the plain bound, averaged over draws: (batch,), an estimate of A_S in [0, log(S+1)].

    Near 0 the random parameters psi hardly differ; near log(S+1) they are so far apart that the extra ones are unseen.
    """
    return (log_densities.own - log_densities.log_omega).mean(dim=0)


def _precise(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
