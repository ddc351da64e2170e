"""The training loop: what a schedule does to the steps."""

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
    return {name: {**update.tensors, **kept}[name] - start[name] for name in start}


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
