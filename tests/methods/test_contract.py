"""The contract that every method keeps, whatever file it lives in."""

import pytest
import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.federation.checkpoint import FederationState, load_state, save_state
from fedprompt.federation.guard import refuse
from fedprompt.federation.round import adapt_client, fine_tune, finish_round, train_client
from fedprompt.methods import methods
from fedprompt.methods.base import HEAD, NEWCOMER, State, Task
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

CLASSES, CLIENTS = 3, 2


@pytest.fixture(params=list(methods()))
def method(request, tiny_backbone):
    kind = methods()[request.param]
    return kind(kind.Settings(), Task(tiny_backbone, CLASSES, CLIENTS))


@pytest.fixture(scope="module")
def clients(tiny_backbone):
    """Two clients whose images show their class by brightness."""
    data = []
    for client in range(CLIENTS):
        generator = torch_generator(client, "test images")
        labels = torch.arange(24) % CLASSES
        noise = torch.randint(0, 60, (24, 3, 16, 16), generator=generator)
        pixels = (noise + 80 * labels[:, None, None, None]).to(torch.uint8)
        data.append(ClientData(tiny_backbone, lambda pixels=pixels: pixels, labels))
    return data


def one_round(method, state, clients, round_number=1):
    fresh = method.initial(0).personal
    updates, kept = [], {}
    for client, data in enumerate(clients):
        payload = method.payload(State(state.shared, fresh, state.server), client)
        personal = state.personal.get(client, fresh)
        kept[client], update = train_client(
            method, payload, personal, data, Schedule(1, 8), seed=0, round_number=round_number, client=client
        )
        updates.append(update)
    after, refused = finish_round(method, state, fresh, updates, kept, {0: 24, 1: 24})
    assert not refused
    return after, updates


def start(method):
    fresh = method.initial(0)
    return FederationState(0, fresh.shared, fresh.server)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_start_depends_on_the_seed_alone(method):
    first, second = method.initial(3), method.initial(3)
    for group in ("shared", "personal", "server"):
        assert same(getattr(first, group), getattr(second, group))


def test_no_tensor_is_in_two_groups(method):
    state = method.initial(0)
    names = [*state.shared, *state.personal, *state.server]
    assert len(names) == len(set(names))


def test_a_client_sends_what_is_expected_and_no_personal_tensor(method, clients):
    before = start(method)
    after, updates = one_round(method, before, clients)
    fresh = method.initial(0)
    for update in updates:
        assert refuse(update, method.expected(fresh), registered=24) is None
        assert not update.tensors.keys() & fresh.personal.keys()
        assert not update.tensors.keys() & fresh.server.keys()
    for personal in after.personal.values():
        assert personal.keys() == fresh.personal.keys()


def test_training_moves_every_trained_tensor_and_lowers_the_loss(method, clients):
    state = start(method)
    losses = []
    for number in range(1, 6):
        state, updates = one_round(method, state, clients, number)
        losses.append(sum(update.metrics["cross_entropy"] for update in updates))
    assert losses[-1] < losses[0]
    fresh = method.initial(0)
    for name, value in state.shared.items():
        assert not torch.equal(value, fresh.shared[name]), f"{name} never moved"


def test_training_leaves_its_start_and_the_backbone_as_they_were(method, clients):
    state = start(method)
    shared = {name: value.clone() for name, value in state.shared.items()}
    weights = {name: value.clone() for name, value in method.vit.state_dict().items()}
    one_round(method, state, clients)
    assert same(state.shared, shared)
    assert same(method.vit.state_dict(), weights)
    assert not any(parameter.requires_grad for parameter in method.vit.parameters())


def test_a_round_does_not_depend_on_the_order_of_answers(method, clients):
    state = start(method)
    after, updates = one_round(method, state, clients)
    swapped, _ = finish_round(method, state, method.initial(0).personal, updates[::-1], {}, {0: 24, 1: 24})
    assert same(after.shared, swapped.shared)
    assert same(after.server, swapped.server)


