"""Loading backbones: equal to transformers, right about a real cat, and clear about every bad file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedprompt.backbone import weights
from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.backbone.weights import Backbone, load_backbone
from fedprompt.errors import UserError

WEIGHTS = Path(__file__).resolve().parents[3] / "shared" / "weights"
SHAPE = Shape(width=48, depth=2, heads=3, patch=8, image=32, classes=5)
TIMM_CONFIG: dict[str, Any] = {
    "architecture": "vit_tiny_patch8_32",
    "num_classes": 5,
    "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]},
}


def random_tensors(shape: Shape = SHAPE) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    state = VisionTransformer(shape).state_dict()
    return {name: 0.3 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


def write_folder(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_file(folder: Path, name: str, tensors: dict[str, Tensor], **config: Any) -> Path:
    path = folder / f"{name}.safetensors"
    save_file(tensors, path)
    (folder / f"{name.removesuffix('.fp16')}.json").write_text(json.dumps({"heads": 3, **config}))
    return path


@pytest.fixture
def timm_folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "timm", random_tensors(), TIMM_CONFIG)


# ---- the layouts it reads


def test_folder_with_timm_names_loads_as_it_is(timm_folder: Path) -> None:
    backbone = load_backbone(str(timm_folder))
    assert backbone.vit.shape == SHAPE
    for name, tensor in load_file(timm_folder / "model.safetensors").items():
        assert torch.equal(backbone.vit.state_dict()[name], tensor)
    assert backbone.mean == (0.4, 0.5, 0.6)
    assert backbone.std == (0.2, 0.25, 0.3)
    assert backbone.name == "timm"
    assert backbone.checksum == hashlib.sha256((timm_folder / "model.safetensors").read_bytes()).hexdigest()


def test_file_with_json_beside_it_loads_and_half_precision_becomes_fp32(tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in random_tensors().items()}
    path = write_file(tmp_path, "model.v2.fp16", halves, mean=[0.1, 0.2, 0.3], std=[1, 1, 1], layer_norm_eps=1e-5)
    backbone = load_backbone(str(path))
    assert backbone.name == "model.v2"
    assert backbone.vit.shape.layer_norm_eps == 1e-5
    assert {parameter.dtype for parameter in backbone.vit.parameters()} == {torch.float32}
    assert torch.equal(backbone.vit.norm.weight, halves["norm.weight"].float())


@pytest.mark.parametrize("odd", [{"qkv_bias": False}, {"mlp_ratio": 2.0}, {"classes": 0}, {"depth": 11}, {"patch": 4}])
def test_shape_is_read_off_the_tensors(tmp_path: Path, odd: dict[str, Any]) -> None:
    shape = Shape(**{**vars(SHAPE), **odd})
    backbone = load_backbone(str(write_folder(tmp_path / "model", random_tensors(shape), TIMM_CONFIG)))
    assert backbone.vit.shape == shape


def test_hidden_units_are_not_lost_to_rounding(tmp_path: Path) -> None:
    tensors = random_tensors(Shape(width=224, depth=1, heads=7, patch=8, image=16, mlp_ratio=488.5 / 224))
    assert tensors["blocks.0.mlp.fc1.weight"].shape == (488, 224)
    assert int(224 * (488 / 224)) == 487
    backbone = load_backbone(str(write_folder(tmp_path / "model", tensors, {"heads": 7})))
    assert backbone.vit.blocks[0].mlp.fc1.out_features == 488


@pytest.mark.parametrize("classes", [0, 4], ids=["ViTModel", "ViTForImageClassification"])
@pytest.mark.parametrize(("qkv_bias", "eps"), [(True, 1e-12), (False, 1e-2)])
def test_hugging_face_model_gives_the_same_features(tmp_path: Path, classes: int, qkv_bias: bool, eps: float) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
        qkv_bias=qkv_bias, layer_norm_eps=eps, num_labels=classes or 2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = (transformers.ViTForImageClassification if classes else transformers.ViTModel)(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}')
    backbone = load_backbone(str(tmp_path))
    assert (backbone.mean, backbone.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        ours = backbone.vit(images)
        if classes:
            torch.testing.assert_close(backbone.vit.head(ours), model(images).logits, rtol=0, atol=1e-5)
        else:
            torch.testing.assert_close(ours, model(images).last_hidden_state[:, 0], rtol=0, atol=1e-5)


def test_head_behind_dropped_pre_logits_is_dropped_too(tmp_path: Path) -> None:
    tensors = random_tensors() | {"pre_logits.fc.weight": torch.ones(48, 48), "pre_logits.fc.bias": torch.ones(48)}
    vit = load_backbone(str(write_folder(tmp_path / "model", tensors, TIMM_CONFIG))).vit
    assert vit.shape.classes == 0
    assert not hasattr(vit, "head")


def test_pixel_statistics_default_to_one_half(tmp_path: Path) -> None:
    backbone = load_backbone(str(write_file(tmp_path, "plain", random_tensors())))
    assert backbone.mean == backbone.std == (0.5, 0.5, 0.5)


def test_normalise_centres_and_scales_each_channel(timm_folder: Path) -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    normalised = load_backbone(str(timm_folder)).normalise(images)
    expected = torch.tensor([(0 - 0.4) / 0.2, (0.2 - 0.5) / 0.25, (1 - 0.6) / 0.3])
    assert normalised.dtype == torch.float32
    torch.testing.assert_close(normalised, expected.view(1, 3, 1, 1).expand(2, 3, 32, 32))


# ---- frozen, and once per process


def test_backbone_is_frozen_and_loaded_once(timm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_backbone(str(timm_folder))
    assert not first.vit.training
    assert not any(parameter.requires_grad for parameter in first.vit.parameters())
    assert not any(parameter.is_meta for parameter in first.vit.parameters())
    monkeypatch.chdir(timm_folder.parent)
    assert load_backbone("timm") is first  # another spelling of the same place
    assert load_backbone(str(timm_folder), image=32, device=torch.device("cpu")) is first


def test_other_image_sizes_share_all_weights_but_the_positions(timm_folder: Path) -> None:
    native, larger = load_backbone(str(timm_folder)), load_backbone(str(timm_folder), image=48)
    assert larger is load_backbone(str(timm_folder), image=48)
    assert larger.vit.shape == Shape(**{**vars(SHAPE), "image": 48})
    assert not any(parameter.requires_grad for parameter in larger.vit.parameters())
    assert not larger.vit.training
    pointers = {name: parameter.data_ptr() for name, parameter in native.vit.named_parameters()}
    differing = [name for name, parameter in larger.vit.named_parameters() if parameter.data_ptr() != pointers[name]]
    assert differing == ["pos_embed"]
    assert larger.vit(torch.zeros(1, 3, 48, 48)).shape == (1, 48)


# ---- position embedding


def test_resampling_to_the_same_grid_changes_no_bit() -> None:
    pos_embed = torch.randn(1, 17, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(weights._resample(pos_embed, 4), pos_embed)


def test_resampling_keeps_cls_rows_columns_and_a_linear_field() -> None:
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    grid = torch.stack([rows, columns], dim=-1).reshape(1, 64, 2)
    pos_embed = torch.cat([torch.tensor([[[7.0, -7.0]]]), grid], dim=1)
    resampled = weights._resample(pos_embed, 16)
    assert resampled.shape == (1, 257, 2)
    assert torch.equal(resampled[:, 0], pos_embed[:, 0])
    inner = resampled[0, 1:].reshape(16, 16, 2)[4:12, 4:12]  # away from the border, where bicubic is linear on a line
    expected = (torch.arange(4.0, 12.0) + 0.5) / 2 - 0.5
    torch.testing.assert_close(inner[..., 0], expected[:, None].expand(8, 8))
    torch.testing.assert_close(inner[..., 1], expected[None, :].expand(8, 8))


@pytest.mark.parametrize("image", [30, 0, -8])
def test_image_that_is_no_multiple_of_the_patch_is_refused(timm_folder: Path, image: int) -> None:
    with pytest.raises(UserError, match=f"patches of 8 pixels; {image}"):
        load_backbone(str(timm_folder), image=image)


# ---- the real thing


def real_backbone(image: int | None = None) -> Backbone:
    files = sorted(WEIGHTS.glob("vit_tiny*.safetensors"))
    if not files:
        pytest.skip("no ViT-Ti/16 weights in ../shared/weights beside the repository")
    return load_backbone(str(files[0]), image)


@pytest.mark.parametrize("image", [None, 160])
def test_real_backbone_sees_a_cat(image: int | None) -> None:
    data = pytest.importorskip("skimage.data", reason="scikit-image is a development dependency")
    from PIL import Image

    backbone = real_backbone(image)
    side = backbone.vit.shape.image
    cat = Image.fromarray(data.chelsea()).crop((75, 0, 375, 300)).resize((side, side), Image.Resampling.BICUBIC)
    pixels = torch.frombuffer(bytearray(cat.tobytes()), dtype=torch.uint8).view(1, side, side, 3).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = backbone.vit.head(backbone.vit(backbone.normalise(pixels)))
    assert 281 <= logits.argmax().item() <= 285  # ImageNet's domestic cats
    assert logits.softmax(-1)[0, 281:286].sum() > 0.5


def test_real_backbone_has_its_published_checksum() -> None:
    backbone = real_backbone()
    stated = json.loads((WEIGHTS / f"{backbone.name}.json").read_text())
    assert backbone.checksum == stated["sha256"]
    assert backbone.vit.shape == Shape(width=192, depth=12, heads=3, patch=16, image=224, classes=1000)


# ---- the hub


def write_cache(cache: Path, hub_id: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """The hub's own cache layout, as if the model had been downloaded."""
    revision = "0" * 40
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    return write_folder(repository / "snapshots" / revision, tensors, config)


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_timm_model_in_the_hub_cache_loads_offline(offline_cache: Path) -> None:
    write_cache(offline_cache, "timm/vit_tiny_patch8_32", random_tensors(), TIMM_CONFIG)
    backbone = load_backbone("timm/vit_tiny_patch8_32")
    assert (backbone.name, backbone.vit.shape, backbone.mean) == ("timm/vit_tiny_patch8_32", SHAPE, (0.4, 0.5, 0.6))
    assert load_backbone("timm/vit_tiny_patch8_32") is backbone


