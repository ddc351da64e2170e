"""What is particular to SGPT: who selects which group, what each stage trains, how the server counts and averages."""

import pytest
import torch
from reference.vit import textbook_block
from torch.nn import functional as F

from fedprompt.backbone.cache import Batch, ClientData
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import FederationState, load_state, save_state
from fedprompt.federation.guard import refuse
from fedprompt.federation.round import adapt_client, finish_round, train_client
from fedprompt.methods.base import Context, State, Task, Update
from fedprompt.methods.sgpt import SGPT, orthogonal_keys
from fedprompt.methods.training import Schedule, train
from fedprompt.randomness import torch_generator

CLASSES, IMAGES = 3, 22  # not a multiple of the batch


def build(backbone, **settings):
    return SGPT(SGPT.Settings(**{"groups": 4} | settings), Task(backbone, CLASSES, 2))


def client_data(backbone, client):
    pixels = torch.randint(0, 256, (IMAGES, 3, 16, 16), generator=torch_generator(client, "pixels")).to(torch.uint8)
    return ClientData(backbone, lambda: pixels, torch.arange(IMAGES) % CLASSES)


@pytest.fixture(scope="module")
def clients(tiny_backbone):
    return [client_data(tiny_backbone, client) for client in range(2)]


def scattered(method, amount=0.5):
    """All tensors of a client, moved from their start so that no two groups are alike."""
    state = method.initial(0)
    params = {**method.payload(state, 0), **state.personal}
    generator = torch_generator(1, "scatter")
    return {
        name: value + amount * torch.randn(value.shape, generator=generator) if name != "selected" else value
        for name, value in params.items()
    }


def play(method, state, clients, number, epochs=1):
    """One round of both clients."""
    fresh = method.initial(0).personal
    groups = State(state.shared, fresh, state.server)
    updates, kept = [], {}
    for client, data in enumerate(clients):
        kept[client], update = train_client(
            method,
            method.payload(groups, client),
            state.personal.get(client, fresh),
            data,
            Schedule(epochs, 8),
            seed=0,
            round_number=number,
            client=client,
        )
        updates.append(update)
    after, refused = finish_round(method, state, fresh, updates, kept, {0: IMAGES, 1: IMAGES})
    assert not refused
    return after, updates


def begin(method):
    fresh = method.initial(0)
    return FederationState(0, fresh.shared, fresh.server)


def with_keys(cosines):
    """Parameters and a batch whose queries have these cosines (images, groups) with the keys (unit vectors)."""
    cosines = torch.tensor(cosines)
    images, groups = cosines.shape
    rest = (1 - cosines.square().sum(1, keepdim=True)).sqrt()
    width = 24
    queries = torch.cat([cosines, rest, torch.zeros(images, width - groups - 1)], dim=1)
    return {"keys": 5 * torch.eye(groups, width)}, Batch(torch.zeros(images).long(), cls=3 * queries)


# Selection


def test_training_avoids_groups_that_were_often_chosen_and_testing_does_not(tiny_backbone):
    method = build(tiny_backbone)
    params, batch = with_keys([[0.8, 0.5, 0.1, 0.0], [0.1, 0.2, 0.6, 0.0]])
    cosine = method.similarity(params, batch)
    torch.testing.assert_close(cosine, torch.tensor([[0.8, 0.5, 0.1, 0.0], [0.1, 0.2, 0.6, 0.0]]))
    # (1 - cos) * frequency: 0.10, 0.05, 0.27, 0.10 for the first image and 0.45, 0.08, 0.12, 0.10 for the second
    counts = torch.tensor([50, 10, 30, 10])
    assert method.balanced_choice(cosine, counts).tolist() == [1, 1]
    assert cosine.argmax(-1).tolist() == [0, 2]  # testing: see the forward below


