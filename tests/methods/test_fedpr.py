"""FedPR: what a step may not do to the global prompt."""

import pytest
import torch

from fedprompt.backbone.cache import ClientData
from fedprompt.errors import UserError
from fedprompt.federation.round import train_client
from fedprompt.methods import methods
from fedprompt.methods.base import Context, Task
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

LENGTH, WIDTH = 4, 24  # a fifth of 24 directions are 4, as many as the prompt's tokens


def build(backbone, key="fedpr", **settings):
    """A method whose prompts move far within a round."""
    kind = methods()[key]
    common = {"length": LENGTH, "head_start": "torch", "prompt_learning_rate": 30.0}
    return kind(kind.Settings(**common | settings), Task(backbone, 3, 2))


@pytest.fixture(scope="module")
def data(tiny_backbone):
    labels = torch.arange(16) % 3
    noise = torch.randint(0, 60, (16, 3, 16, 16), generator=torch_generator(0, "images"))
    pixels = (noise + 80 * labels[:, None, None, None]).to(torch.uint8)
    return ClientData(tiny_backbone, lambda: pixels, labels)


def moved(method, data, round_number=2):
    """The prompt as the server sent it, how a client's round of two epochs moved it, and how its head."""
    state = method.initial(0)
    generator = torch_generator(0, "learned")
    start = state.shared["prompt"]
    payload = method.payload(state, 0) | {"prompt": torch.randn(start.shape, generator=generator)}
    kept, update = train_client(
        method, payload, state.personal, data, Schedule(2, 8), seed=0, round_number=round_number, client=0
    )
    return payload["prompt"], update.tensors["prompt"] - payload["prompt"], kept["head.weight"]


def overlap(prompt, change):
    """The largest cosine between a change and the rows of the prompt, over layers and tokens."""
    cosine = (change @ prompt.mT) / (change.norm(dim=-1, keepdim=True) * prompt.norm(dim=-1).unsqueeze(1))
    return cosine.abs().max().item()


@pytest.mark.parametrize("exact_null", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("variant", "layers"), [("deep", 2), ("shallow", 1)])
def test_a_round_leaves_the_rows_of_the_global_prompt_alone(
    tiny_backbone, data, variant, layers, exact_null, normalise
):
    """Through the real loop, with momentum and with weight decay, which by itself pulls along those rows."""
    options = {"variant": variant, "exact_null": exact_null, "normalise": normalise}
    method = build(tiny_backbone, momentum=0.9, weight_decay=0.003, **options)
    prompt, change, _ = moved(method, data)
    assert change.shape == (layers, LENGTH, WIDTH)
    assert change.norm(dim=-1).min() > 0.01  # far more than float32 loses when it is added to the prompt
    assert overlap(prompt, change) < 1e-4


def test_without_projection_rows_would_move(tiny_backbone, data):
    """The test above is worth something: FedVPT-D, and a projector that drops nothing, do overlap."""
    prompt, change, _ = moved(build(tiny_backbone, keep_ratio=1.0, weight_decay=0.003), data)
    assert overlap(prompt, change) > 0.05


@pytest.mark.parametrize(("width", "keep", "dropped"), [(24, 0.8, 4), (768, 0.8, 153), (320, 0.8, 64), (10, 0.9, 1)])
def test_a_fixed_share_of_directions_is_dropped(tiny_backbone, width, keep, dropped):
    method = build(tiny_backbone, keep_ratio=keep)
    prompt = torch.randn(1, 3, width, generator=torch_generator(0, "prompt"))
    assert method.dropped(prompt).shape == (1, dropped, width)


def test_the_first_directions_are_those_of_the_gram_matrix(tiny_backbone):
    """Dropped are the leading eigenvectors of p^T p, as in the authors' code, found without forming it."""
    method = build(tiny_backbone, keep_ratio=0.9)  # drops 2 of 24
    prompt = torch.randn(2, LENGTH, WIDTH, generator=torch_generator(0, "prompt"))
    found = method.dropped(prompt)
    _, vectors = torch.linalg.eigh((prompt.mT @ prompt).double())  # ascending
    leading = vectors[..., -2:].mT
    assert torch.allclose(found.mT @ found, leading.mT @ leading, atol=1e-5)


def projector(method, prompt):
    """T, by projecting the identity."""
    context = Context({"prompt": prompt}, 2, 0, torch.Generator())
    identity = torch.eye(WIDTH).expand(len(prompt), WIDTH, WIDTH)
    return method.step("prompt", identity, context)


