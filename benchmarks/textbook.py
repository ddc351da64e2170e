"""The methods as a textbook would have them: only the arithmetic differs from ours, not the batches or the draws.

Each step runs the frozen ViT over the images for the features, the encoder layer by layer and draw by draw, and the
ViT again with every prompt in the sequence, through whole blocks. ``tests/reference`` holds these parts: the tests use
them to show that our fast forms are equal.
"""

from __future__ import annotations

import torch
from reference.encoder import encode
from reference.vit import textbook_block, textbook_prompted
from torch import Tensor
from torch.nn import functional as F
from transformers import ViTConfig, ViTModel

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.backbone.vit import Prompt
from fedprompt.methods.base import Tensors
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.pfedbayespt import PFedBayesPT


class TextbookPFedBayesPT(PFedBayesPT):
    """pFedBayesPT with two full passes in every step."""

    key = ""

    @property
    def needs(self) -> Needs:
        return Needs()

    def posterior(self, params: Tensors, batch: Batch, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert batch.embedded is not None
        assert masks is not None
        with torch.no_grad():
            x, inputs = batch.embedded, []
            for block in self.vit.blocks:
                inputs.append(x)
                x = textbook_block(block, x)
        own = {name: value for name, value in params.items() if name.startswith("encoder.")}
        return encode(own, torch.stack(inputs, dim=1), masks)

    def log_likelihoods(self, params: Tensors, batch: Batch, prompts: Tensor) -> Tensor:
        assert batch.embedded is not None
        scores = []
        for own in prompts:  # (batch, layers, length, width)
            inserted = [Prompt(own.transpose(0, 1)), Prompt(params["prompt"])]
            feature = textbook_prompted(self.vit, batch.embedded, inserted)
            scores.append(F.linear(feature, params["head.weight"], params["head.bias"]).log_softmax(-1))
        return torch.stack(scores)


class TextbookFedVPTDeep(FedVPTDeep):
    """FedVPT-D with the prompts in the sequence, as in the official code of VPT."""

    key = ""

    def feature(self, params: Tensors, batch: Batch) -> Tensor:
        assert batch.embedded is not None
        return textbook_prompted(self.vit, batch.embedded, [Prompt(params["prompt"])])


class TransformersFedVPTDeep(FedVPTDeep):
    """FedVPT-D on the ViT of Hugging Face's transformers, with its fused attention and the prompts in the sequence."""

    key = ""

    def feature(self, params: Tensors, batch: Batch) -> Tensor:
        assert batch.embedded is not None
        x, length = batch.embedded, params["prompt"].shape[1]
        for layer, prompt in zip(self.theirs.layers, params["prompt"], strict=True):
            joined = torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1:]], dim=1)
            out = layer(joined)
            out = out[0] if isinstance(out, tuple) else out
            x = torch.cat([out[:, :1], out[:, 1 + length :]], dim=1)
        return self.theirs.layernorm(x)[:, 0]

    @property
    def theirs(self) -> ViTModel:
        if not hasattr(self, "_theirs"):
            self._theirs = as_transformers(self.vit)
        return self._theirs


def as_transformers(vit) -> ViTModel:  # type: ignore[no-untyped-def]
    """The same weights in transformers' ViT."""
    shape = vit.shape
    model = ViTModel(
        ViTConfig(
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            intermediate_size=int(shape.width * shape.mlp_ratio),
            image_size=shape.image,
            patch_size=shape.patch,
            layer_norm_eps=shape.layer_norm_eps,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        add_pooling_layer=False,
    )
    renamed: Tensors = {}
    for name, value in vit.state_dict().items():
        target = name.replace("blocks.", "layers.")
        for ours, theirs in (
            ("norm1", "layernorm_before"),
            ("norm2", "layernorm_after"),
            ("attn.proj", "attention.o_proj"),
        ):
            target = target.replace(ours, theirs)
        if "attn.qkv" in target:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                renamed[target.replace("attn.qkv", f"attention.{part}_proj")] = piece
        elif target.startswith("layers."):
            renamed[target] = value
        elif target.startswith("norm."):
            renamed[target.replace("norm.", "layernorm.")] = value
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    if unexpected or any(not name.startswith("embeddings.") for name in missing):
        raise RuntimeError(f"this version of transformers names its ViT's weights otherwise: {unexpected or missing}")
    return model.eval().requires_grad_(False)
