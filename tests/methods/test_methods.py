"""What is particular to each method."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedprompt.backbone.cache import Batch, frozen_features
from fedprompt.backbone.weights import load_backbone
from fedprompt.bayes.objective import surrogate_elbo
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.methods import method_class, methods
from fedprompt.methods.base import Context, State, Task, Update, weighted_mean
from fedprompt.randomness import torch_generator


def build(key, backbone, **settings):
    kind = methods()[key]
    return kind(kind.Settings(**settings), Task(backbone, 3, 2))


def batch_for(method, images=6):
    backbone = method.task.backbone
    pixels = torch.randint(0, 256, (images, 3, 16, 16), generator=torch_generator(0, "x")).to(torch.uint8)
    frozen = frozen_features(backbone, pixels, method.needs)
    embedded = backbone.vit.embed(backbone.normalise(pixels))
    return Batch(torch.arange(images) % 3, embedded, frozen.get("cls"), frozen.get("features"))


def all_params(method, scatter=0.0):
    state = method.initial(0)
    params = {**method.payload(state, 0), **state.personal}
    generator = torch_generator(1, "scatter")
    return {name: value + scatter * torch.randn(value.shape, generator=generator) for name, value in params.items()}


def test_all_methods_of_this_release_are_found():
    baselines = ["head-tune", "fedvpt", "fedvpt-d", "pfedpg", "fedpr", "sgpt"]
    assert list(methods()) == [*baselines, "pfedbayespt", "pfedbayespt-g", "pfedbayespt-d", "fedprox"]


def test_weighted_mean_weighs_by_images():
    updates = [Update(0, {"a": torch.tensor([0.0])}, 1), Update(1, {"a": torch.tensor([4.0])}, 3)]
    assert weighted_mean(updates)["a"].item() == 3.0


def test_heads_go_where_the_mode_says(tiny_backbone):
    modes = {
        mode: build("fedvpt-d", tiny_backbone, head=mode).initial(0) for mode in ("local", "global", "local_plus_mean")
    }
    assert set(modes["local"].shared) == {"prompt"}
    assert set(modes["global"].shared) == {"prompt", "head.weight", "head.bias"}
    assert not modes["global"].personal
    assert set(modes["local_plus_mean"].shared) == {"prompt", "mean_head.weight", "mean_head.bias"}
    assert set(modes["local_plus_mean"].personal) == {"head.weight", "head.bias"}


def test_local_plus_mean_never_overwrites_a_clients_head_and_serves_new_clients(tiny_backbone):
    method = build("fedvpt-d", tiny_backbone, head="local_plus_mean")
    params = all_params(method, scatter=1.0)
    sent = method.upload(params, Context({}, 1, 0, torch.Generator()))
    assert torch.equal(sent["mean_head.weight"], params["head.weight"])
    fresh = method.initial(0)
    state = State({**fresh.shared, **sent}, fresh.personal, {})
    assert not any("head" in name for name in method.payload(state, 0))
    assert torch.equal(method.newcomer(state)["head.weight"], params["head.weight"])
    alone = build("fedvpt-d", tiny_backbone, head="local_plus_mean", new_head="fresh")
    assert torch.equal(alone.newcomer(state)["head.weight"], fresh.personal["head.weight"])


@pytest.mark.parametrize("start", ["blank", "tokens", "uniform"])
def test_prompts_start_as_named(tiny_backbone, start):
    method = build("fedvpt-d", tiny_backbone, prompt_start=start)
    prompt = method.initial(0).shared["prompt"]
    assert prompt.shape == (2, 10, 24)
    bound = (6 / (3 * 4 * 4 + 24)) ** 0.5
    assert (prompt.abs().max() <= bound) == (start == "uniform")


def test_blank_prompts_hardly_move_the_feature_and_uniform_ones_do():
    backbone = load_backbone("mini")
    pixels = open_dataset(DataSettings(train_per_domain=5)).train.images(np.arange(30), 32)
    embedded = backbone.vit.embed(backbone.normalise(pixels))
    plain = backbone.vit.prompted(embedded)
    cosine = {}
    for start in ("blank", "uniform"):
        kind = methods()["fedvpt-d"]
        method = kind(kind.Settings(prompt_start=start), Task(backbone, 10, 6))
        prompted = backbone.vit.prompted(embedded, method.prompts(method.initial(0).shared))
        cosine[start] = F.cosine_similarity(plain, prompted).mean().item()
    assert cosine["blank"] > cosine["uniform"]


@pytest.mark.parametrize(("draws", "extra"), [(1, 1), (3, 0), (2, 3)])
def test_the_loss_is_minus_the_mean_bound(tiny_backbone, draws, extra):
    """Draw by draw with the same noise, through the public function."""
    method = build("pfedbayespt", tiny_backbone, draws=draws, extra_draws=extra, kl_weight=0.7, kl_reduction="sum")
    params, batch = all_params(method, scatter=0.1), batch_for(method)
    found = method.loss(params, batch, Context({}, 1, 0, torch_generator(0, "noise")))

    generator = torch_generator(0, "noise")
    masks = method.masks(draws + extra, batch, generator)
    mean, log_std = method.posterior(params, batch, masks)
    noise = torch.randn(mean[:draws].shape, generator=generator)
    prompt = mean[:draws] + log_std[:draws].exp() * noise
    log_likelihood = torch.stack(
        [method.log_likelihoods(params, batch, one[None])[0, torch.arange(6), batch.labels] for one in prompt]
    )
    own, others = (mean[:draws], log_std[:draws]), (mean[draws:], log_std[draws:])
    expected = -surrogate_elbo(log_likelihood, prompt, *own, *others, kl_weight=0.7).mean()
    assert torch.allclose(found, expected, rtol=1e-4)


def test_no_kl_weight_leaves_cross_entropy(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, kl_weight=0.0)
    context = Context({}, 1, 0, torch_generator(0, "noise"))
    loss = method.loss(all_params(method, 0.1), batch_for(method), context)
    assert loss.item() == pytest.approx(context.logs["cross_entropy"][0], rel=1e-5)


def test_warm_up_grows_linearly(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, kl_weight=1.0, kl_reduction="sum", kl_warmup_rounds=4)
    assert [method._kl_weight(number, 48) for number in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]


def test_conditional_prior_is_centred_on_the_whole_image(tiny_backbone):
    """With one Gaussian component and hardly any mask, mean and prior mean agree, so only the std is paid for."""
    kwargs = {"kl_weight": 1.0, "kl_reduction": "sum", "keep": 1.0, "extra_draws": 0, "log_variance_start": 0.0}
    conditional = build("pfedbayespt", tiny_backbone, prior="conditional", **kwargs)
    context = Context({}, 1, 0, torch_generator(0, "noise"))
    conditional.loss(all_params(conditional), batch_for(conditional), context)
    assert context.logs["kl_per_dimension"][0] == pytest.approx(0.0, abs=1e-5)


def test_probabilities_are_averaged_over_v_draws_of_the_mean(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, samples=4, keep=0.5)
    params, batch = all_params(method, scatter=0.3), batch_for(method)
    draws = method.predict(params, batch, torch_generator(0, "evaluate"))
    masks = method.masks(4, batch, torch_generator(0, "evaluate"))
    mean, _ = method.posterior(params, batch, masks)
    expected = torch.stack([method.log_likelihoods(params, batch, one[None])[0].exp() for one in mean])
    assert draws.shape == (4, 6, 3)
    assert torch.allclose(draws, expected, atol=1e-5)
    assert not torch.allclose(draws[0], draws[1], atol=1e-4)


@pytest.mark.parametrize(("key", "settings", "draws"), [
    ("pfedbayespt-d", {}, 1),
    ("pfedbayespt-g", {}, 1),
    ("pfedbayespt-g", {"sample_noise": True}, 5),
    ("pfedbayespt", {}, 5),
    ("pfedbayespt", {"noise": False}, 5),
])  # fmt: skip
def test_each_variant_draws_as_often_as_it_should(tiny_backbone, key, settings, draws):
    method = build(key, tiny_backbone, **settings)
    params, batch = all_params(method), batch_for(method)
    assert len(method.predict(params, batch, torch_generator(0, "evaluate"))) == draws


def test_the_deterministic_variant_has_no_std_network_and_no_randomness(tiny_backbone):
    method = build("pfedbayespt-d", tiny_backbone)
    assert not any("std" in name for name in method.initial(0).shared)
    params, batch = all_params(method, 0.1), batch_for(method)
    losses = {method.loss(params, batch, Context({}, 1, 0, torch_generator(seed, "noise"))).item() for seed in (0, 1)}
    assert len(losses) == 1


def test_masks_alone_give_the_cross_entropy_of_masked_means(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, noise=False, keep=0.5, draws=3)
    assert not any("std" in name for name in method.initial(0).shared)
    params, batch = all_params(method, 0.3), batch_for(method)
    loss = method.loss(params, batch, Context({}, 1, 0, torch_generator(0, "noise")))
    mean, _ = method.posterior(params, batch, method.masks(3, batch, torch_generator(0, "noise")))
    scores = [method.log_likelihoods(params, batch, one[None])[0, torch.arange(6), batch.labels] for one in mean]
    assert torch.allclose(loss, -torch.stack(scores).mean(), rtol=1e-5)
    assert not torch.allclose(scores[0], scores[1], atol=1e-4)


def test_the_gaussian_variant_has_noise_but_no_mask(tiny_backbone):
    method = build("pfedbayespt-g", tiny_backbone)
    params, batch = all_params(method, 0.1), batch_for(method)
    context = Context({}, 1, 0, torch_generator(0, "noise"))
    losses = {method.loss(params, batch, Context({}, 1, 0, torch_generator(seed, "noise"))).item() for seed in (0, 1)}
    assert len(losses) == 2
    method.loss(params, batch, context)
    assert "mask_shift" not in context.logs
    assert context.logs["mixture_gap"][0] == 0


def test_what_tells_whether_the_bayesian_part_lives_is_logged(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone)
    context = Context({}, 1, 0, torch_generator(0, "noise"))
    method.loss(all_params(method, 0.1), batch_for(method), context)
    expected = {"cross_entropy", "kl_per_dimension", "mixture_gap", "mean_rms", "std_mean", "mask_shift"}
    assert set(context.logs) == expected


def test_without_global_prompt_only_the_instance_prompt_remains(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, length=0)
    assert "prompt" not in method.initial(0).shared
    assert torch.isfinite(
        method.loss(all_params(method), batch_for(method), Context({}, 1, 0, torch_generator(0, "n")))
    )


def test_prompts_may_have_a_learning_rate_of_their_own(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, learning_rate=0.1, encoder_learning_rate=0.2)
    names = ("head.weight", "prompt", "encoder.norm.bias")
    assert [method.learning_rate(name) for name in names] == [0.1, 0.1, 0.2]
    method = build("pfedbayespt", tiny_backbone, learning_rate=0.1, encoder_learning_rate=0.2, prompt_learning_rate=3.0)
    assert [method.learning_rate(name) for name in names] == [0.1, 3.0, 0.2]


def test_the_encoders_norm_may_have_a_learning_rate_of_its_own(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, encoder_learning_rate=0.2, norm_learning_rate=5.0)
    own = {name: method.learning_rate(name) for name in method.initial(0).shared if name.startswith("encoder.")}
    assert {name for name, rate in own.items() if rate == 5.0} == {"encoder.norm.weight", "encoder.norm.bias"}
    assert set(own.values()) == {0.2, 5.0}


def test_depths_may_differ(tiny_backbone):
    method = build("pfedbayespt", tiny_backbone, global_depth=2, instance_depth=1)
    shared = method.initial(0).shared
    assert shared["prompt"].shape[0] == 2
    assert shared["encoder.mean.fc1.weight"].shape[0] == 1
    assert torch.isfinite(
        method.loss(all_params(method), batch_for(method), Context({}, 1, 0, torch_generator(0, "n")))
    )


def test_unknown_method_names_the_nearest():
    with pytest.raises(Exception, match="did you mean 'pfedbayespt'"):
        method_class("pfedbayesp")
