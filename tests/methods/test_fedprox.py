"""FedProx: the pull, and the file as the example of a method in CONTRIBUTING."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fedprompt.backbone.cache import ClientData
from fedprompt.federation.round import adapt_client, train_client
from fedprompt.methods import fedprox, methods
from fedprompt.methods.base import Context, Task
from fedprompt.methods.fedprox import FedProx
from fedprompt.methods.training import Schedule
from fedprompt.randomness import torch_generator

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def build(key, backbone, **settings):
    kind = methods()[key]
    return kind(kind.Settings(**settings), Task(backbone, 3, 2))


@pytest.fixture(scope="module")
def data(tiny_backbone):
    labels = torch.arange(16) % 3
    noise = torch.randint(0, 60, (16, 3, 16, 16), generator=torch_generator(0, "images"))
    pixels = (noise + 80 * labels[:, None, None, None]).to(torch.uint8)
    return ClientData(tiny_backbone, lambda: pixels, labels)


def trained(method, data):
    """What a client sends after two epochs from the start."""
    state = method.initial(0)
    payload = method.payload(state, 0)
    _, update = train_client(
        method, payload, state.personal, data, Schedule(2, 8), seed=0, round_number=1, client=0
    )  # fmt: skip
    return payload, update.tensors


@pytest.mark.parametrize(
    ("head", "pulled"), [("local", {"prompt"}), ("global", {"prompt", "head.weight", "head.bias"})]
)
def test_the_pull_on_what_the_server_sent_is_mu_times_the_distance(tiny_backbone, data, head, pulled):
    """The gradient of the squared norm: mu (w - w_t), not a unit vector; a local head is not pulled."""
    gradients = {}
    for mu in (0.0, 0.3):
        method = build("fedprox", tiny_backbone, mu=mu, head=head)
        state = method.initial(0)
        received = method.payload(state, 0)
        generator = torch_generator(0, "away")
        params = {
            name: (value + torch.randn(value.shape, generator=generator)).requires_grad_(True)
            for name, value in {**received, **state.personal}.items()
        }
        context = Context(received, 1, 0, torch.Generator())
        loss = method.loss(params, data.batch(torch.arange(8), method.needs), context)
        gradients[mu] = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    for name in params:
        away = params[name].detach() - received[name] if name in pulled else torch.zeros(())
        assert torch.allclose(
            gradients[0.3][name] - gradients[0.0][name], (0.3 * away).expand_as(params[name]), atol=1e-4
        )


def test_without_a_pull_it_is_fedvpt_d(tiny_backbone, data):
    _, with_pull = trained(build("fedprox", tiny_backbone, mu=0.0, head="global"), data)
    _, without = trained(build("fedvpt-d", tiny_backbone, head="global"), data)
    assert with_pull.keys() == without.keys()
    for name in without:
        assert torch.equal(with_pull[name], without[name])


def test_a_stronger_pull_stays_closer_to_what_the_server_sent(tiny_backbone, data):
    ways = []
    for mu in (0.0, 0.5, 5.0):
        sent, back = trained(build("fedprox", tiny_backbone, mu=mu, prompt_learning_rate=0.1), data)
        ways.append((back["prompt"] - sent["prompt"]).norm().item())
    assert ways[0] > ways[1] > ways[2] > 0


def test_what_is_not_trained_is_not_pulled(tiny_backbone, data):
    """A received tensor that a stage leaves alone adds nothing to the loss, wherever it lies."""
    method, plain = build("fedprox", tiny_backbone, mu=7.0), build("fedvpt-d", tiny_backbone)
    state = method.initial(0)
    params = {**method.payload(state, 0), **state.personal}
    received = {name: value + 1 for name, value in params.items()}
    batch = data.batch(torch.arange(8), method.needs)
    losses = [m.loss(params, batch, Context(received, 1, 0, torch.Generator())).item() for m in (method, plain)]
    assert losses[0] == losses[1]


def test_a_negative_pull_is_refused():
    with pytest.raises(ValidationError):
        FedProx.Settings(mu=-1)


def test_the_example_in_contributing_is_the_file_and_short():
    source = inspect.getsource(fedprox)
    blocks = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert source in blocks
    assert len(source.splitlines()) <= 40


def test_a_new_clients_head_is_not_held_to_its_start(tiny_backbone):
    """Fine-tuning is the same for any strength of the pull: there is nothing of the client's that the server sent."""
    labels = torch.arange(12) % 3
    pixels = (80 * labels[:, None, None, None]).expand(-1, 3, 16, 16).to(torch.uint8)
    heads = []
    for mu in (0.0, 10.0):
        method = FedProx(FedProx.Settings(mu=mu), Task(tiny_backbone, 3, 2))
        data = ClientData(tiny_backbone, lambda: pixels, labels)
        after = adapt_client(method, method.initial(0), data, Schedule(2, 4), seed=0, round_number=1, client=1)
        heads.append(after["head.weight"])
    assert torch.equal(*heads)
