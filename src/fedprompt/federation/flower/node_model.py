"""A node's own classifier, out of its folder; it needs neither Flower nor the network."""

from __future__ import annotations

from pathlib import Path

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.device import pick_device
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import load_state
from fedprompt.federation.flower.node_settings import read_node_settings
from fedprompt.methods import method_class
from fedprompt.methods.base import Task
from fedprompt.run_folder import read_json
from fedprompt.serve.predictor import Predictor


def node_predictor(folder: Path) -> Predictor:
    """The latest model that the node evaluated or adapted."""
    own = read_node_settings(folder)
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"The node in {folder} has no model yet: it gets one with the first round it is evaluated in.")
    about = read_json(folder / "model.json")
    tree = about["settings"]
    tree["backbone"] = tree.get("backbone", {}) | {"weights": own.weights}
    config = Config(**tree)
    device = pick_device(own.device)
    backbone = load_backbone(own.weights, config.backbone.image, device, config.backbone.precision)
    method = method_class(config.method)(
        config.method_settings(), Task(backbone, len(about["classes"]), about["clients"])
    )
    params = load_state(folder / "model.safetensors", device=device).personal[0]
    return Predictor(method, params, tuple(about["classes"]), config.seed)
