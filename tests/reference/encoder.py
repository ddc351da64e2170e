"""The encoder as the paper writes it, layer by layer and draw by draw; slow, and the oracle for the fast one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def encode(
    params: dict[str, Tensor], features: Tensor, masks: Tensor, activation: str = "gelu"
) -> tuple[Tensor, Tensor]:
    """Mean and log-std (draws, batch, layers, length, width) from raw tokens (batch, layers, tokens, width)."""
    means, log_stds = [], []
    for mask in masks:  # (batch, layers, tokens)
        per_layer = [
            _layer(params, i, features[:, i] * mask[:, i, :, None], activation) for i in range(features.shape[1])
        ]
        means.append(torch.stack([mean for mean, _ in per_layer], dim=1))
        log_stds.append(torch.stack([log_std for _, log_std in per_layer], dim=1))
    return torch.stack(means), torch.stack(log_stds)


def _layer(params: dict[str, Tensor], layer: int, masked: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    get = {name.removeprefix("encoder."): value[layer] for name, value in params.items()}
    x = F.layer_norm(masked, masked.shape[-1:], get["norm.weight"], get["norm.bias"])
    x = x.transpose(1, 2)  # (batch, width, tokens): the MLPs act along the tokens
    act = F.gelu if activation == "gelu" else F.relu
    outputs = []
    for net in ("mean", "std"):
        hidden = act(F.linear(x, get[f"{net}.fc1.weight"], get[f"{net}.fc1.bias"]))
        outputs.append(F.linear(hidden, get[f"{net}.fc2.weight"], get[f"{net}.fc2.bias"]).transpose(1, 2))
    return outputs[0], 0.5 * outputs[1]
