"""pFedPG: what the server learns from prompts that moved, and what never leaves it."""

import pytest
import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.federation.round import adapt_client, train_client
from fedprompt.methods import methods
from fedprompt.methods.base import NEWCOMER, State, Task, Update
from fedprompt.methods.pfedpg import LEARNED, clipped, generate
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

CLIENTS, LENGTH, WIDTH = 3, 4, 24


def build(backbone, key="pfedpg", **settings):
    kind = methods()[key]
    return kind(kind.Settings(length=LENGTH, **settings), Task(backbone, 3, CLIENTS))


def awake(method, scatter=1.0):
    """A state whose generator does something: every matrix and descriptor away from its start."""
    state = method.initial(0)
    generator = torch_generator(0, "awake")
    server = dict(state.server)
    for name in LEARNED:
        server[name] = server[name] + scatter * torch.randn(server[name].shape, generator=generator) / WIDTH**0.5
    return State(state.shared, state.personal, server)


def answers(method, state, clients, way=0.1):
    """Updates of clients that moved their prompts, each its own way."""
    updates = []
    for client in clients:
        sent = method.payload(state, client)
        moved = {
            name: value + way * torch.randn(value.shape, generator=torch_generator(client, "way", name))
            for name, value in sent.items()
        }
        updates.append(Update(client, moved, 10 * (client + 1)))
    return updates


def distance(method, state, updates):
    """The mean over clients of half the squared distance between generated and trained prompts."""
    parts = [method.payload(state, u.client)["prompt"] - u.tensors["prompt"] for u in updates]
    return sum(0.5 * part.square().sum() for part in parts).item() / len(parts)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_servers_step_brings_generated_prompts_closer_to_trained_ones(tiny_backbone, momentum):
    """Down, not up: with the sign of the upstream gradient flipped the distance grows."""
    method = build(tiny_backbone, server_learning_rate=0.01, server_momentum=momentum)
    state = awake(method)
    updates = answers(method, state, range(CLIENTS))
    distances = [distance(method, state, updates)]
    for _ in range(3):
        # The clients' prompts stay where they are, so that what is left can only shrink.
        state = method.aggregate(state, updates)
        distances.append(distance(method, state, updates))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.96 * distances[0]


@pytest.mark.parametrize(("count", "shares"), [
    ("mean", [1 / 2, 1 / 2]),
    ("sum", [1.0, 1.0]),
    ("images", [10 / 40, 30 / 40]),
])  # fmt: skip
def test_the_product_is_the_gradient_of_half_the_squared_distance(tiny_backbone, count, shares):
    method = build(tiny_backbone, clients_count=count)
    state = awake(method)
    server = {name: value.double() for name, value in state.server.items()}
    updates = [
        Update(u.client, {"prompt": u.tensors["prompt"].double()}, u.examples) for u in answers(method, state, [0, 2])
    ]
    found = method.gradients(server, updates)

    leaves = {name: server[name].clone().requires_grad_(True) for name in LEARNED}
    loss = torch.zeros((), dtype=torch.float64)
    for update, share in zip(updates, shares, strict=True):
        prompt = generate(leaves, leaves["descriptors"][update.client])
        loss = loss + share * 0.5 * (prompt - update.tensors["prompt"]).square().sum()
    expected = torch.autograd.grad(loss, list(leaves.values()))
    for name, one, other in zip(LEARNED, found, expected, strict=True):
        assert one.abs().max() > 0, name
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12), name


def test_the_prompt_is_the_base_and_what_a_client_attends_to_in_it(tiny_backbone):
    """The paper's formula, token by token and number by number."""
    method = build(tiny_backbone, key_width=5, value_width=7)
    server = {name: value.double() for name, value in awake(method).server.items()}
    base, descriptor = server["base_prompt"][0], server["descriptors"][1]
    query = descriptor @ server["generator.query"]
    scores = torch.stack([query @ (token @ server["generator.key"]) for token in base]) / 5**0.5
    weights = scores.exp() / scores.exp().sum()
    assert weights.std() > 0.01
    value = sum(weight * (token @ server["generator.value"]) for weight, token in zip(weights, base, strict=True))
    expected = torch.stack([token + value @ server["generator.output"] for token in base])
    assert torch.allclose(generate(server, descriptor)[0], expected)


