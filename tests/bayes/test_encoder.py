"""The encoder: equal to the paper's formulas, and what its starts promise."""

import pytest
import torch
from reference import encoder as textbook

from fedprompt.bayes import encoder

LAYERS, TOKENS, WIDTH, BATCH, DRAWS = 3, 10, 8, 4, 2


def fresh(start="random", length=2, log_variance=-3.0):
    generator = torch.Generator().manual_seed(0)
    tensors = encoder.initial_encoder(
        LAYERS,
        TOKENS,
        WIDTH,
        hidden=6,
        length=length,
        start=start,
        log_variance=log_variance,
        with_std=True,
        generator=generator,
    )
    if start == "random":  # gain and bias that are not the neutral ones, or their place in the sum would go untested
        tensors["encoder.norm.weight"] = torch.rand(LAYERS, WIDTH, generator=generator) + 0.5
        tensors["encoder.norm.bias"] = torch.randn(LAYERS, WIDTH, generator=generator)
    return tensors


@pytest.fixture
def features():
    return torch.randn(BATCH, LAYERS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)) * 3 + 1


@pytest.fixture
def masks():
    generator = torch.Generator().manual_seed(2)
    return encoder.sample_masks(DRAWS, BATCH, LAYERS, TOKENS, keep=0.6, generator=generator)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_one_product_equals_the_textbook_layer_by_layer(features, masks, activation):
    params = fresh()
    expected = textbook.encode(params, features, masks, activation)
    found = encoder.encode(params, encoder.normalise(features), masks, activation=activation)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == (DRAWS, BATCH, LAYERS, 2, WIDTH)
        assert (ours - theirs).abs().max() < 1e-5


def test_gradients_equal_the_textbook(features, masks):
    gradients = []
    for function, inputs in ((encoder.encode, encoder.normalise(features)), (textbook.encode, features)):
        params = {name: value.requires_grad_() for name, value in fresh().items()}
        mean, log_std = function(params, inputs, masks)
        loss = (mean * torch.linspace(-1, 1, WIDTH)).sum() + log_std.exp().square().sum()
        gradients.append(torch.autograd.grad(loss, list(params.values())))
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-5


def test_no_mask_is_the_mask_that_keeps_all(features):
    params = fresh()
    whole = encoder.encode(params, encoder.normalise(features), None)
    kept = encoder.encode(params, encoder.normalise(features), torch.ones(1, BATCH, LAYERS, TOKENS))
    for a, b in zip(whole, kept, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_std_may_see_the_whole_image(features, masks):
    params = fresh()
    mean, log_std = encoder.encode(params, encoder.normalise(features), masks, mask_std=False)
    masked_mean, masked_log_std = encoder.encode(params, encoder.normalise(features), masks)
    whole = encoder.encode(params, encoder.normalise(features), None)[1]
    assert torch.allclose(mean, masked_mean, atol=1e-6)
    assert torch.allclose(log_std, whole.expand_as(log_std), atol=1e-6)
    assert not torch.allclose(masked_log_std, whole.expand_as(log_std), atol=1e-3)


def test_pooled_start_gives_the_mean_of_the_tokens_and_a_constant_std(features):
    mean, log_std = encoder.encode(fresh("pooled", log_variance=-4.0), encoder.normalise(features), None)
    expected = encoder.normalise(features).mean(2)  # (batch, layers, width)
    assert torch.allclose(mean[0, :, :, 0], expected, atol=1e-5)
    assert torch.allclose(log_std, torch.full_like(log_std, -2.0))


def test_masks_keep_cls_and_the_stated_share():
    masks = encoder.sample_masks(50, 20, 3, 40, keep=0.7, generator=torch.Generator().manual_seed(0))
    assert bool((masks[..., 0] == 1).all())
    assert abs(masks[..., 1:].mean().item() - 0.7) < 0.01
    assert not torch.equal(masks[0, 0, 0], masks[0, 0, 1])
    assert not torch.equal(masks[0, 0, 0], masks[1, 0, 0])
