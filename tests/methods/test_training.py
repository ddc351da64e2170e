"""The training loop: what a schedule and a limit do to the steps."""

import tomllib

import pytest
import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.config import TrainingSettings
from fedprompt.federation.round import train_client
from fedprompt.methods import methods
from fedprompt.methods.base import HEAD, Task
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

ROUNDS = 8


@pytest.fixture(scope="module")
def data(tiny_backbone):
    pixels = torch.randint(0, 255, (8, 3, 16, 16), generator=torch_generator(0, "images"), dtype=torch.uint8)
    return ClientData(tiny_backbone, lambda: pixels, torch.arange(8) % 3)


def steps(method, data, schedule, round_number):
    """How far one step of all images moves each tensor; the order of so many images does not matter."""
    state = method.initial(0)
    start = {**method.payload(state, 0), **state.personal}
    kept, update = train_client(
        method, method.payload(state, 0), state.personal, data, schedule, seed=0, round_number=round_number, client=0
    )
    ended = {**update.tensors, **kept}
    return {name: ended[name] - start[name] for name in start if name in ended}


@pytest.mark.parametrize("head", ["local", "global"])
def test_a_cosine_shortens_the_steps_of_what_is_shared_and_of_nothing_else(tiny_backbone, data, head):
    kind = methods()["fedvpt-d"]
    method = kind(
        kind.Settings(head=head, head_start="torch", learning_rate=1.0, prompt_learning_rate=100.0),
        Task(tiny_backbone, 3, 2),
    )
    settings = TrainingSettings(rounds=ROUNDS, epochs=1, batch=8, schedule="cosine")
    cosine, constant = Schedule.of(settings), Schedule.of(settings.model_copy(update={"schedule": "constant"}))
    first, half, last = 1, ROUNDS // 2 + 1, ROUNDS
    for number, share in ((first, 1.0), (half, 0.5), (last, 0.038)):
        full, less = steps(method, data, constant, number), steps(method, data, cosine, number)
        for name, step in full.items():
            assert step.abs().max() > 0.01, "too short a step would prove nothing"
            factor = 1.0 if head == "local" and name in HEAD else share
            torch.testing.assert_close(less[name], factor * step, rtol=0.01, atol=1e-5, msg=name)


def limited(key, backbone, limit, rate=1e4, **more):
    kind = methods()[key]
    settings = {"head_start": "torch", "learning_rate": 0.1, "prompt_learning_rate": rate, "step_limit": limit, **more}
    return kind(kind.Settings(**settings), Task(backbone, 3, 2))


def shares(method, moved):
    """How far each token has moved, as a share of its length, by the tensor it is in."""
    state = method.initial(0)
    start = {**method.payload(state, 0), **state.personal}
    names = [name for name in start if method.step_limit(name) is not None]
    return {name: moved[name].norm(dim=-1) / start[name].norm(dim=-1) for name in names}


@pytest.mark.parametrize("key", [key for key in methods() if key != "head-tune"])
def test_no_token_of_any_method_moves_further_than_the_limit(tiny_backbone, data, key):
    one = Schedule(1, 8)
    free, bound = (limited(key, tiny_backbone, limit) for limit in (1e6, 0.25))
    far, near = (shares(method, steps(method, data, one, 1)) for method in (free, bound))
    assert any(name.endswith("prompt") for name in near)
    for name, moved in near.items():
        if name.endswith("prompt") and name != "group_prompt":  # of these only those that were chosen move
            assert far[name].max() > 0.5, f"{name}: too short a step would prove nothing"
        assert moved.max() <= 0.25 * 1.0001, name


def test_a_limit_that_no_step_reaches_changes_nothing(tiny_backbone, data):
    free, bound = (limited("fedvpt-d", tiny_backbone, limit, rate=0.01) for limit in (None, 0.5))
    schedule = Schedule(3, 4)
    for (name, step), other in zip(
        steps(free, data, schedule, 1).items(), steps(bound, data, schedule, 1).values(), strict=True
    ):
        assert step.abs().max() > 0
        assert torch.equal(step, other), name


def test_what_is_cut_from_a_step_is_not_made_up_for_by_momentum(tiny_backbone, data):
    """With a momentum of 0.9 a single step of any length would go on for ten more."""

    class Once(methods()["fedvpt-d"]):
        """A gradient in the first step alone."""

        def loss(self, params, batch, context):
            first = "loss" not in context.logs
            return super().loss(params, batch, context) * float(first) + 0 * params["prompt"].sum()

    kind = methods()["fedvpt-d"]
    settings = kind.Settings(head_start="torch", prompt_learning_rate=1e4, step_limit=0.1, momentum=0.9)
    method = Once(settings, Task(tiny_backbone, 3, 2))
    moved = shares(method, steps(method, data, Schedule(8, 8), 1))["prompt"]
    assert 0.2 < moved.max() <= 1.001 * sum(0.1 * 0.9**number for number in range(8))


def test_a_settings_file_can_lift_the_limit_of_a_preset():
    """TOML has no word for nothing; the run is then the same as one that never had a limit."""
    lifted = tomllib.loads("step_limit = inf")
    for method in methods().values():
        assert method.Settings(**lifted) == method.Settings()


def test_a_token_of_zeros_may_go_anywhere(tiny_backbone, data):
    method = limited("sgpt", tiny_backbone, 0.1, prompt_start="authors")
    assert steps(method, data, Schedule(1, 8), 1)["shared_prompt"].abs().max() > 0
