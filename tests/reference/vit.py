"""The textbook prompted ViT: put every prompt into the sequence, run whole blocks on everything, cut what must go.

Slow and plain on purpose; it shares only the weights with ``fedprompt.backbone.vit``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.vit import Block, Prompt, VisionTransformer


def textbook_attention(block: Block, x: Tensor) -> Tensor:
    batch, tokens, width = x.shape
    heads = block.attn.heads
    qkv = F.linear(x, block.attn.qkv.weight, block.attn.qkv.bias)
    query, key, value = qkv.reshape(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(query @ key.transpose(-2, -1) / (width // heads) ** 0.5, dim=-1)
    return block.attn.proj((weights @ value).transpose(1, 2).reshape(batch, tokens, width))


def textbook_block(block: Block, x: Tensor) -> Tensor:
    x = x + textbook_attention(block, block.norm1(x))
    return x + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x))))


def textbook_embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    """Cut the patches out, multiply, put CLS before them, add positions: (batch, tokens, width)."""
    patch, proj = vit.shape.patch, vit.patch_embed.proj
    rows = []
    for top in range(0, images.shape[2], patch):
        for left in range(0, images.shape[3], patch):
            pixels = images[:, :, top : top + patch, left : left + patch].flatten(1)
            rows.append(pixels @ proj.weight.flatten(1).T + proj.bias)
    cls = vit.cls_token[0].expand(len(images), -1)
    return torch.stack([cls, *rows], dim=1) + vit.pos_embed


def textbook_accumulated(vit: VisionTransformer, x: Tensor, tokens: Tensor, start: int) -> Tensor:
    """CLS features when each layer from ``start`` adds its tokens (layers, [batch,] length, width) and none leaves."""
    for layer, block in enumerate(vit.blocks):
        if start <= layer < start + len(tokens):
            x = torch.cat([x, tokens[layer - start].expand(len(x), -1, -1)], dim=1)
        x = textbook_block(block, x)
    return vit.norm(x)[:, 0]


def textbook_prompted(vit: VisionTransformer, x: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """CLS features (batch, width) of embedded images x (batch, tokens, width)."""
    return textbook_outputs(vit, x, prompts)[:, 0]


def textbook_outputs(vit: VisionTransformer, x: Tensor, prompts: Sequence[Prompt], blocks: int | None = None) -> Tensor:
    """CLS and the prompt tokens that are read, in the order in which they joined (batch, 1 + read, width)."""
    batch, own = x.shape[:2]
    stay: list[Tensor] = []  # prompt tokens that flow on from earlier layers, each (batch, length, width)
    read: list[bool] = []  # which of them are read at the end
    for layer, block in enumerate(list(vit.blocks)[:blocks]):
        joining, keep = [], []
        for prompt in prompts:
            index = layer - prompt.start
            if 0 <= index < prompt.tokens.shape[0]:
                tokens = prompt.tokens[index]
                joining.append(tokens if tokens.ndim == 3 else torch.stack([tokens] * batch))
                keep.append(prompt.flows and index == prompt.tokens.shape[0] - 1)
                if keep[-1]:
                    read.append(prompt.read)
        parts = [x[:, :1], *stay, *joining, x[:, 1:]]  # as in VPT: CLS, prompts, patches
        parts = list(textbook_block(block, torch.cat(parts, dim=1)).split([part.shape[1] for part in parts], dim=1))
        x = torch.cat([parts[0], parts[-1]], dim=1)
        came_out = parts[1:-1]
        stay = came_out[: len(stay)] + [
            tokens for tokens, kept in zip(came_out[len(stay) :], keep, strict=True) if kept
        ]
        assert x.shape[1] == own
    chosen = [tokens for tokens, wanted in zip(stay, read, strict=True) if wanted]
    return vit.norm(torch.cat([x[:, :1], *chosen], dim=1))
