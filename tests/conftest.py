"""What tests share: a tiny random ViT, a small preset, and the real files where they are there."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import fedprompt
from fedprompt.backbone.vit import Shape, VisionTransformer
from fedprompt.backbone.weights import Backbone

REPOSITORY = Path(__file__).resolve().parent.parent

# A run of seconds: six clients with two styles each, two dozen images a client.
SMALL = {
    "training.rounds": 3,
    "training.batch": 16,
    "data.train_per_domain": 24,
    "data.test_per_domain": 12,
    "partition.domains_per_client": 2,
}


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory):
    """Two threads unless told otherwise, Ctrl-C works, and nothing is written to the user's own cache."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs deaf to it
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    os.environ["FEDPROMPT_CACHE"] = str(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session")
def small() -> dict[str, object]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def tiny_backbone() -> Backbone:
    """A random ViT with two layers on 16 px images."""
    torch.manual_seed(0)
    vit = VisionTransformer(Shape(width=24, depth=2, heads=2, patch=4, image=16))
    for parameter in vit.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return Backbone(vit.freeze(), (0.5,) * 3, (0.5,) * 3, "tiny", "0" * 64)


TINY = """\
# A federation of a second: four clients, two domains, three classes, a random ViT.
name = "tiny"
method = "pfedbayespt"
threads = 1

[backbone]
weights = "{folder}/tiny_vit.safetensors"

[data]
name = "domains"
root = "{folder}/images"
test_fraction = 0.4

[partition]
clients = 4
domains_per_client = 1

[training]
rounds = 3
epochs = 1
batch = 8

[evaluation]
last = 2

[methods.pfedbayespt]
length = 2
hidden = 4
samples = 3
learning_rate = 0.1
"""


@pytest.fixture(scope="session")
def tiny_weights(tiny_backbone, tmp_path_factory) -> Path:
    """The tiny ViT as a weight file with its JSON beside it."""
    path = tmp_path_factory.mktemp("tiny") / "tiny_vit.safetensors"
    save_file(tiny_backbone.vit.state_dict(), path)
    path.with_suffix(".json").write_text(json.dumps({"heads": tiny_backbone.vit.shape.heads}))
    return path


@pytest.fixture(scope="session")
def tiny_toml(tiny_weights) -> Path:
    """A settings file for runs of about a second: images on disk whose class is their brightness."""
    folder = tiny_weights.parent
    generator = np.random.default_rng(0)
    for domain in ("day", "night"):
        for label, kind in enumerate(("dark", "grey", "light")):
            place = folder / "images" / domain / kind
            place.mkdir(parents=True)
            for number in range(20):
                noise = generator.integers(0, 60, (16, 16, 3)) + 80 * label
                Image.fromarray((255 - noise if domain == "night" else noise).astype(np.uint8)).save(
                    place / f"{number}.png"
                )
    path = folder / "tiny.toml"
    path.write_text(TINY.format(folder=folder.as_posix()))
    return path


@pytest.fixture(scope="session")
def tiny_run(tiny_toml, tmp_path_factory) -> fedprompt.Run:
    """A finished run of pFedBayesPT; not to be written to."""
    return fedprompt.run(tiny_toml, out=tmp_path_factory.mktemp("runs"))
