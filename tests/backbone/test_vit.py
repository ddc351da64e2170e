"""The prompted forward against the textbook: every way to insert prompts, outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from reference.vit import textbook_accumulated, textbook_block, textbook_embed, textbook_outputs
from torch import Tensor

from fedprompt.backbone.cache import ClientData, Needs
from fedprompt.backbone.vit import Prompt, Shape, VisionTransformer, accumulating
from fedprompt.backbone.weights import Backbone, load_backbone

SHAPE = Shape(width=48, depth=4, heads=3, patch=8, image=32)
BATCH = 3
WEIGHTS = Path(__file__).resolve().parents[3] / "shared" / "weights"


def random_vit(shape: Shape = SHAPE) -> VisionTransformer:
    """Random in every parameter, biases and gains too, so that none can be forgotten unseen."""
    vit = VisionTransformer(shape)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in vit.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = centre + noise * (0.5 if parameter.ndim == 1 else 2 * parameter.shape[-1] ** -0.5)
    return vit.freeze()


def tokens(layers: int, length: int, per_image: bool, seed: int) -> Tensor:
    shape = (layers, BATCH, length, SHAPE.width) if per_image else (layers, length, SHAPE.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


Mode = Callable[[Tensor], list[Prompt]]
MODES: dict[str, tuple[int, Mode]] = {  # layers of tokens, and how they are inserted
    "shallow": (1, lambda t: [Prompt(t, flows=True)]),
    "deep": (4, lambda t: [Prompt(t)]),
    "deep_flowing_past_the_last_block": (4, lambda t: [Prompt(t, flows=True)]),
    "partial_flowing_on": (2, lambda t: [Prompt(t, flows=True)]),
    "partial_dropped": (2, lambda t: [Prompt(t)]),
    "middle_flowing_on": (2, lambda t: [Prompt(t, start=1, flows=True)]),
    "middle_dropped": (2, lambda t: [Prompt(t, start=1)]),
    "last_block_only": (1, lambda t: [Prompt(t, start=3, flows=True)]),
    "accumulating": (4, accumulating),
    "accumulating_from_the_second": (3, lambda t: accumulating(t, start=1)),
    "shallow_read": (1, lambda t: [Prompt(t, flows=True, read=True)]),
    "last_block_read": (1, lambda t: [Prompt(t, start=3, flows=True, read=True)]),
    "accumulating_read": (4, lambda t: accumulating(t, read=True)),
    "replaced_then_read": (2, lambda t: [Prompt(t, start=1, flows=True, read=True)]),
}


def assert_equals_textbook(vit: VisionTransformer, x: Tensor, prompts: list[Prompt], leaves: list[Tensor]) -> None:
    ours, textbook = vit.outputs(x, prompts), textbook_outputs(vit, x, prompts)
    torch.testing.assert_close(ours, textbook, rtol=0, atol=1e-4)
    assert torch.equal(vit.prompted(x, prompts), ours[:, 0])
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
    for mine, theirs in zip(
        torch.autograd.grad((ours * direction).sum(), leaves),
        torch.autograd.grad((textbook * direction).sum(), leaves),
        strict=True,
    ):
        assert theirs.norm() > 1e-3
        assert (mine - theirs).norm() < 1e-3 * theirs.norm()


@pytest.fixture(scope="module")
def vit() -> VisionTransformer:
    return random_vit()


@pytest.fixture(scope="module")
def embedded(vit: VisionTransformer) -> Tensor:
    return vit.embed(torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("per_image", [False, True], ids=["shared", "per_image"])
@pytest.mark.parametrize("mode", MODES)
def test_prompted_forward_equals_textbook(vit: VisionTransformer, embedded: Tensor, mode: str, per_image: bool) -> None:
    layers, insert = MODES[mode]
    leaf = tokens(layers, 2, per_image, seed=2)
    assert_equals_textbook(vit, embedded, insert(leaf), [leaf])


def test_both_ways_of_attention_equal_textbook(
    vit: VisionTransformer, embedded: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain products for few tokens, torch's fused kernel for many: which one is a matter of speed alone."""
    leaf = tokens(4, 3, True, seed=5)
    for limit in (0, 10**6):
        monkeypatch.setattr("fedprompt.backbone.vit.PLAIN_UP_TO", limit)
        assert_equals_textbook(vit, embedded, [Prompt(leaf)], [leaf])


@pytest.mark.parametrize("instance_flows", [False, True])
def test_prompts_of_different_depths_equal_textbook_together(
    vit: VisionTransformer, embedded: Tensor, instance_flows: bool
) -> None:
    shared, instance, added = tokens(4, 5, False, 3), tokens(2, 1, True, 4), tokens(2, 1, False, 5)
    prompts = [Prompt(shared), Prompt(instance, flows=instance_flows), *accumulating(added, start=1)]
    assert_equals_textbook(vit, embedded, prompts, [shared, instance, added])


