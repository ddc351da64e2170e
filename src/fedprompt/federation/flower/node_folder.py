"""Making a node's folder: the data check, the class map by name, the keys, and how to start it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.data.dataset import Dataset, count_and_name
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import disk_error, write_atomically
from fedprompt.federation.flower.credentials import make_node_keys
from fedprompt.federation.flower.node_images import own_images
from fedprompt.federation.flower.node_settings import FILE, NodeSettings
from fedprompt.federation.flower.papers import Card, Invitation


@dataclass(frozen=True)
class DataCheck:
    """What was found in a node's images; it stays at the node but for the number of training images."""

    train: int
    test: int
    by_class: dict[str, int]  # training images under the federation's class names
    lacking: tuple[str, ...]  # classes of the federation that the node has no image of


def init_node(folder: Path, own: NodeSettings, invitation: Invitation) -> tuple[Card, DataCheck]:
    """Prepare a node's folder; nothing is written unless images, classes and weights are right."""
    if (folder / FILE).exists():
        raise UserError(f"{folder} is a node already; its keys and personal tensors are not written over.")
    backbone = load_backbone(own.weights)
    if backbone.checksum != invitation.backbone:
        raise UserError(
            f"The weights {own.weights!r} are not those of the federation ({invitation.weights!r}); "
            "get the same file and name it with --weights."
        )
    found = check_images(own, invitation)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = make_node_keys(folder)
    except OSError as error:
        raise disk_error(error, folder) from None
    card = Card(name=own.name, key=key, images=found.train)
    write_atomically(folder / "ca.crt", invitation.certificate.encode())
    card.write(folder / "card.toml")
    invitation.write(folder / "invitation.toml")
    own.write(folder)  # last: it marks the folder as a node
    return card, found


def describe_images(root: Path, test_fraction: float, *, skip_unreadable: bool) -> tuple[DataSettings, Dataset]:
    """A folder of images as data settings, each file checked: root/class/image, or root/domain/class/image."""
    base = {"root": root.resolve(), "test_fraction": test_fraction, "unreadable": "skip"}
    try:
        settings = DataSettings(name="folder", **base)
        dataset = open_dataset(settings)
    except UserError as flat:
        if "'domains'" not in str(flat):
            raise
        settings = DataSettings(name="domains", **base)
        dataset = open_dataset(settings)
    if dataset.unreadable and not skip_unreadable:
        raise UserError(
            f"{count_and_name(dataset.unreadable)}; mend or remove them, or leave them out with --skip-unreadable."
        )
    return settings, dataset


def class_map(folders: tuple[str, ...], agreed: tuple[str, ...], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The agreed class of each class folder: by name, or as ``wanted`` says (folder=class).

    >>> class_map(("Cat", "hound"), ("cat", "dog"), {"hound": "dog"})
    ('cat', 'dog')
    """
    by_name = {name.casefold(): name for name in agreed}
    found = []
    for folder in folders:
        name = wanted.get(folder) or by_name.get(folder.casefold())
        if name not in agreed:
            near = difflib.get_close_matches(folder, agreed, n=1)
            example = f"--map {folder}={near[0] if near else agreed[0]}"
            raise UserError(
                f"The class folder {folder!r} is no class of the federation ({', '.join(agreed)}); say which it is "
                f"with {example}, or move it out."
            )
        found.append(name)
    strange = [folder for folder in wanted if folder not in folders]
    if strange:
        raise UserError(f"--map names {strange[0]!r}, but there is no such class folder.")
    return tuple(found)


def check_images(own: NodeSettings, invitation: Invitation) -> DataCheck:
    """Count a node's images under the federation's class names."""
    data = own.images.model_copy(update={"validation": invitation.validation}) if own.images else DataSettings()
    config = Config(data=data)
    dataset, part = own_images(own, config, invitation.classes)
    counts = np.bincount(dataset.train.labels[part.train], minlength=len(invitation.classes))
    by_class = {name: int(count) for name, count in zip(invitation.classes, counts, strict=True) if count}
    lacking = tuple(name for name in invitation.classes if name not in by_class)
    return DataCheck(len(part.train), len(part.test), by_class, lacking)


def start_command(folder: Path, port: int | None = None) -> list[str]:
    """Flower's own program with what this node needs."""
    folder = folder.resolve()
    invitation = Invitation.read(folder / "invitation.toml")
    command = ["flower-supernode", "--superlink", invitation.address]
    command += ["--root-certificates", str(folder / "ca.crt")]
    command += ["--auth-supernode-private-key", str(folder / "node.key")]
    command += ["--node-config", f'folder="{folder}"']
    return command + (["--port", str(port)] if port else [])


def start_line(folder: Path) -> str:
    """The same as a line for a shell."""
    return shlex.join(start_command(folder))