def test_hugging_face_model_in_the_hub_cache_takes_its_preprocessor(offline_cache: Path) -> None:
    folder = write_cache(offline_cache, "someone/vit", random_tensors(), {"num_attention_heads": 4})
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}')
    backbone = load_backbone("someone/vit")
    assert (backbone.mean, backbone.std, backbone.vit.shape.heads) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 4)


@pytest.mark.parametrize("cached", ["nothing", "all but the preprocessor"])
def test_offline_and_not_in_the_cache_says_how_to_get_it(offline_cache: Path, cached: str) -> None:
    if cached != "nothing":
        write_cache(offline_cache, "google/vit-base-patch16-224-in21k", random_tensors(), {"num_attention_heads": 3})
    with pytest.raises(UserError, match=r"needs the network once.*HF_HUB_OFFLINE.*local file"):
        load_backbone("google/vit-base-patch16-224-in21k")


def hub_answers(monkeypatch: pytest.MonkeyPatch, folder: Path, absent: type[Exception]) -> None:
    """Put a folder in the hub's place; what it lacks is answered as the hub answers over the network."""

    def download(_: str, file: str) -> str:
        if not (folder / file).exists():
            error = absent.__new__(absent)  # the real ones want a whole HTTP response
            error.args = ("404 Client Error\nand a long story",)
            raise error
        return str(folder / file)

    monkeypatch.setattr(weights, "hf_hub_download", download)


