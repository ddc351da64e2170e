"""The bound of pFedBayesPT against direct computation, known evidence and finite differences."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedprompt.bayes.objective import bound, densities, log_normal, mixture_gap, surrogate_elbo

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def random_inputs(draws: int, extra: int, batch: int = 3, dims: tuple[int, ...] = (2, 1, 2), seed: int = 0) -> Inputs:
    """log_likelihood, prompt, mean, log_std, extra_mean, extra_log_std in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mean, log_std = normal(draws, batch, *dims), 0.3 * normal(draws, batch, *dims)
    prompt = mean + log_std.exp() * normal(draws, batch, *dims)
    extra_mean = mean[:1] + 0.5 * normal(extra, batch, *dims)
    return -normal(draws, batch).abs(), prompt, mean, log_std, extra_mean, 0.3 * normal(extra, batch, *dims)


def gaussian(prompt: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The density itself with all its constants, a product over dimensions."""
    factor = torch.exp(-((prompt - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
    return factor.flatten(2).prod(-1)


def direct(inputs: Inputs, prior_std: float, kl_weight: float) -> Tensor:
    """The paper's equation read aloud, without a logarithm before the last step."""
    log_likelihood, prompt, mean, log_std, extra_mean, extra_log_std = inputs
    terms = []
    for j in range(len(prompt)):
        p = prompt[j : j + 1]
        omega = gaussian(p, mean[j : j + 1], log_std[j : j + 1].exp())
        for s in range(len(extra_mean)):
            omega = omega + gaussian(p, extra_mean[s : s + 1], extra_log_std[s : s + 1].exp())
        omega = omega / (len(extra_mean) + 1)
        prior = gaussian(p, torch.zeros_like(p), torch.full_like(p, prior_std))
        terms.append(log_likelihood[j].exp() * (prior / omega)[0] ** kl_weight)
    return torch.stack(terms).mean(0).log()


@pytest.mark.parametrize(("draws", "extra"), [(1, 0), (1, 1), (1, 3), (2, 1), (3, 0), (4, 5)])
@pytest.mark.parametrize(("prior_std", "kl_weight"), [(1.0, 1.0), (0.4, 1.0), (2.0, 0.1)])
def test_bound_equals_direct_computation(draws: int, extra: int, prior_std: float, kl_weight: float) -> None:
    inputs = random_inputs(draws, extra)
    ours = surrogate_elbo(*inputs, prior_std=prior_std, kl_weight=kl_weight)
    assert ours.shape == (3,)
    torch.testing.assert_close(ours, direct(inputs, prior_std, kl_weight), rtol=1e-10, atol=1e-10)


def test_without_extra_draws_bound_is_importance_weighted_elbo() -> None:
    log_likelihood, prompt, mean, log_std, none, none_log_std = random_inputs(draws=5, extra=0)
    prior = torch.distributions.Normal(torch.zeros_like(mean), 1.0)
    posterior = torch.distributions.Normal(mean, log_std.exp())
    log_weight = log_likelihood + (prior.log_prob(prompt) - posterior.log_prob(prompt)).flatten(2).sum(-1)
    iwae = log_weight.exp().mean(0).log()
    torch.testing.assert_close(surrogate_elbo(log_likelihood, prompt, mean, log_std, none, none_log_std), iwae)


def test_one_draw_without_extra_is_plain_variational_inference() -> None:
    """In expectation: likelihood minus the analytic KL to the prior."""
    batch, dims = 40_000, 3
    _, _, mean, log_std, _, _ = random_inputs(1, 0, batch=1, dims=(dims,))
    mean, log_std = mean.expand(1, batch, dims), log_std.expand(1, batch, dims)
    noise = torch.randn(1, batch, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    none = mean[:0]
    estimate = surrogate_elbo(torch.zeros(1, batch), mean + log_std.exp() * noise, mean, log_std, none, none)
    variance = (2 * log_std[0, 0]).exp()
    kl = 0.5 * (variance + mean[0, 0] ** 2 - 1 - variance.log()).sum()
    standard_error = estimate.std().item() / math.sqrt(batch)
    assert abs(estimate.mean().item() + kl.item()) < 4 * standard_error


@pytest.mark.parametrize("extra", [1, 4])
def test_equal_components_make_extra_draws_irrelevant(extra: int) -> None:
    log_likelihood, prompt, mean, log_std, none, none_log_std = random_inputs(draws=1, extra=0)
    copies = (mean.expand(extra, *mean.shape[1:]), log_std.expand(extra, *mean.shape[1:]))
    without = surrogate_elbo(log_likelihood, prompt, mean, log_std, none, none_log_std)
    torch.testing.assert_close(surrogate_elbo(log_likelihood, prompt, mean, log_std, *copies), without)
    gap = mixture_gap(densities(prompt, mean, log_std, *copies))
    torch.testing.assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-12)


def test_one_own_and_one_extra_draw_average_two_densities() -> None:
    inputs = random_inputs(draws=1, extra=1)
    log_likelihood, prompt, mean, log_std, extra_mean, extra_log_std = inputs
    omega = (gaussian(prompt, mean, log_std.exp()) + gaussian(prompt, extra_mean, extra_log_std.exp())) / 2
    prior = gaussian(prompt, torch.zeros_like(prompt), torch.ones_like(prompt))
    torch.testing.assert_close(surrogate_elbo(*inputs), (log_likelihood + (prior / omega).log())[0])


@pytest.mark.parametrize("draws", [1, 4])
def test_without_kl_bound_is_log_of_mean_likelihood(draws: int) -> None:
    inputs = random_inputs(draws, extra=2)
    torch.testing.assert_close(surrogate_elbo(*inputs, kl_weight=0.0), inputs[0].exp().mean(0).log())


# A model whose evidence is known: p ~ N(0, s0^2 I), y | p ~ N(a.p, t^2), so y ~ N(0, s0^2 |a|^2 + t^2).
S0, T, Y = 0.7, 0.5, 1.3


def log_density_of_y(mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((Y - mean) ** 2 / variance + (2 * math.pi * variance).log())


def log_likelihood_of(prompt: Tensor, a: Tensor) -> Tensor:
    return log_density_of_y(prompt @ a, a.new_tensor(T**2))


def log_evidence(a: Tensor) -> float:
    return log_density_of_y(a.new_zeros(()), S0**2 * a.square().sum() + T**2).item()


def semi_implicit_estimates(draws: int, extra: int, repeats: int = 20_000) -> tuple[float, float]:
    """Mean and standard error of the bound for a posterior whose means are random, far from exact."""
    a = torch.tensor([0.8, -0.6], dtype=torch.float64)
    generator = torch.Generator().manual_seed(draws * 100 + extra)

    def psi(count: int) -> tuple[Tensor, Tensor]:
        spread = torch.randn(count, repeats, 2, generator=generator, dtype=torch.float64)
        return torch.tensor([0.5, -0.4]) + 0.5 * spread, torch.full_like(spread, math.log(0.4))

    (mean, log_std), extra_psi = psi(draws), psi(extra)
    prompt = mean + log_std.exp() * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    estimate = surrogate_elbo(log_likelihood_of(prompt, a), prompt, mean, log_std, *extra_psi, prior_std=S0)
    return estimate.mean().item(), estimate.std().item() / math.sqrt(repeats)


def test_bound_stays_below_evidence_and_tightens_with_draws_and_extra() -> None:
    evidence = log_evidence(torch.tensor([0.8, -0.6]))
    for ladder in ([(1, 0), (1, 1), (1, 8)], [(1, 1), (4, 1), (16, 1)]):
        estimates = [semi_implicit_estimates(draws, extra) for draws, extra in ladder]
        for (looser, error), (tighter, other_error) in pairwise(estimates):
            assert looser + 4 * math.hypot(error, other_error) < tighter
        assert all(mean - 4 * error < evidence for mean, error in estimates)
    assert evidence - semi_implicit_estimates(draws=64, extra=8, repeats=4_000)[0] < 0.05


@pytest.mark.parametrize(("draws", "extra"), [(1, 0), (1, 2), (3, 1)])
def test_bound_equals_evidence_at_every_draw_when_posterior_is_exact(draws: int, extra: int) -> None:
    a = torch.tensor([0.0, 0.8, 0.0], dtype=torch.float64)  # one axis, so that the exact posterior is diagonal
    variance = 1 / (1 / S0**2 + a.square() / T**2)
    exact_mean, exact_log_std = variance * a * Y / T**2, 0.5 * variance.log()
    batch = 50
    mean, log_std = exact_mean.expand(draws, batch, 3), exact_log_std.expand(draws, batch, 3)
    noise = torch.randn(mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompt = mean + log_std.exp() * noise
    extra_psi = (exact_mean.expand(extra, batch, 3), exact_log_std.expand(extra, batch, 3))
    ours = surrogate_elbo(log_likelihood_of(prompt, a), prompt, mean, log_std, *extra_psi, prior_std=S0)
    torch.testing.assert_close(ours, torch.full_like(ours, log_evidence(a)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("draws", "extra"), [(1, 1), (3, 2)])
def test_gradients_match_finite_differences_in_every_input(draws: int, extra: int) -> None:
    inputs = [tensor.requires_grad_() for tensor in random_inputs(draws, extra, batch=2)]

    def weighted(*tensors: Tensor) -> Tensor:
        return surrogate_elbo(*tensors, prior_std=0.8, kl_weight=0.7)

    assert torch.autograd.gradcheck(weighted, inputs)
    gradients = torch.autograd.grad(weighted(*inputs).sum(), inputs)
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients)  # the extra draws are taught as well


def test_half_inputs_are_computed_in_fp32_even_under_autocast() -> None:
    inputs = random_inputs(draws=2, extra=2, dims=(12, 8))
    halves = [tensor.bfloat16() for tensor in inputs]
    expected = surrogate_elbo(*(half.double() for half in halves))
    with torch.autocast("cpu", torch.bfloat16):
        ours = surrogate_elbo(*halves)
    assert ours.dtype == torch.float32
    assert expected.dtype == torch.float64
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("log_std", [-6.0, 0.0, 2.0])
def test_fp32_neither_overflows_nor_drifts_at_paper_size(log_std: float) -> None:
    """12 layers, one token, width 768: 9,216 dimensions."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 12, 1, 768)
    mean, extra_mean = (0.3 * torch.randn(shape, generator=generator) for _ in range(2))
    log_stds = [log_std + 0.1 * torch.randn(shape, generator=generator) for _ in range(2)]
    prompt = mean + log_stds[0].exp() * torch.randn(shape, generator=generator)
    inputs = [-torch.rand(2, 4, generator=generator), prompt, mean, log_stds[0], extra_mean, log_stds[1]]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    ours = surrogate_elbo(*inputs)
    precise = surrogate_elbo(*(tensor.double() for tensor in inputs))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), precise, rtol=1e-6, atol=2e-2)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(ours.sum(), inputs))


@pytest.mark.parametrize("extra", [1, 3, 9])
def test_mixture_gap_lies_between_zero_and_log_of_components(extra: int) -> None:
    repeats, generator = 20_000, torch.Generator().manual_seed(extra)
    means = 0.5 * torch.randn(extra + 1, repeats, 4, generator=generator)
    log_stds = 0.2 * torch.randn(extra + 1, repeats, 4, generator=generator)
    prompt = means[:1] + log_stds[:1].exp() * torch.randn(1, repeats, 4, generator=generator)
    gap = mixture_gap(densities(prompt, means[:1], log_stds[:1], means[1:], log_stds[1:]))
    assert gap.shape == (repeats,)
    assert gap.max() <= math.log(extra + 1) + 1e-5  # at every draw
    standard_error = gap.std().item() / math.sqrt(repeats)
    assert 4 * standard_error < gap.mean().item() < math.log(extra + 1)


@pytest.mark.parametrize(("shift", "gap"), [(0.01, 0.10), (0.02, 0.32), (0.03, 0.51), (0.1, 0.693)])
def test_mixture_gap_saturates_with_the_shift_of_means_at_paper_size(shift: float, gap: float) -> None:
    prompt = torch.randn(1, 1_000, 9_216, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros(1, 1, 1)
    measured = mixture_gap(densities(prompt, zero, zero, zero + shift, zero)).mean().item()
    assert abs(measured - gap) < 0.04


def test_bound_from_densities_is_the_same_bound_and_the_constant_is_the_documented_one() -> None:
    inputs = random_inputs(draws=2, extra=1)
    log_densities = densities(*inputs[1:], prior_std=0.5)
    torch.testing.assert_close(
        bound(inputs[0], log_densities, kl_weight=0.3), surrogate_elbo(*inputs, prior_std=0.5, kl_weight=0.3)
    )
    _, prompt, mean, log_std, _, _ = inputs
    full = torch.distributions.Normal(mean, log_std.exp()).log_prob(prompt).flatten(2).sum(-1)
    constant = 0.5 * math.log(2 * math.pi) * mean[0, 0].numel()
    torch.testing.assert_close(log_normal(prompt, mean, log_std), full + constant)


def test_unequal_counts_of_extra_means_and_stds_are_refused() -> None:
    log_likelihood, prompt, mean, log_std, extra_mean, extra_log_std = random_inputs(draws=1, extra=2)
    with pytest.raises(ValueError, match="shorter"):
        surrogate_elbo(log_likelihood, prompt, mean, log_std, extra_mean, extra_log_std[:1])