@pytest.mark.parametrize("exact_null", [False, True])
def test_the_projector_is_symmetric_and_idempotent_and_keeps_what_it_should(tiny_backbone, exact_null):
    method = build(tiny_backbone, exact_null=exact_null)
    prompt = torch.randn(2, LENGTH, WIDTH, generator=torch_generator(0, "prompt"))
    found = projector(method, prompt)
    assert torch.allclose(found, found.mT, atol=1e-6)
    assert torch.allclose(found @ found, found, atol=1e-5)
    assert torch.allclose(found.diagonal(dim1=-2, dim2=-1).sum(-1), torch.full((2,), WIDTH - 4.0), atol=1e-4)


@pytest.mark.parametrize("exact_null", [False, True])
def test_normalised_it_has_length_one(tiny_backbone, exact_null):
    prompt = torch.randn(2, LENGTH, WIDTH, generator=torch_generator(0, "prompt"))
    prompt[1, 1] = prompt[1, 0]  # layers may span different numbers of directions
    plain = projector(build(tiny_backbone, exact_null=exact_null), prompt)
    found = projector(build(tiny_backbone, exact_null=exact_null, normalise=True), prompt)
    assert torch.allclose(torch.linalg.matrix_norm(found), torch.ones(2), atol=1e-5)
    assert torch.allclose(found, plain / torch.linalg.matrix_norm(plain)[:, None, None], atol=1e-6)


def test_exact_null_drops_the_row_space_and_no_more(tiny_backbone):
    method = build(tiny_backbone, exact_null=True)
    prompt = torch.zeros(2, LENGTH, WIDTH)
    prompt[0, :, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])  # one direction
    prompt[1, 0, 1], prompt[1, 1, 2] = 5.0, 1.0  # two
    expected = torch.ones(2, WIDTH)
    expected[0, 0] = expected[1, 1] = expected[1, 2] = 0
    assert torch.allclose(projector(method, prompt), torch.diag_embed(expected), atol=1e-6)


def test_it_acts_on_the_width_axis_and_never_mixes_tokens(tiny_backbone):
    """A step of one token stays one of that token: no other moves. With length = width both sides would fit."""
    method = build(tiny_backbone, length=WIDTH)
    prompt = torch.randn(1, WIDTH, WIDTH, generator=torch_generator(0, "prompt"))
    step = torch.zeros(1, WIDTH, WIDTH)
    step[0, 5] = torch.randn(WIDTH, generator=torch_generator(0, "step"))
    found = method.step("prompt", step, Context({"prompt": prompt}, 2, 0, torch.Generator()))
    assert found[0, 5].norm() > 0
    assert not found[0, :5].any()
    assert not found[0, 6:].any()


@pytest.mark.parametrize("project", [False, True])
def test_the_first_round_is_projected_if_asked_for(tiny_backbone, data, project):
    method = build(tiny_backbone, project_first_round=project, weight_decay=0.003)
    prompt, change, _ = moved(method, data, round_number=1)
    assert (overlap(prompt, change) < 1e-4) == project


def test_the_head_is_trained_as_without_projection(tiny_backbone, data):
    method = build(tiny_backbone, exact_null=True)
    head = torch.ones(3, WIDTH)
    context = Context({"prompt": torch.ones(2, LENGTH, WIDTH)}, 2, 0, torch.Generator())
    assert torch.equal(method.step("head.weight", head, context), head)
    assert not context.memo
    assert moved(method, data)[2].any()


def test_directions_are_found_once_in_a_clients_round_and_from_what_was_received(tiny_backbone, data, monkeypatch):
    method = build(tiny_backbone)
    calls, dropped = [], method.dropped
    monkeypatch.setattr(method, "dropped", lambda prompt: calls.append(prompt.clone()) or dropped(prompt))
    prompt, _, _ = moved(method, data)
    assert len(calls) == 1
    assert torch.equal(calls[0], prompt)


def test_shallow_without_projection_is_fedvpt(tiny_backbone, data):
    shallow = build(tiny_backbone, variant="shallow", keep_ratio=1.0)
    fedvpt = build(tiny_backbone, "fedvpt")
    assert torch.equal(shallow.initial(0).shared["prompt"], fedvpt.initial(0).shared["prompt"])
    assert torch.equal(moved(shallow, data)[1], moved(fedvpt, data)[1])


def test_a_depth_for_the_shallow_variant_is_one_clear_mistake(tiny_backbone):
    with pytest.raises(UserError, match="depth is for the deep variant"):
        build(tiny_backbone, variant="shallow", depth=2)