def test_before_anything_is_counted_training_takes_the_nearest_key(tiny_backbone):
    method = build(tiny_backbone)
    state = method.initial(0)
    cosine = torch.rand(50, 4, generator=torch_generator(0, "cosine"))
    counts = method.payload(state, 0)["selected"]
    assert counts.tolist() == [0, 0, 0, 0]
    assert torch.equal(method.balanced_choice(cosine, counts), cosine.argmax(-1))


def test_a_group_never_chosen_is_weighed_by_the_floor(tiny_backbone):
    cosine = torch.tensor([[0.9, -1.0, -1.0]])
    counts = torch.tensor([4, 0, 996])
    assert build(tiny_backbone).balanced_choice(cosine, counts).item() == 0  # 0.1 * 0.0045 < 2 * 0.0005
    assert build(tiny_backbone, balance_floor=1e-6).balanced_choice(cosine, counts).item() == 1


def test_a_negative_part_of_the_query_counts_for_nothing(tiny_backbone):
    params = {"keys": torch.eye(2, 24)}
    query = torch.zeros(1, 24)
    query[0, 0], query[0, 1], query[0, 2] = 3.0, -7.0, 4.0
    cosine = build(tiny_backbone).similarity(params, Batch(torch.zeros(1).long(), cls=query))
    torch.testing.assert_close(cosine, torch.tensor([[0.6, 0.0]]))


def test_a_batch_may_take_its_majority_group(tiny_backbone):
    method = build(tiny_backbone, selection="batch_majority")
    cosine = F.one_hot(torch.tensor([3, 1, 1, 3, 0, 1]), 4).float() * 0.5
    assert method.balanced_choice(cosine, torch.zeros(4)).tolist() == [1] * 6
    tie = F.one_hot(torch.tensor([3, 1, 1, 3]), 4).float() * 0.5
    assert method.balanced_choice(tie, torch.zeros(4)).tolist() == [1] * 4


def test_the_majority_rules_in_training_alone(tiny_backbone, clients):
    one, many = build(tiny_backbone, selection="batch_majority"), build(tiny_backbone)
    params = scattered(one)
    batch = clients[0].batch(torch.arange(8), one.needs)
    assert len(one.similarity(params, batch).argmax(-1).unique()) > 1
    assert torch.equal(one.logits(params, batch), many.logits(params, batch))
    context = Context({}, 1, 0, torch.Generator(), part="groups")
    one.loss(params, batch, context)
    assert context.memo["assigned"].max() == 8


def test_the_query_may_come_from_an_early_layer(tiny_backbone, clients):
    vit = tiny_backbone.vit
    index = torch.arange(3)
    x = vit.embed(tiny_backbone.normalise(clients[0].pixels[index]))
    early = vit.norm(textbook_block(vit.blocks[0], x))[:, 0]
    found = clients[0].batch(index, build(tiny_backbone, query_blocks=1).needs).cls
    torch.testing.assert_close(found, early, rtol=0, atol=1e-4)
    assert not torch.allclose(clients[0].batch(index, build(tiny_backbone).needs).cls, early, atol=1e-2)


# The forward


@pytest.mark.parametrize("settings", [{}, {"shared_length": 2, "group_length": 3, "first_length": 2}])
def test_scores_use_the_mean_of_cls_and_the_tokens_of_each_images_own_group(tiny_backbone, clients, settings):
    """Image by image through whole blocks: shared tokens join block 0, those of its group block 1, behind CLS."""
    method = build(tiny_backbone, **settings)
    params = scattered(method)
    batch = clients[0].batch(torch.arange(6), method.needs)
    cosine = method.similarity(params, batch)
    chosen = cosine.argmax(-1)
    assert len(chosen.unique()) > 1
    params["selected"] = F.one_hot(chosen[0], 4)  # must not matter
    assert not torch.equal(method.balanced_choice(cosine, params["selected"]), chosen)
    length = method.settings.group_length
    vit, scores = method.vit, []
    for image, group in zip(batch.embedded, chosen, strict=True):
        common = [params["shared_prompt"][0], *params.get("first_prompt", [])]
        x = torch.cat([image[:1], *common, image[1:]]).unsqueeze(0)
        x = textbook_block(vit.blocks[0], x)
        x = torch.cat([x[:, :1], params["group_prompt"][group, :1].reshape(1, length, -1), x[:, 1:]], dim=1)
        out = vit.norm(textbook_block(vit.blocks[1], x))[0, : 1 + length]
        scores.append(out.mean(0) @ params["head.weight"].T + params["head.bias"])
    torch.testing.assert_close(method.logits(params, batch), torch.stack(scores), rtol=0, atol=1e-4)


