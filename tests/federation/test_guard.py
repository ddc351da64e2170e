"""Every update is checked before it touches the model, and the round goes on without a bad one."""

import math

import pytest
import torch

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.guard import refuse
from fedprompt.federation.round import finish_round
from fedprompt.methods import method_class
from fedprompt.methods.base import Task, Update

REGISTERED = 24


@pytest.fixture
def method(tiny_backbone):
    kind = method_class("fedvpt-d")
    return kind(kind.Settings(head="global", length=2), Task(tiny_backbone, classes=3, clients=3))


@pytest.fixture
def expected(method):
    return method.expected(method.initial(0))


def update(expected, client=1, examples=REGISTERED, **changed):
    return Update(client, {name: value + client for name, value in expected.items()} | changed, examples)


def with_value(like, value):
    changed = like.clone()
    changed.view(-1)[-1] = value
    return changed


BAD = {
    "nan": lambda like: {"head.weight": with_value(like["head.weight"], math.nan)},
    "inf": lambda like: {"head.weight": with_value(like["head.weight"], math.inf)},
    "minus inf": lambda like: {"head.weight": with_value(like["head.weight"], -math.inf)},
    "a shape that would broadcast": lambda like: {"head.weight": like["head.weight"][:1]},
    "a scalar": lambda like: {"head.bias": torch.tensor(0.0)},
    "one dimension more": lambda like: {"head.bias": like["head.bias"][None]},
    "double": lambda like: {"head.bias": like["head.bias"].double()},
    "half": lambda like: {"head.bias": like["head.bias"].half()},
    "a foreign tensor": lambda like: {"head.scale": torch.ones(1)},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_tensor_is_refused_by_client_and_name(kind, expected):
    changed = BAD[kind](expected)
    reason = refuse(update(expected, **changed), expected, REGISTERED)
    assert reason is not None
    assert "client 1" in reason
    assert next(iter(changed)) in reason


def test_a_missing_tensor_is_refused(expected):
    sent = update(expected)
    del sent.tensors["head.bias"]
    reason = refuse(sent, expected, REGISTERED)
    assert reason is not None
    assert "client 1" in reason
    assert "head.bias" in reason


@pytest.mark.parametrize("examples", [0, -3, REGISTERED + 1, 10**12, math.nan, math.inf])
def test_a_count_that_cannot_be_is_refused(expected, examples):
    reason = refuse(update(expected, examples=examples), expected, REGISTERED)
    assert reason is not None
    assert "client 1" in reason
    assert str(REGISTERED) in reason


def test_a_good_update_is_let_through(expected):
    assert refuse(update(expected), expected, REGISTERED) is None
    assert refuse(update(expected, examples=1), expected, REGISTERED) is None


def finish(method, updates, registered=None):
    fresh = method.initial(0)
    state = FederationState(4, fresh.shared, fresh.server, {}, {0: 2})
    kept = {sent.client: {"own": torch.ones(1)} for sent in updates}
    return finish_round(method, state, fresh.personal, updates, kept, registered or dict.fromkeys(range(3), REGISTERED))


def test_the_round_goes_on_without_the_refused(method, expected):
    good, bad = update(expected, 0), update(expected, 1, **BAD["nan"](expected))
    after, refused = finish(method, [good, bad])
    alone, _ = finish(method, [good])
    assert len(refused) == 1
    assert "client 1" in refused[0]
    assert after.round == 5
    assert after.participations == {0: 3}
    assert after.personal.keys() == {0}, "a refused client's personal tensors are not kept"
    for name, value in alone.shared.items():
        assert torch.equal(after.shared[name], value)


def test_an_absurd_count_does_not_outweigh_the_others(method, expected):
    after, refused = finish(method, [update(expected, 0), update(expected, 1, examples=10**9)])
    assert len(refused) == 1
    assert torch.equal(after.shared["head.bias"], expected["head.bias"])


def test_a_client_that_was_not_asked_is_refused(method, expected):
    after, refused = finish(method, [update(expected, 0), update(expected, 7)])
    assert len(refused) == 1
    assert "client 7" in refused[0]
    assert torch.equal(after.shared["head.bias"], expected["head.bias"])


def test_a_client_counts_once_however_often_it_answers(method, expected):
    after, refused = finish(method, [update(expected, 0), update(expected, 1), update(expected, 1)])
    twice, _ = finish(method, [update(expected, 0), update(expected, 1)])
    assert len(refused) == 1
    assert "client 1" in refused[0]
    assert torch.equal(after.shared["head.bias"], twice.shared["head.bias"])


def test_a_round_without_any_usable_update_is_an_error_that_says_why(method, expected):
    with pytest.raises(UserError, match=r"Round 5 .*client 0 .*client 1 "):
        finish(method, [update(expected, client, examples=0) for client in (0, 1)])
    with pytest.raises(UserError, match="nobody answered"):
        finish(method, [])


def test_a_client_whose_own_tensors_ran_away_is_refused(method, expected):
    """A local head travels nowhere, so that no update shows it: it must not become the client's state."""
    fresh = method.initial(0)
    state = FederationState(0, fresh.shared, fresh.server)
    kept = {0: {"own": torch.ones(2)}, 1: {"own": torch.tensor([1.0, math.nan])}}
    updates = [update(expected, client) for client in (0, 1)]
    after, refused = finish_round(method, state, fresh.personal, updates, kept, {0: REGISTERED, 1: REGISTERED})
    assert len(refused) == 1
    assert "client 1" in refused[0]
    assert after.personal.keys() == {0}


def test_a_round_that_a_hundred_clients_spoil_is_still_one_sentence(method, expected):
    registered = dict.fromkeys(range(100), REGISTERED)
    with pytest.raises(UserError, match="and 97 more") as caught:
        finish(method, [update(expected, client, examples=0) for client in range(100)], registered)
    assert len(str(caught.value)) < 300


def test_updates_weigh_as_their_images(method, expected):
    after, _ = finish(method, [update(expected, 0, 6), update(expected, 2, 18)], {0: 6, 2: 18})
    assert torch.allclose(after.shared["head.bias"], expected["head.bias"] + 1.5)