def test_hub_model_without_preprocessor_has_default_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, random_tensors(), {"num_attention_heads": 3})
    hub_answers(monkeypatch, tmp_path, EntryNotFoundError)
    assert load_backbone("someone/plain").mean == (0.5, 0.5, 0.5)


def test_hub_is_asked_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, write_folder(tmp_path, random_tensors(), TIMM_CONFIG), EntryNotFoundError)
    first = load_backbone("someone/asked-once")
    monkeypatch.delattr(weights, "hf_hub_download")
    assert load_backbone("someone/asked-once") is first


def test_hub_model_without_safetensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    hub_answers(monkeypatch, tmp_path, EntryNotFoundError)
    with pytest.raises(UserError, match=r"has no model\.safetensors.*pickles are never read"):
        load_backbone("someone/pickled")


def test_unknown_hub_id_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, tmp_path, RepositoryNotFoundError)
    with pytest.raises(UserError, match="check the id and your access") as caught:
        load_backbone("nobody/nothing")
    assert "\n" not in str(caught.value)


# ---- what is wrong with a file, in one sentence


@pytest.mark.parametrize("source", ["vit", "./no/such/folder", "a/b/c"])
def test_source_of_no_known_kind_is_refused(source: str) -> None:
    with pytest.raises(UserError, match="neither"):
        load_backbone(source)


def test_missing_weight_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match=r"x\.safetensors cannot be read \(No such file"):
        load_backbone(str(tmp_path / "x.safetensors"))