def test_the_first_stage_reads_cls_with_the_shared_prompts_alone(tiny_backbone, clients):
    method = build(tiny_backbone)
    params = scattered(method)
    batch = clients[0].batch(torch.arange(6), method.needs)
    vit = method.vit
    x = torch.cat([batch.embedded, params["shared_prompt"][0].expand(6, -1, -1)], dim=1)
    for block in vit.blocks:
        x = textbook_block(block, x)
    logits = vit.norm(x)[:, 0] @ params["head.weight"].T + params["head.bias"]
    context = Context({}, 1, 0, torch.Generator(), part="shared")
    torch.testing.assert_close(method.loss(params, batch, context), F.cross_entropy(logits, batch.labels))
    assert not context.memo


def test_the_second_stage_adds_the_mean_cosine_with_the_chosen_keys(tiny_backbone, clients):
    params = scattered(build(tiny_backbone))
    batch = clients[0].batch(torch.arange(6), build(tiny_backbone).needs)
    losses = {
        weight: build(tiny_backbone, key_weight=weight).loss(
            params, batch, Context({}, 1, 0, torch.Generator(), part="groups")
        )
        for weight in (0.0, 2.0)
    }
    query = F.relu(batch.cls)
    near = torch.stack([F.cosine_similarity(query, key.expand(6, -1)) for key in params["keys"]]).amax(0).mean()
    torch.testing.assert_close(losses[2.0], losses[0.0] - 2 * near)


# Training


def test_each_stage_moves_its_own_tensors_and_no_other(tiny_backbone, clients):
    method = build(tiny_backbone, head_start="torch", first_length=1)
    state = method.initial(0)
    params = {**method.payload(state, 0), **state.personal}
    first, second = method.stages(params)
    moved = []
    for stage in (first, second):
        context = Context(params, 1, 0, torch.Generator())
        after = train(method, params, clients[0], Schedule(1, 8), context, 0, stages=[stage])
        moved.append({name for name in params if not torch.equal(params[name], after[name])})
    head = {"head.weight", "head.bias"}
    assert moved == [head | {"shared_prompt", "first_prompt"}, head | {"group_prompt", "keys"}]


def test_keys_and_prompts_have_learning_rates_of_their_own(tiny_backbone):
    method = build(tiny_backbone, learning_rate=0.1, prompt_learning_rate=3.0, key_learning_rate=0.5)
    names = ("head.bias", "shared_prompt", "first_prompt", "group_prompt", "keys")
    assert [method.learning_rate(name) for name in names] == [0.1, 3.0, 3.0, 3.0, 0.5]
    assert build(tiny_backbone, learning_rate=0.1).learning_rate("group_prompt") == 0.1