def test_clients_get_prompts_of_their_own(tiny_backbone):
    method = build(tiny_backbone)
    state = awake(method)
    prompts = [method.payload(state, client)["prompt"] for client in range(CLIENTS)]
    assert (prompts[0] - prompts[1]).abs().max() > 1e-3


@pytest.mark.parametrize("zero_output", [True, False])
def test_with_a_zero_output_the_first_round_is_that_of_fedvpt(tiny_backbone, zero_output):
    method = build(tiny_backbone, zero_output=zero_output)
    state = method.initial(0)
    fedvpt = build(tiny_backbone, "fedvpt").initial(0).shared["prompt"]
    for client in range(CLIENTS):
        prompt = method.payload(state, client)["prompt"]
        assert torch.equal(prompt, state.server["base_prompt"]) == zero_output
        assert torch.equal(prompt, fedvpt) == zero_output


@pytest.mark.parametrize("head", ["local", "global", "local_plus_mean"])
def test_nothing_of_the_generator_ever_travels(tiny_backbone, data, head):
    method = build(tiny_backbone, head=head, server_momentum=0.5)
    state = awake(method)
    payload = method.payload(state, 1)
    heads = {"head.weight", "head.bias"}
    assert payload.keys() == {"prompt"} | (heads if head == "global" else set())
    _, update = train_client(
        method, payload, state.personal, data, Schedule(1, 8), seed=0, round_number=1, client=1
    )  # fmt: skip
    sent = {"local": set(), "global": heads, "local_plus_mean": {f"mean_{name}" for name in heads}}[head]
    assert update.tensors.keys() == {"prompt"} | sent == method.expected(state).keys()
    assert state.shared.keys() == sent
    after = method.aggregate(state, [update])
    assert after.shared.keys() == sent
    assert after.server.keys() == state.server.keys()
    for name in sent:
        assert torch.equal(after.shared[name], update.tensors[name])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_descriptor_of_a_client_that_was_away_stays(tiny_backbone, momentum):
    """Even when it has a velocity from a round in which it took part."""
    method = build(tiny_backbone, server_learning_rate=0.1, server_momentum=momentum)
    state = awake(method)
    first = method.aggregate(state, answers(method, state, [0, 1, 2]))
    second = method.aggregate(first, answers(method, first, [0, 2]))
    moved = (second.server["descriptors"] - first.server["descriptors"]).abs().amax(-1) > 0
    assert moved.tolist() == [True, False, True]
    assert second.server["trained"].all()
    only = method.aggregate(state, answers(method, state, [1]))
    assert only.server["trained"].tolist() == [False, True, False]


def test_the_result_does_not_depend_on_the_order_of_answers(tiny_backbone):
    method = build(tiny_backbone, server_learning_rate=0.1, head="global", server_momentum=0.5)
    state = awake(method)
    updates = answers(method, state, range(CLIENTS))
    results = [
        method.aggregate(state, order) for order in (updates, updates[::-1], [updates[1], updates[0], updates[2]])
    ]
    for other in results[1:]:
        for name, value in results[0].server.items():
            assert torch.equal(value, other.server[name]), name


def test_momentum_carries_the_last_step_on(tiny_backbone):
    method = build(tiny_backbone, server_learning_rate=0.1, server_momentum=0.5, server_clip=None)
    state = awake(method)
    after = method.aggregate(state, answers(method, state, [0]))
    still = method.aggregate(after, answers(method, after, [0], way=0.0))  # no gradient: half of the last step
    for name in ("base_prompt", "generator.output"):
        first = after.server[name] - state.server[name]
        assert first.abs().max() > 0
        assert torch.allclose(still.server[name] - after.server[name], 0.5 * first, atol=1e-6)