def test_missing_settings_are_named(tmp_path: Path) -> None:
    save_file(random_tensors(), tmp_path / "x.fp16.safetensors")
    with pytest.raises(UserError, match=r"x\.json cannot be read.*beside the weights"):
        load_backbone(str(tmp_path / "x.fp16.safetensors"))


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_damaged_settings_are_named(timm_folder: Path, text: str, message: str) -> None:
    (timm_folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        load_backbone(str(timm_folder))


def test_checksum_that_does_not_match_means_damage(tmp_path: Path) -> None:
    path = write_file(tmp_path, "good", random_tensors())
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "good.json").write_text(json.dumps({"heads": 3, "sha256": checksum}))
    assert load_backbone(str(path)).checksum == checksum
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1  # still a safetensors file, with one bit of one weight changed
    (tmp_path / "bad.safetensors").write_bytes(damaged)
    (tmp_path / "bad.json").write_text(json.dumps({"heads": 3, "sha256": checksum}))
    with pytest.raises(UserError, match="damaged: their sha256"):
        load_backbone(str(tmp_path / "bad.safetensors"))


@pytest.mark.parametrize("keep", [0, 5, 2_000, -1])
def test_truncated_weights_are_refused(timm_folder: Path, keep: int) -> None:
    whole = (timm_folder / "model.safetensors").read_bytes()
    (timm_folder / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(UserError, match="no complete safetensors file"):
        load_backbone(str(timm_folder))


def test_pickled_weights_are_refused_unread(timm_folder: Path) -> None:
    torch.save(random_tensors(), timm_folder / "model.safetensors")
    with pytest.raises(UserError, match="no complete safetensors file"):
        load_backbone(str(timm_folder))


def without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in random_tensors().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (without("blocks.1.norm2.bias"), r"missing blocks\.1\.norm2\.bias"),
        (without("blocks.0.attn.qkv.weight"), r"missing blocks\.0\.attn\.qkv\.weight"),
        (random_tensors() | {"blocks.0.ls1.gamma": torch.ones(48)}, r"unexpected blocks\.0\.ls1\.gamma"),
        (random_tensors() | {"norm.weight": torch.ones(47)}, r"misshapen norm\.weight \(47,\)"),
        (random_tensors() | {"patch_embed.proj.weight": torch.ones(48, 1, 8, 8)}, r"misshapen patch_embed\.proj"),
        (without("cls_token"), "no ViT with a CLS token: without a usable cls_token"),
        (random_tensors() | {"cls_token": torch.ones(())}, "usable cls_token"),
        ({"weight": torch.ones(2)}, "usable cls_token, pos_embed, patch_embed"),
        (random_tensors() | {"pos_embed": torch.ones(1, 16, 48)}, "16 positions"),
        ({f"layers.{i}": torch.ones(1) for i in range(9)} | random_tensors(), r"layers\.2 \.\.\."),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_backbone(str(write_folder(tmp_path / "model", tensors, TIMM_CONFIG)))


def test_hugging_face_weights_without_a_key_projection_are_named(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is a development dependency")
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items() if not name.endswith("attention.key.weight")}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"missing blocks\.0\.attn\.qkv\.weight; unexpected blocks\.0\.attn\.query"):
        load_backbone(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "vit_odd"}, "number of heads .* is None"),
        ({"heads": 5}, r"number of heads .*width 48.* is 5"),
        ({"num_attention_heads": "3"}, "number of heads"),
        ({"heads": 3, "hidden_act": "quick_gelu"}, "activation quick_gelu"),
        ({"heads": 3, "mean": [0.5]}, "three numbers"),
        ({"heads": 3, "mean": 0.5}, "three numbers"),
        ({"heads": 3, "std": [1, 1, 0]}, "three numbers"),
        ({"heads": 3, "std": ["1", 1, 1]}, "three numbers"),
    ],
)
def test_settings_that_cannot_be_are_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_backbone(str(write_folder(tmp_path / "model", random_tensors(), config)))


def test_mini_is_read_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a stand-in package, so that it holds whatever the embedded file is."""
    (tmp_path / "mini").mkdir()
    write_file(tmp_path / "mini", "mini_vit", random_tensors())
    monkeypatch.setattr(weights.resources, "files", lambda package: {"fedprompt.backbone": tmp_path}[package])
    backbone = load_backbone("mini")
    assert (backbone.name, backbone.vit.shape) == ("mini", SHAPE)


def test_embedded_mini_loads_and_tells_images_apart() -> None:
    backbone = load_backbone("mini")
    side = backbone.vit.shape.image
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = backbone.vit(backbone.normalise(images))
    assert features.isfinite().all()
    assert (features[0] - features[1]).abs().max() > 1e-3
