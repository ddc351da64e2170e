"""Loading a frozen backbone: the embedded mini ViT, a local file or folder, or a model of the Hugging Face hub.

Weights are read from safetensors only, which hold numbers and cannot run code. timm's parameter names are ours; Hugging
Face's ViT names are mapped onto them once. The shape is read off the tensors themselves; the number of heads, the
LayerNorm's epsilon and the pixel statistics come from the JSON beside them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.device import Precision, pick_dtype
from fedprompt.errors import UserError

_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}  # of timm's ViT and DeiT families
_DTYPES = (".fp16", ".bf16", ".fp32")  # endings of a weight file's stem that its JSON does not repeat

# What published files hold beyond the backbone: layers between the CLS feature and the pre-training head.
_UNUSED = ("pre_logits.", "pooler.")

# Hugging Face's names, cut to the part that differs, and ours; the first that fits wins.
_RENAMED = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("layernorm_before.", "norm1."),
    ("layernorm_after.", "norm2."),
    ("attention.output.dense.", "attn.proj."),
    ("attention.attention.", "attn."),
    ("intermediate.dense.", "mlp.fc1."),
    ("output.dense.", "mlp.fc2."),
    ("layernorm.", "norm."),
    ("classifier.", "head."),
)


@dataclass(frozen=True)
class Backbone:
    """A frozen ViT, the pixel statistics it was trained with, and which weights it holds."""

    vit: VisionTransformer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str
    checksum: str  # sha256 of the weight file

    def normalise(self, images: Tensor) -> Tensor:
        """Turn uint8 images (batch, 3, side, side) into the input of ``vit``, on its device."""
        pixels = images.to(self.vit.cls_token.device).float() / 255
        mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def load_backbone(
    source: str,
    image: int | None = None,
    device: str | torch.device = "cpu",
    precision: Precision = "fp32",
) -> Backbone:
    """Load a frozen backbone, once per process.

    Parameters
    ----------
    source
        ``"mini"``; a ``.safetensors`` file with its JSON beside it; a folder with ``config.json`` and
        ``model.safetensors``; or a hub id such as ``"timm/vit_base_patch16_224.augreg_in21k"``.
    image
        Side of the input in pixels if not the one it was trained with; the position embedding is resampled. All sizes
        share the other weights' memory.
    precision
        Number format of weights and activations; they are cast once, here.
    """
    device = str(torch.device(device))
    native = _load(_find(source), device, precision)
    return native if image in (None, native.vit.shape.image) else _resized(native, image)


@dataclass(frozen=True)
class _Files:
    name: str
    weights: Path
    config: Path
    preprocessor: Path | None = None  # Hugging Face keeps the pixel statistics apart


def _find(source: str) -> _Files:
    path = Path(source).expanduser()
    if source == "mini":
        folder = Path(str(resources.files("fedprompt.backbone").joinpath("mini")))
        return _Files(source, folder / "mini_vit.safetensors", folder / "mini_vit.json")
    if path.suffix == ".safetensors":
        return _beside(path.resolve())
    if path.is_dir():
        path = path.resolve()
        preprocessor = path / "preprocessor_config.json"
        found = preprocessor if preprocessor.is_file() else None
        return _Files(path.name, path / "model.safetensors", path / "config.json", found)
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", source):
        return _download(source)
    raise UserError(
        f'The backbone "{source}" is neither "mini", a .safetensors file, an existing folder nor a hub id like '
        '"timm/vit_base_patch16_224.augreg_in21k"; give one of these.'
    )


def _beside(weights: Path) -> _Files:
    """A weight file and the JSON of the same name, with or without the ending that says the number format."""
    name = weights.stem
    for ending in _DTYPES:
        name = name.removesuffix(ending)
    candidates = (weights.with_name(f"{weights.stem}.json"), weights.with_name(f"{name}.json"))
    config = next((candidate for candidate in candidates if candidate.is_file()), candidates[-1])
    return _Files(name, weights, config)


@cache  # the hub is asked over the network even where it has nothing new
def _download(hub_id: str) -> _Files:
    config, weights = (_fetch(hub_id, file) for file in ("config.json", "model.safetensors"))
    if "pretrained_cfg" in _read_json(config):  # timm's, complete in itself
        return _Files(hub_id, weights, config)
    try:
        preprocessor = _fetch(hub_id, "preprocessor_config.json")
    except _NotInRepositoryError:
        return _Files(hub_id, weights, config)
    return _Files(hub_id, weights, config, preprocessor)


class _NotInRepositoryError(UserError):
    pass


def _fetch(hub_id: str, file: str) -> Path:
    """The file's place in the hub's cache, downloaded if it is not there; honours HF_HUB_OFFLINE."""
    try:
        return Path(hf_hub_download(hub_id, file))
    except LocalEntryNotFoundError as error:
        raise UserError(
            f'The backbone "{hub_id}" is no local folder, its {file} is not in the hub cache and the hub cannot be '
            "reached; a hub id needs the network once, so connect (and unset HF_HUB_OFFLINE) or give a local file."
        ) from error
    except EntryNotFoundError as error:
        raise _NotInRepositoryError(
            f'The hub model "{hub_id}" has no {file}; choose one published as safetensors (pickles are never read).'
        ) from error
    except (OSError, HFValidationError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f'The hub did not give {file} of "{hub_id}" ({reason}); check the id and your access.'
        ) from error


@cache
def _load(files: _Files, device: str, precision: Precision) -> Backbone:
    config = _read_json(files.config)
    checksum = _checksum(files.weights)
    if config.get("sha256", checksum) != checksum:
        raise UserError(
            f"The weights {files.weights} are damaged: their sha256 is not the one in {files.config}; copy them again."
        )
    tensors = _ours(_read_tensors(files.weights))
    if config.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f'The backbone "{files.name}" has the activation {config["hidden_act"]}; only gelu is supported.'
        )
    shape = _shape(tensors, config, files)
    with torch.device("meta"):
        vit = VisionTransformer(shape)
    _check_fit(vit, tensors, files.weights)
    dtype = pick_dtype(precision, device, shape.width)
    vit.load_state_dict({name: t.to(device, dtype) for name, t in tensors.items()}, assign=True)
    mean, std = _pixel_statistics(config, files)
    return Backbone(vit.freeze(), mean, std, files.name, checksum)


@cache
def _resized(native: Backbone, image: int) -> Backbone:
    shape = native.vit.shape
    if image <= 0 or image % shape.patch:
        raise UserError(
            f'The backbone "{native.name}" cuts images into patches of {shape.patch} pixels; {image} is no multiple.'
        )
    with torch.device("meta"):
        vit = VisionTransformer(replace(shape, image=image))
    side = image // shape.patch
    state = native.vit.state_dict()
    vit.load_state_dict(state | {"pos_embed": _resample(state["pos_embed"], side)}, assign=True)
    return replace(native, vit=vit.freeze())


def _resample(pos_embed: Tensor, side: int) -> Tensor:
    """The position embedding (1, 1 + patches, width) for a grid of ``side`` by ``side`` patches; CLS keeps its own."""
    cls, grid = pos_embed[:, :1], pos_embed[:, 1:]
    old = math.isqrt(grid.shape[1])
    grid = grid.float().reshape(1, old, old, -1).permute(0, 3, 1, 2)  # (1, width, rows, columns)
    grid = F.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([cls, grid.flatten(2).transpose(1, 2).to(cls.dtype)], dim=1)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"The backbone's settings {path} cannot be read ({error.strerror}); they belong beside the weights."
        ) from error
    except ValueError as error:
        raise UserError(f"The backbone's settings {path} are not valid JSON ({error}); copy the file again.") from error
    if not isinstance(content, dict):
        raise UserError(f"The backbone's settings {path} are not a JSON object; copy the file again.")
    return content


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"The weights {path} cannot be read ({error.strerror}); check the path.") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"The weights {path} are no complete safetensors file ({error}); copy or download them again."
        ) from error


def _ours(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the backbone under timm's names, whatever the file calls them."""
    tensors = {name.removeprefix("vit."): tensor for name, tensor in tensors.items()}
    if any(name.startswith("encoder.layer.") for name in tensors):
        tensors = _joined_qkv({_renamed(name): tensor for name, tensor in tensors.items()})
    if any(name.startswith("pre_logits.") for name in tensors):
        # That head reads what pre_logits makes of the CLS feature; on the feature itself it would be wrong.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_UNUSED)}


