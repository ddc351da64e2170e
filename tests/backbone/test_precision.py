"""bf16 is a number format of the frozen backbone alone; what is trained stays in fp32."""

import copy

import pytest
import torch
from torch.nn import functional as F

from fedprompt import device
from fedprompt.backbone.cache import ClientData
from fedprompt.backbone.vit import Prompt, _attend
from fedprompt.backbone.weights import Backbone, load_backbone
from fedprompt.device import pick_dtype
from fedprompt.federation.round import train_client
from fedprompt.methods import methods
from fedprompt.methods.base import Task
from fedprompt.methods.training import Schedule


@pytest.fixture(scope="module")
def halved(tiny_backbone) -> Backbone:
    vit = copy.deepcopy(tiny_backbone.vit).to(torch.bfloat16)
    return Backbone(vit, tiny_backbone.mean, tiny_backbone.std, "tiny", "0" * 64)


def test_features_and_prompt_gradients_are_fp32_and_near_those_of_fp32(tiny_backbone, halved):
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (6, 3, 16, 16)).to(torch.uint8)
    prompt = torch.randn(2, 3, 24)
    found = []
    for backbone in (tiny_backbone, halved):
        leaf = prompt.clone().requires_grad_(True)
        feature = backbone.vit(backbone.normalise(pixels), [Prompt(leaf)])
        (gradient,) = torch.autograd.grad(feature[:, :5].square().sum(), leaf)
        assert feature.dtype == gradient.dtype == torch.float32
        found.append((feature.detach(), gradient))
    for exact, near in zip(*found, strict=True):
        assert (exact - near).norm() / exact.norm() < 0.05


def test_plain_attention_in_bf16_is_as_near_to_the_truth_as_the_fused_kernel():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, tokens, 16) for tokens in (5, 9, 9))
    truth = F.scaled_dot_product_attention(query.double(), key.double(), value.double())
    halves = [x.bfloat16() for x in (query, key, value)]
    errors = [float((f(*halves).double() - truth).norm()) for f in (_attend, F.scaled_dot_product_attention)]
    assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("key", list(methods()))
def test_every_method_trains_on_a_bf16_backbone_and_keeps_its_tensors_in_fp32(halved, key):
    method = methods()[key](methods()[key].Settings(), Task(halved, 3, 2))
    labels = torch.arange(12) % 3
    pixels = (80 * labels[:, None, None, None]).expand(-1, 3, 16, 16).to(torch.uint8)
    state = method.initial(0)
    kept, update = train_client(
        method,
        method.payload(state, 0),
        state.personal,
        ClientData(halved, lambda: pixels, labels),
        Schedule(1, 6),
        seed=0,
        round_number=1,
        client=0,
    )
    for name, like in {**state.personal, **method.expected(state)}.items():
        assert {**kept, **update.tensors}[name].dtype == like.dtype != torch.bfloat16, name


def test_auto_takes_bf16_where_it_is_native_and_the_matrices_are_large(monkeypatch):
    for native in (True, False):
        monkeypatch.setattr(device, "_native_bf16", lambda _, native=native: native)
        assert pick_dtype("auto", "cpu", 768) == (torch.bfloat16 if native else torch.float32)
        assert pick_dtype("auto", "cpu", 128) == torch.float32
        assert pick_dtype("bf16", "cpu", 128) == torch.bfloat16


def test_weights_are_cast_when_they_are_loaded():
    assert load_backbone("mini", precision="bf16").vit.blocks[0].attn.qkv.weight.dtype == torch.bfloat16
    assert load_backbone("mini").vit.blocks[0].attn.qkv.weight.dtype == torch.float32
    assert load_backbone("mini", image=48, precision="bf16").vit.pos_embed.dtype == torch.bfloat16
