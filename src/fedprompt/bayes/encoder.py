"""The encoder G of pFedBayesPT: frozen token features -> mean and log-std of an instance's prompt.

For each layer i (paper, sec. "Prompt Generation")::

    mean_i    =      MLP_mean(LN(f_i * m_i)^T)^T
    log_std_i = 0.5 * MLP_std(LN(f_i * m_i)^T)^T

where f_i are the tokens that enter layer i without prompts, m_i a binary mask over tokens, and both MLPs act along the
token axis. All layers are stacked into one product. The LayerNorm's gain and bias act per channel and the mask per
token, so both can be moved past the first matrix, exactly::

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
    masks = None if masks is None else masks.to(features.dtype)
    nets = [net for net in ("mean", "std") if f"{net}.fc1.weight" in get]
    batch, layers = features.shape[:2]
    draws = 1 if masks is None else len(masks)

    first = torch.cat([get[f"{net}.fc1.weight"] for net in nets], dim=1)  # (layers, nets * hidden, tokens)
    first_bias = torch.cat([get[f"{net}.fc1.bias"] for net in nets], dim=1)  # (layers, nets * hidden)
    if masks is None:
        columns = first.expand(batch, layers, *first.shape[1:])
    else:
        per_draw = masks.permute(1, 2, 0, 3).unsqueeze(3)  # (batch, layers, draws, 1, tokens)
        if len(nets) == 2 and not mask_std:
            hidden = first.shape[1] // 2
            seen = torch.ones_like(per_draw).expand(-1, -1, -1, hidden, -1)
            per_draw = torch.cat([per_draw.expand(-1, -1, -1, hidden, -1), seen], dim=3)
        columns = (per_draw * first.unsqueeze(1)).flatten(2, 3)  # (batch, layers, draws * nets * hidden, tokens)
    product = columns @ features  # (batch, layers, draws * nets * hidden, width)
    product = product.unflatten(2, (draws, -1))
    bias = get["norm.bias"].unsqueeze(1) * first.sum(-1, keepdim=True) + first_bias.unsqueeze(-1)
    x = torch.addcmul(bias.unsqueeze(1), product, get["norm.weight"][:, None, None])  # (layers, 1, hidden, width) gains
    x = F.gelu(x) if activation == "gelu" else F.relu(x)
    outputs = []
    for net, part in zip(nets, x.chunk(len(nets), dim=3), strict=True):
        second = get[f"{net}.fc2.weight"].unsqueeze(1)  # (layers, 1, length, hidden)
        out = second @ part + get[f"{net}.fc2.bias"][:, None, :, None]  # (batch, layers, draws, length, width)
        outputs.append(out.permute(2, 0, 1, 3, 4).to(torch.promote_types(out.dtype, torch.float32)))
    return outputs[0], 0.5 * outputs[1] if len(outputs) == 2 else None