def test_counts_grow_by_the_images_of_the_second_stage_and_survive_the_disk(tiny_backbone, clients, tmp_path):
    method = build(tiny_backbone)
    state, updates = play(method, begin(method), clients, 1, epochs=3)
    for update in updates:
        assert update.tensors["assigned"].sum() == 3 * IMAGES
        assert "selected" not in update.tensors
    assert torch.equal(state.server["counts"], sum(update.tensors["assigned"] for update in updates))
    save_state(tmp_path / "state.safetensors", state, "mark")
    loaded = load_state(tmp_path / "state.safetensors", "mark")
    straight, later = play(method, state, clients, 2)
    resumed, _ = play(method, loaded, clients, 2)
    assert torch.equal(straight.server["counts"], resumed.server["counts"])
    assert straight.server["counts"].sum() == (3 + 1) * 2 * IMAGES
    assert all(torch.equal(straight.shared[name], resumed.shared[name]) for name in straight.shared)
    assert not torch.equal(updates[0].tensors["assigned"], later[0].tensors["assigned"])  # the balance works


def test_clients_are_told_how_often_each_group_was_chosen_so_far(tiny_backbone):
    method = build(tiny_backbone)
    fresh = method.initial(0)
    state = State(fresh.shared, fresh.personal, {"counts": torch.tensor([6, 2, 0, 2])})
    payload = method.payload(state, 0)
    assert payload["selected"].tolist() == [6, 2, 0, 2]
    assert payload.keys() == {*fresh.shared, "selected"}


def test_a_clients_own_choices_count_as_it_goes(tiny_backbone):
    """Four batches of the same image: after the nearest group was taken, the others get their turn."""
    method = build(tiny_backbone)
    state = method.initial(0)
    params, batch = with_keys([[0.6, 0.5, 0.4, 0.3]])
    own = {**method.payload(state, 0), **state.personal, **params}
    embedded = torch.zeros(1, method.vit.shape.tokens, method.vit.shape.width)
    whole = Batch(torch.zeros(1, dtype=torch.long), embedded, batch.cls)
    context = Context({}, 1, 0, torch.Generator(), part="groups")
    seen = []
    for _ in range(4):
        method.loss(own, whole, context)
        seen.append(context.memo["assigned"].tolist())
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("head", ["local", "global", "local_plus_mean"])
def test_heads_live_where_the_setting_says(tiny_backbone, clients, head):
    method = build(tiny_backbone, head=head)
    state, updates = play(method, begin(method), clients, 1)
    fresh = method.initial(0)
    for update in updates:
        assert refuse(update, method.expected(fresh), IMAGES) is None
    names = {name for name in updates[0].tensors if "head" in name}
    assert names == {"local": set(), "global": {"head.weight", "head.bias"}}.get(
        head, {"mean_head.weight", "mean_head.bias"}
    )
    assert bool(state.personal[0]) == (head != "global")


# Aggregation


def answers(method, values, assigned, images):
    """Updates whose tensors are filled with one value each."""
    expected = method.expected(method.initial(0))
    return [
        Update(
            client,
            {name: torch.full_like(like, value) for name, like in expected.items() if name != "assigned"}
            | {"assigned": torch.tensor(counts)},
            count,
        )
        for client, (value, counts, count) in enumerate(zip(values, assigned, images, strict=True))
    ]


def test_keys_are_weighed_by_the_images_of_their_group_and_few_images_weigh_alike(tiny_backbone):
    method = build(tiny_backbone, key_momentum=0.0, group_momentum=0.0)
    updates = answers(method, [0.0, 1.0], [[90, 0, 50, 51], [30, 0, 0, 0]], images=[10, 30])
    after = method.aggregate(method.initial(0), updates)
    keys = after.shared["keys"]
    assert keys.shape == (4, 24)
    # group 0: 30 of 120; group 1: nobody; group 2: 50 images are few; group 3: 51 are not
    torch.testing.assert_close(keys, torch.tensor([0.25, 0.5, 0.5, 0.0]).unsqueeze(1).expand(4, 24))
    assert after.server["counts"].tolist() == [120, 0, 50, 51]
    assert (after.shared["shared_prompt"] == 0.75).all()
    assert (after.shared["group_prompt"] == 0.75).all()
    plain = build(tiny_backbone, key_momentum=0.0, few=1000)
    assert (plain.aggregate(plain.initial(0), updates).shared["keys"] == 0.5).all()


