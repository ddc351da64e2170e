"""The in-process engine: what it computes depends on the settings alone."""

import pytest
import torch

from fedprompt.config import load_config
from fedprompt.errors import UserError
from fedprompt.federation.simulation import Simulation

METHODS = ["head-tune", "fedvpt-d", "pfedbayespt"]


@pytest.fixture(scope="module")
def simulate(tiny_toml):
    return lambda **changes: Simulation(
        load_config(tiny_toml, {key.replace("__", "."): value for key, value in changes.items()})
    )


def play(simulation, rounds=2, evaluate=False):
    """The last state, the records, and an evaluation at the end."""
    state, records = simulation.start(), []
    for _ in range(rounds):
        state, record = simulation.round(state)
        records.append(record | (simulation.evaluate(state) if evaluate else {}))
    return state, records, simulation.evaluate(state)


def tensors(state):
    own = {f"{client}/{name}": value for client, group in state.personal.items() for name, value in group.items()}
    return {**state.shared, **state.server, **own}


def identical(a, b):
    a, b = tensors(a), tensors(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", METHODS)
def test_evaluating_changes_nothing(simulate, method):
    watched, _, watched_end = play(simulate(method=method), evaluate=True)
    alone, _, alone_end = play(simulate(method=method), evaluate=False)
    assert identical(watched, alone)
    assert watched_end == alone_end
    simulation = simulate(method=method)
    assert simulation.evaluate(alone) == simulation.evaluate(alone) == alone_end


@pytest.mark.parametrize("method", ["head-tune", "pfedbayespt"])
def test_features_computed_anew_give_what_kept_ones_give(simulate, method):
    kept, _, kept_end = play(simulate(method=method))
    anew, _, anew_end = play(simulate(method=method, backbone__feature_memory=0.0))
    for name, value in tensors(kept).items():
        assert torch.allclose(value, tensors(anew)[name], rtol=1e-3, atol=1e-4), name
    assert kept_end["nll"] == pytest.approx(anew_end["nll"], rel=1e-3)
    images = 12  # of a client; one that sits on the border may tip over
    for client, value in kept_end["accuracy"].items():
        assert abs(value - anew_end["accuracy"][client]) <= 1 / images + 1e-9


def test_a_budget_of_zero_keeps_no_feature(simulate):
    simulation = simulate(backbone__feature_memory=0.0)
    play(simulation, rounds=1)
    assert not any(data._kept for data in simulation.train_data + simulation.held_data)


def test_a_round_is_a_function_of_the_state(simulate):
    """Nothing hides in the engine: a second engine goes on from the first one's state."""
    simulation = simulate(training__participation=0.5)
    first, _ = simulation.round(simulation.start())
    straight, _ = simulation.round(first)
    other, _ = simulate(training__participation=0.5).round(first)
    assert identical(straight, other)
    again, _ = simulation.round(simulation.start())
    assert identical(first, again)


def test_only_the_cohort_trains_and_its_members_are_counted(simulate):
    simulation = simulate(training__participation=0.5)
    state, records, _ = play(simulation, rounds=3)
    seen = [client for record in records for client in record["participants"]]
    assert [record["participants"] for record in records] == [simulation.cohort(number) for number in (1, 2, 3)]
    assert state.participations == {client: seen.count(client) for client in set(seen)}
    assert state.personal.keys() == set(seen)


def test_the_steps_announced_are_the_steps_taken(simulate):
    simulation = simulate(training__participation=0.5, training__epochs=2)
    taken = []
    simulation.round(simulation.start(), lambda: taken.append(1))
    assert len(taken) == simulation.steps(1)


def test_a_refused_client_is_recorded_and_the_round_goes_on(simulate):
    simulation = simulate(method="fedvpt-d")
    upload, calls = simulation.method.upload, []

    def spoiled(params, context):
        calls.append(1)
        sent = upload(params, context)
        return {name: value * float("nan") for name, value in sent.items()} if len(calls) == 2 else sent

    simulation.method.upload = spoiled
    state, record = simulation.round(simulation.start())
    assert len(record["refused"]) == 1
    assert "client 1 " in record["refused"][0]
    assert state.participations == {0: 1, 2: 1, 3: 1}
    assert all(bool(torch.isfinite(value).all()) for value in state.shared.values())


def test_members_are_evaluated_and_new_clients_are_not(simulate):
    simulation = simulate(new_clients__hold_out=[1, 3])
    state, records, end = play(simulation, rounds=1)
    assert (simulation.members, simulation.newcomers) == ([0, 2], [1, 3])
    assert records[0]["participants"] == [0, 2]
    assert list(end["accuracy"]) == ["0", "2"]
    figures, params = simulation.adapt_newcomers(state)
    assert list(figures["accuracy"]) == ["1", "3"]
    assert figures["average"] == pytest.approx(sum(figures["accuracy"].values()) / 2)
    assert params.keys() == {1, 3}


def test_half_holds_out_the_last_and_random_half_depends_on_the_seed(simulate):
    assert simulate(new_clients__hold_out="half").newcomers == [2, 3]
    assert simulate(new_clients__hold_out="none").newcomers == []
    drawn = [simulate(new_clients__hold_out="random_half", seed=seed).newcomers for seed in (0, 0, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len({tuple(clients) for clients in drawn}) > 1
    assert all(len(clients) == 2 for clients in drawn)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [([4], "client 4, but clients are 0 to 3"), ([-1], "client -1"), ([0, 1, 2, 3, 3], "nobody is left to train")],
)
def test_a_bad_list_of_new_clients_is_refused(simulate, wanted, sentence):
    with pytest.raises(UserError, match=sentence):
        simulate(new_clients__hold_out=wanted)


def test_nobody_can_be_half_of_one_client(simulate):
    with pytest.raises(UserError, match="one client"):
        simulate(new_clients__hold_out="half", partition__clients=1)


def test_evaluating_on_validation_needs_a_validation_split(simulate):
    with pytest.raises(UserError, match=r"data\.validation"):
        simulate(evaluation__split="validation")


def test_the_validation_split_is_disjoint_from_training_and_test(simulate):
    simulation = simulate(evaluation__split="validation", data__validation=0.3)
    for part, train, held in zip(simulation.parts, simulation.train_data, simulation.held_data, strict=True):
        assert len(train) == len(part.train)
        assert len(held) == len(part.validation) > 0
        assert not set(part.train) & set(part.validation)
        labels = torch.from_numpy(simulation.dataset.train.labels[part.validation])
        assert torch.equal(held.labels, labels)


def test_bytes_are_those_of_the_tensors_a_client_sends(simulate):
    simulation = simulate(method="head-tune")
    width, classes = simulation.backbone.vit.shape.width, 3
    assert simulation.method.bytes_sent(simulation.fresh) == 4 * (width * classes + classes)


def test_the_backbone_is_one_for_all_engines(simulate):
    assert simulate().backbone.vit is simulate(method="fedvpt").backbone.vit