def _renamed(name: str) -> str:
    name = name.replace("encoder.layer.", "blocks.")
    for theirs, ours in _RENAMED:
        if theirs in name:
            return name.replace(theirs, ours)
    return name


def _joined_qkv(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    joined = dict(tensors)
    for name in tensors:
        parts = [name.replace(".attn.query.", f".attn.{part}.") for part in ("query", "key", "value")]
        shapes = {tensors[part].shape for part in parts if part in tensors}
        if ".attn.query." in name and all(part in tensors for part in parts) and len(shapes) == 1:
            joined[name.replace(".attn.query.", ".attn.qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined


def _shape(tensors: dict[str, Tensor], config: dict[str, Any], files: _Files) -> Shape:
    needed = {"cls_token": 3, "pos_embed": 3, "patch_embed.proj.weight": 4, "blocks.0.mlp.fc1.weight": 2}
    absent = [name for name, ndim in needed.items() if name not in tensors or tensors[name].ndim != ndim]
    if absent:
        raise UserError(
            f"The weights {files.weights} are no ViT with a CLS token: without a usable {', '.join(absent)}."
        )
    cls_token, pos_embed, patch_embed, fc1 = (tensors[name] for name in needed)
    width, hidden, patch = cls_token.shape[-1], fc1.shape[0], patch_embed.shape[-1]
    side = math.isqrt(pos_embed.shape[1] - 1)
    if side**2 + 1 != pos_embed.shape[1]:
        raise UserError(
            f"The weights {files.weights} have {pos_embed.shape[1]} positions, which is not CLS and a square."
        )
    ratio = hidden / width
    if int(width * ratio) < hidden:  # rounding must not cost a hidden unit
        ratio = math.nextafter(ratio, math.inf)
    return Shape(
        width=width,
        depth=1 + max(int(name.split(".")[1]) for name in tensors if re.match(r"blocks\.\d+\.", name)),
        heads=_heads(config, width, files),
        patch=patch,
        image=side * patch,
        mlp_ratio=ratio,
        layer_norm_eps=float(config.get("layer_norm_eps", 1e-6)),  # timm's ViT has 1e-6 and does not say so
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        classes=len(tensors["head.weight"]) if "head.weight" in tensors else 0,
    )


def _heads(config: dict[str, Any], width: int, files: _Files) -> int:
    size = re.search("|".join(_HEADS), str(config.get("architecture", "")))
    heads = config.get("heads", config.get("num_attention_heads", _HEADS[size.group()] if size else None))
    if not isinstance(heads, int) or heads <= 0 or width % heads:
        raise UserError(
            f'The number of heads of "{files.name}" (width {width}) is {heads}; set "heads" in {files.config}.'
        )
    return heads


def _check_fit(vit: VisionTransformer, tensors: dict[str, Tensor], path: Path) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in vit.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    problems = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "misshapen": [f"{name} {found[name]}" for name in wanted if found.get(name, wanted[name]) != wanted[name]],
    }
    told = [
        f"{kind} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}" for kind, names in problems.items() if names
    ]
    if told:
        raise UserError(f"The weights {path} do not fit a plain Vision Transformer: {'; '.join(told)}.")


def _pixel_statistics(config: dict[str, Any], files: _Files) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the channels; 0.5 where nothing is said, the default of ViTs in timm and Hugging Face alike."""
    said = {**config, **config.get("pretrained_cfg", {})}
    if files.preprocessor is not None:
        said |= {key.removeprefix("image_"): value for key, value in _read_json(files.preprocessor).items()}
    mean, std = (said.get(key, [0.5, 0.5, 0.5]) for key in ("mean", "std"))
    channels = [*mean, *std] if isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) == 3 else []
    if not channels or not all(isinstance(value, int | float) for value in channels) or min(channels[3:]) <= 0:
        raise UserError(f'The backbone "{files.name}" has pixel mean {mean} and std {std}; both need three numbers.')
    return tuple(mean), tuple(std)
