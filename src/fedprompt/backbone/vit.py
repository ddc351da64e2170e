"""A plain pre-norm Vision Transformer, frozen, and the one prompted forward that serves every method.

Parameter names are timm's, so its published weights load as they are.

A prompt is extra tokens that a layer may attend to. All known ways to insert them are one rule: at layer ``start + i``
the tokens ``prompt.tokens[i]`` join the sequence; what comes out at their places is thrown away, except after the last
of these layers, where it stays if ``prompt.flows``. So

=================  ==============================================================================
VPT-Shallow        one layer of tokens that flows on
VPT-Deep           tokens for every layer, each replacing the one before
partial depth      tokens for the first D layers, then flowing on ("expand") or dropped
accumulating       several prompts of one layer each, all flowing on (SGPT), see :func:`accumulating`
=================  ==============================================================================

Tokens whose output is thrown away are, exactly, extra keys and values: they need no query, no projection and no MLP;
and when the batch shares them, their keys and values are computed once. The last block computes only what is read: CLS
and the prompts with ``prompt.read``. ``tests/reference`` holds the textbook forward (concatenate, run, cut) that this
one must equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PLAIN_UP_TO = 128  # keys, for plain attention on CPUs


@dataclass(frozen=True)
class Shape:
    """The numbers that fix a ViT's architecture."""

    width: int
    depth: int
    heads: int
    patch: int
    image: int  # side of the square input in pixels
    mlp_ratio: float = 4.0
    layer_norm_eps: float = 1e-6
    qkv_bias: bool = True
    classes: int = 0  # outputs of the pre-training head; 0 where there is none

    @property
    def tokens(self) -> int:
        """Length of the sequence: the patches and CLS."""
        return (self.image // self.patch) ** 2 + 1


@dataclass(frozen=True)
class Prompt:
    """Prompt tokens for consecutive layers, one set for the whole batch or one for each image."""

    tokens: Tensor  # (layers, length, width), or (layers, batch, length, width)
    start: int = 0
    flows: bool = False
    read: bool = False  # what comes out at their places after the last block is read beside CLS; only of what flows

    def __post_init__(self) -> None:
        if self.read and not self.flows:
            raise ValueError("A prompt that is thrown away has no output to read: set flows.")

    def at(self, layer: int) -> Tensor | None:
        """The tokens that join at this layer: (length, width) or (batch, length, width)."""
        inside = self.start <= layer < self.start + len(self.tokens)
        return self.tokens[layer - self.start] if inside else None

    def flows_from(self, layer: int) -> bool:
        return self.flows and layer == self.start + len(self.tokens) - 1


def accumulating(tokens: Tensor, start: int = 0, *, read: bool = False) -> list[Prompt]:
    """Prompts of which each layer adds its own and none ever leaves."""
    return [Prompt(tokens[i : i + 1], start + i, flows=True, read=read) for i in range(len(tokens))]


class PatchEmbed(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, shape.width, kernel_size=shape.patch, stride=shape.patch)

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.proj(images)  # (batch, width, rows, columns)
        return x.flatten(2).transpose(1, 2)  # (batch, patches, width)


class Attention(nn.Module):
    """Multi-head attention whose keys and values may come from more tokens than its queries."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=shape.qkv_bias)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, extra: Sequence[Tensor], queries: int) -> Tensor:
        width = x.shape[-1]
        bias = self.qkv.bias
        if queries == x.shape[1]:
            query, key_value = self.qkv(x).split((width, 2 * width), dim=-1)
        else:
            query = F.linear(x[:, :queries], self.qkv.weight[:width], None if bias is None else bias[:width])
            key_value = self._key_value(x)
        if extra:
            more = [self._key_value(tokens) for tokens in extra]  # (length, 2 width) or (batch, length, 2 width)
            key_value = torch.cat([key_value, *(m.expand(len(x), *m.shape[-2:]) for m in more)], dim=1)
        key, value = key_value.chunk(2, dim=-1)
        y = _attend(self._by_head(query), self._by_head(key), self._by_head(value))
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))  # (batch, queries, width)
        return out

    def _key_value(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        bias = self.qkv.bias
        return F.linear(x, self.qkv.weight[width:], None if bias is None else bias[width:])

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, tokens, width / heads)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention, (batch, heads, tokens, width / heads) each.

    On CPUs torch's fused kernel takes some three times as long in its backward for bf16 as the plain products do, and a
    third longer for few tokens; for many tokens without a gradient it takes half as long.
    """
    trained = query.requires_grad or key.requires_grad
    plain = key.shape[2] <= PLAIN_UP_TO or (trained and query.dtype == torch.bfloat16)
    if query.device.type != "cpu" or not plain:
        return F.scaled_dot_product_attention(query, key, value)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    chances = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    out: Tensor = chances.to(value.dtype) @ value
    return out


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden = int(shape.width * shape.mlp_ratio)
        self.fc1 = nn.Linear(shape.width, hidden)
        self.fc2 = nn.Linear(hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=shape.layer_norm_eps)
        self.attn = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width, eps=shape.layer_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, extra: Sequence[Tensor] = (), queries: int | None = None) -> Tensor:
        """Run the first ``queries`` tokens (default all) through the block; ``extra`` tokens are attended to only."""
        queries = x.shape[1] if queries is None else queries
        attended = self.attn(self.norm1(x), [self.norm1(tokens) for tokens in extra], queries)
        x = x[:, :queries] + attended
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """The backbone. It maps normalised images (batch, 3, side, side) to CLS features (batch, width)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, shape.tokens, shape.width))
        self.patch_embed = PatchEmbed(shape)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, eps=shape.layer_norm_eps)
        if shape.classes:
            self.head = nn.Linear(shape.width, shape.classes)

    def freeze(self) -> VisionTransformer:
        """Eval mode and no weight gradient: what every method works on."""
        return self.eval().requires_grad_(False)

    def embed(self, images: Tensor) -> Tensor:
        """The input of the first block: (batch, tokens, width), CLS first, in the backbone's number format."""
        patches = self.patch_embed(images.to(self.pos_embed.dtype))
        return torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embed

    def forward(self, images: Tensor, prompts: Sequence[Prompt] = ()) -> Tensor:
        """CLS features (batch, width) after the last LayerNorm."""
        return self.prompted(self.embed(images), prompts)

    def prompted(self, x: Tensor, prompts: Sequence[Prompt] = ()) -> Tensor:
        """CLS features of embedded images ``x`` (batch, tokens, width), see :meth:`embed`."""
        return self.outputs(x, prompts)[:, 0]

    def outputs(self, x: Tensor, prompts: Sequence[Prompt] = (), blocks: int | None = None) -> Tensor:
        """CLS and the tokens of prompts that are read, in the order in which they join: (batch, 1 + read, width).

        ``x`` is as for :meth:`prompted`; ``blocks`` says after how many blocks to stop (default all). The last
        LayerNorm is applied wherever it stops. Prompts may have another number format than the backbone; the result has
        at least fp32.
        """
        batch, run = len(x), self.blocks[:blocks]
        wanted = 1  # the first tokens of the sequence, whose output is asked for
        for layer, block in enumerate(run):
            last = layer == len(run) - 1
            extra = []
            for prompt in prompts:
                tokens = prompt.at(layer)
                if tokens is None:
                    continue
                tokens = tokens.to(x.dtype)
                each = tokens.expand(batch, *tokens.shape[-2:])  # (batch, length, width)
                if prompt.flows_from(layer) and prompt.read:
                    x = torch.cat([x[:, :wanted], each, x[:, wanted:]], dim=1)
                    wanted += each.shape[1]
                elif prompt.flows_from(layer) and not last:
                    x = torch.cat([x, each], dim=1)
                else:
                    extra.append(tokens)
            x = block(x, extra, queries=wanted if last else None)
        out: Tensor = self.norm(x[:, :wanted])
        return out.to(torch.promote_types(out.dtype, torch.float32))

    def layer_inputs(self, images: Tensor, depth: int) -> Tensor:
        """What enters each of the first ``depth`` blocks without prompts: (batch, depth, tokens, width)."""
        x = self.embed(images)
        inputs = [x]
        for block in list(self.blocks)[: depth - 1]:
            x = block(x)
            inputs.append(x)
        return torch.stack(inputs, dim=1)
