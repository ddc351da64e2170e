"""The encoder G of pFedBayesPT: frozen token features -> mean and log-std of an instance's prompt.

For each layer i (paper, sec. "Prompt Generation")::

    mean_i    =      MLP_mean(LN(f_i * m_i)^T)^T
    log_std_i = 0.5 * MLP_std(LN(f_i * m_i)^T)^T

where f_i are the tokens that enter layer i without prompts, m_i a binary mask over tokens, and both MLPs act along the
token axis. Both networks and all draws of a layer are columns of one product. The LayerNorm's gain and bias act per
channel and the mask per token, so both can be moved past the first matrix, exactly::

    sum_t (g_c x_tc m_t + b_c) W_th  =  g_c sum_t x_tc (m_t W_th)  +  b_c sum_t W_th

with x the normalised tokens, which depend on no trained number and are computed once per image.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PREFIX = "encoder."
NORM = PREFIX + "norm."
Start = Literal["random", "pooled"]
Activation = Literal["gelu", "relu"]


def normalise(features: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm without gain and bias; a masked token stays zero under it."""
    return F.layer_norm(features, features.shape[-1:], eps=eps)


def initial_encoder(
    layers: int,
    tokens: int,
    width: int,
    *,
    hidden: int,
    length: int,
    start: Start,
    log_variance: float,
    with_std: bool,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Fresh encoder tensors, each with a leading axis of layers.

    ``random`` is torch's usual start of linear layers. ``pooled`` starts the mean at the mean of the tokens: two hidden
    units carry +a and -a of that mean, and gelu(a) - gelu(-a) = a (relu likewise); the std starts constant. In both,
    the log-variance starts at ``log_variance`` up to what the random weights add.
    """
    if start == "pooled" and hidden < 2:
        raise ValueError("the pooled start needs two hidden units")
    out = {"norm.weight": torch.ones(layers, width), "norm.bias": torch.zeros(layers, width)}
    for net in ("mean", "std") if with_std else ("mean",):
        first = _uniform((layers, hidden, tokens), tokens, generator)
        first_bias = _uniform((layers, hidden), tokens, generator)
        second = _uniform((layers, length, hidden), hidden, generator)
        second_bias = _uniform((layers, length), hidden, generator)
        if start == "pooled":
            second, second_bias = torch.zeros_like(second), torch.zeros_like(second_bias)
            if net == "mean":
                first[:, 0], first[:, 1] = 1 / tokens, -1 / tokens
                first_bias[:, :2] = 0
                second[:, :, 0], second[:, :, 1] = 1, -1
        if net == "std":
            second_bias += log_variance
        out |= {f"{net}.fc1.weight": first, f"{net}.fc1.bias": first_bias}
        out |= {f"{net}.fc2.weight": second, f"{net}.fc2.bias": second_bias}
    return {PREFIX + name: value for name, value in out.items()}


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(fan_in)


def sample_masks(
    draws: int, batch: int, layers: int, tokens: int, *, keep: float, generator: torch.Generator
) -> Tensor:
    """Bernoulli(keep) masks (draws, batch, layers, tokens), independent everywhere; CLS, token 0, is always kept."""
    masks = (torch.rand(draws, batch, layers, tokens, generator=generator) < keep).float()
    masks[..., 0] = 1
    return masks


def encode(
    params: dict[str, Tensor],
    features: Tensor,
    masks: Tensor | None,
    *,
    activation: Activation = "gelu",
    mask_std: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Mean and log-std (draws, batch, layers, length, width) of the prompts; log-std is None without a std network.

    ``features`` are normalised tokens (batch, layers, tokens, width); ``masks`` (draws, batch, layers, tokens), or None
    for one draw of the whole image. ``mask_std=False`` lets the std see the whole image (SIVI's own choice).
    It computes in the features' number format; the result has at least fp32.
    """
    own = {name.removeprefix(PREFIX): value for name, value in params.items() if name.startswith(PREFIX)}
    get = {name: value.to(features.dtype) for name, value in own.items()}
    nets = [net for net in ("mean", "std") if f"{net}.fc1.weight" in get]
    batch, layers = features.shape[:2]
    draws = 1 if masks is None else len(masks)

    first = torch.cat([get[f"{net}.fc1.weight"] for net in nets], dim=1)  # (layers, nets * hidden, tokens)
    first_bias = torch.cat([get[f"{net}.fc1.bias"] for net in nets], dim=1)  # (layers, nets * hidden)
    bias = get["norm.bias"].unsqueeze(1) * first.sum(-1, keepdim=True) + first_bias.unsqueeze(-1)  # (..., width)
    second = _side_by_side([get[f"{net}.fc2.weight"] for net in nets])  # (layers, nets * length, nets * hidden)
    second_bias = torch.cat([get[f"{net}.fc2.bias"] for net in nets], dim=1).unsqueeze(-1)

    # Layer by layer: what is at work then stays in the processor's cache, which halves the time on CPUs.
    outputs = []
    for layer in range(layers):
        if masks is None:
            columns = first[layer].expand(batch, 1, -1, -1)
        else:
            mask = masks[:, :, layer].transpose(0, 1).unsqueeze(2).to(features.dtype)  # (batch, draws, 1, tokens)
            if len(nets) == 2 and not mask_std:
                hidden = first.shape[1] // 2
                mask = torch.cat([mask, torch.ones_like(mask)], dim=2).repeat_interleave(hidden, dim=2)
            columns = mask * first[layer]  # (batch, draws, nets * hidden, tokens)
        product = torch.bmm(columns.flatten(1, 2), features[:, layer])
        product = product.unflatten(1, (draws, -1))  # (batch, draws, nets * hidden, width)
        x = torch.addcmul(bias[layer], product, get["norm.weight"][layer])
        x = (F.gelu(x) if activation == "gelu" else F.relu(x)).flatten(0, 1)
        outputs.append(torch.bmm(second[layer].expand(len(x), -1, -1), x))
    out = torch.stack(outputs, dim=1) + second_bias  # (batch * draws, layers, nets * length, width)
    out = out.unflatten(0, (batch, draws)).transpose(0, 1).to(torch.promote_types(out.dtype, torch.float32))
    if len(nets) == 1:
        return out, None
    mean, log_variance = out.chunk(2, dim=3)
    return mean, 0.5 * log_variance


def _side_by_side(weights: list[Tensor]) -> Tensor:
    """Matrices (layers, rows, columns) along the diagonals of larger ones, so that one product serves all."""
    columns = sum(weight.shape[2] for weight in weights)
    rows, before = [], 0
    for weight in weights:
        rows.append(F.pad(weight, (before, columns - before - weight.shape[2])))
        before += weight.shape[2]
    return torch.cat(rows, dim=1)
