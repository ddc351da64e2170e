"""Drawing fewer prompts at test: what it may change and what it may not."""

import pytest
import torch

from fedprompt.backbone.cache import Batch, frozen_features
from fedprompt.methods import methods
from fedprompt.methods.base import Task
from fedprompt.randomness import torch_generator
from fedprompt.serve.predictor import Predictor

IMAGES, CLASSES, SAMPLES = 40, 4, 6


def build(backbone, **settings):
    kind = methods()["pfedbayespt"]
    defaults = {"length": 2, "keep": 0.4, "samples": SAMPLES, "encoder_start": "random"}
    return kind(kind.Settings(**defaults | settings), Task(backbone, CLASSES, 2))


@pytest.fixture
def case(tiny_backbone):
    """A batch, and parameters under which the draws of many images disagree."""
    method = build(tiny_backbone)
    generator = torch_generator(0, "case")
    pixels = torch.randint(0, 256, (IMAGES, 3, 16, 16), generator=generator).to(torch.uint8)
    frozen = frozen_features(tiny_backbone, pixels, method.needs)
    embedded = tiny_backbone.vit.embed(tiny_backbone.normalise(pixels))
    batch = Batch(torch.zeros(IMAGES, dtype=torch.long), embedded, None, frozen["features"])
    state = method.initial(0)
    params = {**state.shared, **state.personal}
    params = {name: value + 0.3 * torch.randn(value.shape, generator=generator) for name, value in params.items()}
    return batch, params


def predict(method, case):
    batch, params = case
    with torch.no_grad():
        return method.predict(params, batch, torch_generator(0, "predict"))


def test_the_case_is_a_hard_one(tiny_backbone, case):
    draws = predict(build(tiny_backbone), case)
    leaders = draws.argmax(-1)
    assert (leaders != leaders[0]).any(0).sum() > 5  # images whose draws disagree on the class


def test_stopping_when_nothing_can_change_never_changes_a_class(tiny_backbone, case):
    full, early = predict(build(tiny_backbone), case), predict(build(tiny_backbone, stop_early=1.0), case)
    assert torch.equal(full.mean(0).argmax(-1), early.nanmean(0).argmax(-1))
    assert early.isnan().any()


@pytest.mark.parametrize("sample_noise", [False, True])
def test_the_draws_that_are_made_are_those_of_all_draws(tiny_backbone, case, sample_noise):
    full = predict(build(tiny_backbone, sample_noise=sample_noise), case)
    early = predict(build(tiny_backbone, sample_noise=sample_noise, stop_early=0.3), case)
    made = ~early.isnan()
    assert made[0].all()
    assert (made[:-1] | ~made[1:]).all()  # none is made after one was left out
    assert torch.allclose(full[made], early[made], atol=1e-5)


def test_a_smaller_tolerance_makes_fewer_draws_down_to_one(tiny_backbone, case):
    made = [
        float((~predict(build(tiny_backbone, stop_early=against), case).isnan()[..., 0]).sum(0).float().mean())
        for against in (1.0, 0.3, 0.1, 0.0)
    ]
    assert made == sorted(made, reverse=True)
    assert made[0] > made[1] > made[2] > made[3] == 1


def test_the_number_of_rows_in_a_forward_changes_nothing(tiny_backbone, case):
    together, apart = predict(build(tiny_backbone), case), predict(build(tiny_backbone, rows=IMAGES + 1), case)
    assert torch.allclose(together, apart, atol=1e-6)


def test_the_predictor_leaves_out_draws_that_were_not_made(tiny_backbone, case):
    _, params = case
    images = torch.randint(0, 256, (8, 3, 16, 16), generator=torch_generator(1, "x")).to(torch.uint8)
    found = Predictor(build(tiny_backbone, stop_early=0.1), params, ("a", "b", "c", "d"), 0)(images)
    assert found.draws.isnan().any()
    assert torch.allclose(found.probabilities.sum(-1), torch.ones(8), atol=1e-5)
    assert bool(torch.isfinite(found.spread).all())