def test_outputs_of_read_prompts_stand_behind_cls_in_the_order_of_joining(
    vit: VisionTransformer, embedded: Tensor
) -> None:
    """As in SGPT: shared tokens first, then tokens of each image's own group, of which the outputs are read."""
    shared, group, deep = tokens(2, 1, False, 10), tokens(2, 2, True, 11), tokens(4, 3, False, 12)
    prompts = [*accumulating(group, start=2, read=True), *accumulating(shared), Prompt(deep)]
    assert_equals_textbook(vit, embedded, prompts, [shared, group, deep])
    read = vit.outputs(embedded, prompts)
    assert read.shape == (BATCH, 1 + 2 * 2, SHAPE.width)
    assert all((read[:, i] - read[:, j]).abs().max() > 1e-2 for i in range(5) for j in range(i))
    alone = vit.outputs(embedded, [*accumulating(shared), *accumulating(group, start=2), Prompt(deep)])
    torch.testing.assert_close(alone, read[:, :1], rtol=0, atol=1e-4)


def test_a_prompt_that_is_thrown_away_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="no output to read"):
        Prompt(tokens(1, 1, False, 13), read=True)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_stopping_early_equals_textbook(vit: VisionTransformer, embedded: Tensor, blocks: int) -> None:
    prompts = [*accumulating(tokens(2, 2, True, 14), read=True), Prompt(tokens(4, 3, False, 15))]
    ours, textbook = vit.outputs(embedded, prompts, blocks), textbook_outputs(vit, embedded, prompts, blocks)
    torch.testing.assert_close(ours, textbook, rtol=0, atol=1e-4)


def test_the_frozen_cls_feature_may_be_taken_after_an_early_block(vit: VisionTransformer) -> None:
    backbone = Backbone(vit, (0.5,) * 3, (0.5,) * 3, "random", "0" * 64)
    pixels = torch.randint(0, 256, (BATCH, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    x = vit.embed(backbone.normalise(pixels))
    for blocks in (2, None):
        for keep in (True, False):
            data = ClientData(backbone, lambda: pixels, torch.zeros(BATCH).long(), keep=keep)
            found = data.batch(torch.arange(BATCH), Needs(cls=True, cls_blocks=blocks)).cls
            torch.testing.assert_close(found, textbook_outputs(vit, x, [], blocks)[:, 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("per_image", [False, True], ids=["shared", "per_image"])
def test_accumulating_prompts_never_leave(vit: VisionTransformer, embedded: Tensor, per_image: bool) -> None:
    leaf = tokens(3, 2, per_image, seed=8)
    ours = vit.prompted(embedded, accumulating(leaf, start=1))
    torch.testing.assert_close(ours, textbook_accumulated(vit, embedded, leaf, start=1), rtol=0, atol=1e-4)


def test_modes_differ_from_one_another(vit: VisionTransformer, embedded: Tensor) -> None:
    """Else the comparisons above would say nothing about flowing, dropping and replacing."""
    leaf = tokens(2, 2, False, 6)
    ways = [[], [Prompt(leaf)], [Prompt(leaf, flows=True)], [Prompt(leaf, start=1)], accumulating(leaf)]
    features = [vit.prompted(embedded, prompts) for prompts in ways]
    for i, one in enumerate(features):
        assert all((one - other).abs().max() > 1e-2 for other in features[:i])


def test_forward_without_prompts_is_the_plain_vit(vit: VisionTransformer) -> None:
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    x = vit.embed(images)
    for block in vit.blocks:
        x = textbook_block(block, x)
    torch.testing.assert_close(vit(images), vit.norm(x)[:, 0], rtol=0, atol=1e-4)


def test_embedding_cuts_patches_row_by_row_and_adds_positions(vit: VisionTransformer) -> None:
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(vit.embed(images), textbook_embed(vit, images), rtol=0, atol=1e-4)


def test_layer_inputs_are_what_enters_each_block(vit: VisionTransformer) -> None:
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    inputs = vit.layer_inputs(images, depth=3)
    assert inputs.shape == (BATCH, 3, SHAPE.tokens, SHAPE.width)
    x = vit.embed(images)
    for layer in range(3):
        torch.testing.assert_close(inputs[:, layer], x, rtol=0, atol=1e-4)
        x = textbook_block(vit.blocks[layer], x)


def test_attention_without_qkv_bias_equals_textbook(embedded: Tensor) -> None:
    vit = random_vit(Shape(width=48, depth=4, heads=3, patch=8, image=32, qkv_bias=False))
    leaf = tokens(4, 2, False, 7)
    assert_equals_textbook(vit, embedded, [Prompt(leaf)], [leaf])


def test_real_backbone_equals_textbook_with_shared_and_instance_prompts() -> None:
    files = sorted(WEIGHTS.glob("vit_tiny*.safetensors"))
    if not files:
        pytest.skip("no ViT-Ti/16 weights in ../shared/weights beside the repository")
    vit = load_backbone(str(files[0]), image=112).vit
    generator = torch.Generator().manual_seed(0)
    x = vit.embed(torch.randn(2, 3, 112, 112, generator=generator))
    shared = torch.randn(12, 10, 192, generator=generator).requires_grad_()
    instance = torch.randn(6, 2, 1, 192, generator=generator).requires_grad_()
    assert_equals_textbook(vit, x, [Prompt(shared), Prompt(instance, flows=True)], [shared, instance])
