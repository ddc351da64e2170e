"""Every update is checked before it touches the model, and the round goes on without a bad one."""

import math

import pytest
import torch

from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState
from fedprompt.federation.guard import outliers, refuse
from fedprompt.federation.round import finish_round, round_record
from fedprompt.federation.settings import FederationSettings
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


def changed_by(expected, client, length, examples=REGISTERED):
    """An update that moves every tensor by this much in each number."""
    return Update(client, {name: value + length for name, value in expected.items()}, examples)


def cohort(expected, lengths, examples=None):
    counts = examples or [REGISTERED] * len(lengths)
    return [changed_by(expected, client, *pair) for client, pair in enumerate(zip(lengths, counts, strict=True))]


def far(expected, lengths, examples=None, factor=10.0):
    updates = cohort(expected, lengths, examples)
    return outliers(updates, dict.fromkeys(range(len(lengths)), expected), factor)


def test_a_change_far_beyond_the_cohorts_is_refused_by_client_and_tensor(expected):
    found = far(expected, [1.0, 1.2, 0.8, 50.0])
    assert found.keys() == {3}
    assert "client 3" in found[3]
    assert any(name in found[3] for name in expected)


def test_a_change_of_the_cohorts_size_is_let_through(expected):
    assert far(expected, [1.0, 3.0, 0.2, 8.0]) == {}


def test_clients_who_hardly_move_make_nobody_an_outlier(expected):
    assert far(expected, [0.0, 0.0, 0.0, 1e-4]) == {}
    assert far(expected, [0.0, 0.0, 0.0, 100.0]).keys() == {3}


def test_more_images_may_go_further_in_proportion(expected):
    assert far(expected, [1.0, 1.0, 1.0, 50.0], [24, 24, 24, 240]) == {}
    assert far(expected, [1.0, 1.0, 1.0, 200.0], [24, 24, 24, 240]).keys() == {3}


def test_among_three_nobody_is_an_outlier_and_zero_turns_the_check_off(expected):
    assert far(expected, [1.0, 1.0, 1e6]) == {}
    assert far(expected, [1.0, 1.0, 1.0, 1e6], factor=0.0) == {}


def test_what_was_not_sent_is_measured_per_image():
    counts = {0: (10, 10.0), 1: (200, 200.0), 2: (30, 30.0), 3: (20, 2e4)}
    updates = [Update(client, {"count": torch.tensor([value])}, images) for client, (images, value) in counts.items()]
    assert outliers(updates, {client: {} for client in counts}, 10.0).keys() == {3}


def test_the_round_goes_on_without_an_outlier(method, expected):
    updates = cohort(expected, [1.0, 1.0, 1.0, 500.0])
    registered = dict.fromkeys(range(4), REGISTERED)
    after, refused = finish(method, updates, registered)
    assert [sentence.split(" changed")[0] for sentence in refused] == ["client 3"]
    assert torch.allclose(after.shared["head.bias"], expected["head.bias"] + 1)
    assert 3 not in after.participations


def test_fewer_usable_updates_than_wanted_are_an_error(method, expected):
    fresh = method.initial(0)
    state = FederationState(0, fresh.shared, fresh.server)
    updates = [update(expected, 0), update(expected, 1, examples=0)]
    registered = {0: REGISTERED, 1: REGISTERED}
    rules = FederationSettings(min_clients=2)
    with pytest.raises(UserError, match="1 of 2 usable updates: client 1"):
        finish_round(method, state, fresh.personal, updates, {}, registered, rules)


def test_the_record_holds_the_figures_of_the_accepted_alone(method, expected):
    good = Update(0, update(expected, 0).tensors, REGISTERED, {"loss": 2.0})
    bad = Update(1, update(expected, 1).tensors, 0, {"loss": 1e9})
    fresh = method.initial(0)
    state = FederationState(0, fresh.shared, fresh.server)
    after, refused = finish_round(method, state, fresh.personal, [bad, good], {}, dict.fromkeys((0, 1), REGISTERED))
    record = round_record(state, after, [0, 1], [bad, good], refused)
    assert record["training"] == {"loss": 2.0}
    assert record["participants"] == [0, 1]
    assert len(record["refused"]) == 1