def test_the_servers_gradient_is_clipped_as_one(tiny_backbone):
    short, long = (
        clipped([torch.tensor([3.0]), torch.tensor([4.0])], 10.0),
        clipped([torch.tensor([30.0]), torch.tensor([40.0])], 10.0),
    )
    assert [value.item() for value in short] == [3.0, 4.0]
    assert [value.item() for value in long] == pytest.approx([6.0, 8.0])
    method = build(tiny_backbone, server_learning_rate=1.0, server_clip=0.01)
    state = awake(method)
    after = method.aggregate(state, answers(method, state, [0, 1], way=5.0))
    way = sum((after.server[name] - state.server[name]).double().square().sum() for name in LEARNED).sqrt()
    assert way.item() == pytest.approx(0.01, rel=1e-2)


def test_with_rate_one_the_base_moves_as_an_average_of_prompts_does(tiny_backbone):
    """At the first step, with nothing yet from the generator: FedVPT's average, clients counted alike."""
    method = build(tiny_backbone, base_learning_rate=1.0, server_clip=None)
    state = method.initial(0)
    updates = answers(method, state, [0, 2])
    mean = (updates[0].tensors["prompt"] + updates[1].tensors["prompt"]) / 2
    assert torch.allclose(method.aggregate(state, updates).server["base_prompt"], mean, atol=1e-5)


# A client that joins after training


@pytest.fixture(scope="module")
def data(tiny_backbone):
    labels = torch.arange(16) % 3
    noise = torch.randint(0, 60, (16, 3, 16, 16), generator=torch_generator(0, "images"))
    pixels = (noise + 80 * labels[:, None, None, None]).to(torch.uint8)
    return ClientData(tiny_backbone, lambda: pixels, labels)


def test_meeting_a_new_client_moves_its_descriptor_and_nothing_else(tiny_backbone):
    method = build(tiny_backbone, server_learning_rate=0.1, head="global")
    state = awake(method)
    (update,) = answers(method, state, [NEWCOMER])
    before = {name: value.clone() for name, value in state.server.items()}
    met = method.meet(state, update)
    assert met.server.keys() - before.keys() == {"newcomer"}
    for name, value in before.items():
        assert torch.equal(met.server[name], value)
    assert met.shared is state.shared
    assert not torch.equal(met.server["newcomer"], method.descriptor(state.server, NEWCOMER))
    assert distance(method, met, [update]) < distance(method, state, [update])


@pytest.mark.parametrize("start", ["mean", "fresh"])
def test_a_new_client_starts_from_the_mean_of_those_that_trained_or_fresh(tiny_backbone, start):
    method = build(tiny_backbone, new_descriptor=start)
    state = awake(method)
    fresh = state.server["fresh_descriptor"]
    assert torch.equal(method.descriptor(state.server, NEWCOMER), fresh)  # nobody has trained yet
    after = method.aggregate(state, answers(method, state, [0, 2]))
    expected = after.server["descriptors"][[0, 2]].mean(0) if start == "mean" else fresh
    assert torch.equal(method.descriptor(after.server, NEWCOMER), expected)
    assert not any(torch.equal(fresh, row) for row in after.server["descriptors"])


def test_a_new_client_gets_a_generated_prompt_and_a_fresh_head(tiny_backbone):
    method = build(tiny_backbone)
    state = awake(method)
    params = method.newcomer(state)
    assert params.keys() == {"prompt", "head.weight", "head.bias"}
    assert torch.equal(params["prompt"], generate(state.server, state.server["fresh_descriptor"]))
    assert not params["head.weight"].any()


@pytest.mark.parametrize("rounds", [0, 2])
def test_joining_exchanges_shape_the_new_clients_prompt(tiny_backbone, data, rounds):
    """In the real exchange; without any, the prompt is that of the descriptor it starts from."""
    method = build(tiny_backbone, joining_rounds=rounds, prompt_learning_rate=30.0, server_learning_rate=1.0)
    state = awake(method)
    params = adapt_client(method, state, data, Schedule(1, 8), seed=0, round_number=2, client=2)
    assert torch.equal(params["prompt"], method.newcomer(state)["prompt"]) == (rounds == 0)