def test_the_server_moves_group_prompts_and_keys_only_part_of_the_way(tiny_backbone):
    method = build(tiny_backbone, group_momentum=0.25, key_momentum=0.75)
    fresh = method.initial(0)
    after = method.aggregate(fresh, answers(method, [1.0, 1.0], [[60] * 4, [60] * 4], images=[10, 30])).shared
    torch.testing.assert_close(after["group_prompt"], 0.25 * fresh.shared["group_prompt"] + 0.75)
    torch.testing.assert_close(after["keys"], 0.75 * fresh.shared["keys"] + 0.25)
    assert (after["shared_prompt"] == 1).all()


def test_a_negative_count_takes_no_share(tiny_backbone):
    method = build(tiny_backbone, key_momentum=0.0)
    updates = answers(method, [0.0, 1.0], [[-500] * 4, [100] * 4], images=[10, 10])
    after = method.aggregate(method.initial(0), updates)
    assert after.server["counts"].tolist() == [100] * 4
    assert (after.shared["keys"] == 1).all()


# Starts and shapes


def test_keys_start_orthonormal_and_from_the_seed():
    keys = orthogonal_keys(20, 24, torch_generator(0, "keys"))
    torch.testing.assert_close(keys @ keys.T, torch.eye(20), rtol=0, atol=1e-6)
    # Gram-Schmidt keeps the first direction
    first = (torch.rand(20, 24, generator=torch_generator(0, "keys")) * 2 - 1)[0]
    torch.testing.assert_close(keys[0], F.normalize(first, dim=0))


def test_more_groups_than_the_width_is_one_clear_sentence(tiny_backbone):
    with pytest.raises(UserError, match=r"methods\.sgpt\.groups is 25, but a backbone of width 24"):
        build(tiny_backbone, groups=25)


def test_blocks_are_cut_to_the_depth_of_the_backbone_and_groups_start_apart(tiny_backbone):
    shared = build(tiny_backbone, group_length=2).initial(0).shared  # defaults for 12 layers, here 2
    assert shared["shared_prompt"].shape == (1, 1, 24)
    assert shared["group_prompt"].shape == (4, 1, 2, 24)
    assert len(shared["group_prompt"].flatten(1).unique(dim=0)) == 4
    assert build(tiny_backbone, shared_blocks=1, group_blocks=1).initial(0).shared["group_prompt"].shape[1] == 1


def test_the_authors_start_is_zeros_for_all_and_uniform_for_groups(tiny_backbone):
    shared = build(tiny_backbone, prompt_start="authors").initial(0).shared
    assert not shared["shared_prompt"].any()
    bound = (6 / (3 * 4 * 4 + 24)) ** 0.5
    assert 0.5 * bound < shared["group_prompt"].abs().max() <= bound


# New clients


def test_a_new_clients_head_trains_on_the_path_that_is_tested(tiny_backbone, clients):
    """Its fine-tuning follows the gradient of the test scores, and neither balances nor counts."""
    method = build(tiny_backbone, momentum=0.0)
    start = scattered(method)
    fresh = method.initial(0)
    head = {name: start[name] for name in ("head.weight", "head.bias")}
    shared = {name: start[name] for name in fresh.shared}
    state = State(shared, head, {"counts": torch.tensor([1000, 0, 0, 0])})
    data = clients[1]
    after = adapt_client(method, state, data, Schedule(1, IMAGES), seed=0, round_number=3, client=1)
    weight = head["head.weight"].clone().requires_grad_(True)
    batch = data.batch(torch.arange(IMAGES), method.needs)
    logits = method.logits({**start, "head.weight": weight}, batch)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, batch.labels), [weight])
    torch.testing.assert_close(after["head.weight"], head["head.weight"] - 0.01 * gradient, rtol=0, atol=1e-5)
    assert all(torch.equal(after[name], value) for name, value in shared.items())