def test_state_survives_the_disk_and_the_next_round_is_identical(method, clients, tmp_path):
    state, _ = one_round(method, start(method), clients)
    save_state(tmp_path / "state.safetensors", state, "mark")
    loaded = load_state(tmp_path / "state.safetensors", "mark")
    assert loaded.participations == state.participations
    straight, _ = one_round(method, state, clients, 2)
    resumed, _ = one_round(method, loaded, clients, 2)
    assert same(straight.shared, resumed.shared)
    assert same(straight.server, resumed.server)
    for client in range(CLIENTS):
        assert same(straight.personal[client], resumed.personal[client])


def test_predictions_are_probabilities_and_change_nothing(method, clients):
    state, _ = one_round(method, start(method), clients)
    fresh = method.initial(0)
    params = {**method.payload(State(state.shared, fresh.personal, state.server), 0), **state.personal[0]}
    before = {name: value.clone() for name, value in params.items()}
    batch = clients[0].batch(torch.arange(7), method.needs)
    with torch.no_grad():
        found = method.predict(params, batch, torch_generator(0, "evaluate"))
        again = method.predict(params, batch, torch_generator(0, "evaluate"))
    assert found.shape[1:] == (7, CLASSES)
    assert torch.allclose(found.sum(-1), torch.ones(found.shape[:2]), atol=1e-5)
    assert torch.equal(found, again)
    assert same(params, before)


def test_a_new_client_fine_tunes_its_head_and_nothing_else(method, clients, monkeypatch):
    """Whatever else it has comes from the server, after what the method lets them exchange first."""
    state, _ = one_round(method, start(method), clients)
    met = [State(state.shared, method.initial(0).personal, state.server)]
    meet = method.meet
    monkeypatch.setattr(method, "meet", lambda state, update: met.append(meet(state, update)) or met[-1])
    after = adapt_client(method, met[0], clients[1], Schedule(2, 8), seed=0, round_number=2, client=1)
    assert len(met) == 1 + method.joining_rounds
    before = method.newcomer(met[-1])
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert torch.equal(value, before[name]) != name.startswith("head."), name


def test_a_head_on_features_computed_once_is_the_head_on_images(method, clients, monkeypatch):
    """The shortcut for new clients of methods without randomness; the others must not take it."""
    state, _ = one_round(method, start(method), clients)
    params = method.newcomer(State(state.shared, method.initial(0).personal, state.server))

    def head():
        return fine_tune(method, params, clients[1], Schedule(2, 8), seed=0, round_number=2, client=1)

    quick = head()
    monkeypatch.setattr(type(method), "fixed_feature", False)
    slow = head()
    for name in HEAD:
        torch.testing.assert_close(quick[name], slow[name], rtol=0, atol=1e-5 * float(slow[name].abs().max()))


def test_a_new_client_changes_nothing_that_others_use(method, clients):
    """The server may learn about the one that joins; what it sends to all others stays as it is."""
    state, _ = one_round(method, start(method), clients)
    groups = State(state.shared, method.initial(0).personal, state.server)
    sent = method.payload(groups, NEWCOMER)
    _, update = train_client(
        method, sent, groups.personal, clients[1], Schedule(1, 8), seed=0, round_number=2, client=1
    )  # fmt: skip
    met = method.meet(groups, update)
    assert same(met.shared, groups.shared)
    assert same({name: met.server[name] for name in groups.server}, groups.server)
    for client in range(CLIENTS):
        assert same(method.payload(met, client), method.payload(groups, client))


def test_recomputed_features_equal_kept_ones(method, clients, tiny_backbone):
    kept = clients[0]
    anew = ClientData(tiny_backbone, lambda: kept.pixels, kept.labels, keep=False)
    index = torch.tensor([5, 2, 11])
    a, b = kept.batch(index, method.needs), anew.batch(index, method.needs)
    for name in ("labels", "embedded", "cls", "features"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        assert x is None or torch.allclose(x, y, atol=1e-5)
