"""Commands of a data owner: prepare a node, get a model as a new client, and use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedprompt.cli.console import Json, say
from fedprompt.cli.federation import stopping
from fedprompt.cli.prediction import show_prediction
from fedprompt.errors import UserError
from fedprompt.federation.flower import require_flower

app = typer.Typer(no_args_is_help=True, help="For an organisation that joins a federation with its own images.")
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder.")]


@app.command("init")
def init(
    folder: Folder,
    images: Annotated[Path, typer.Option(help="Your images: FOLDER/class/image or FOLDER/domain/class/image.")],
    name: Annotated[str, typer.Option(help="The node's name: small letters, digits and hyphens.")],
    invitation: Annotated[Path, typer.Option(help="The file that the server's people gave you.")],
    weights: Annotated[str | None, typer.Option(help="Your copy of the backbone; by default as invited.")] = None,
    mapping: Annotated[list[str] | None, typer.Option("--map", help="Which class a folder is: folder=class.")] = None,
    test_fraction: Annotated[float, typer.Option(min=0.01, max=0.9, help="Share kept for your own test.")] = 0.3,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave broken image files out.")] = False,
    as_json: Json = False,
) -> None:
    """Prepare a node: check the images, agree on the classes by name, make keys. Sends nothing."""
    require_flower()
    from fedprompt.federation.flower.node_folder import class_map, describe_images, init_node, start_line
    from fedprompt.federation.flower.node_settings import make_node_settings
    from fedprompt.federation.flower.papers import Invitation

    invited = Invitation.read(invitation)
    data, dataset = describe_images(images, test_fraction, skip_unreadable=skip_unreadable)
    classes = class_map(dataset.classes, invited.classes, _pairs(mapping or []))
    own = make_node_settings(
        name=name, images=data, folders=dataset.classes, classes=classes, weights=weights or invited.weights
    )
    card, found = init_node(folder, own, invited)
    if as_json:
        about = {"train": found.train, "test": found.test, "classes": found.by_class, "lacking": found.lacking}
        print(
            json.dumps({"folder": str(folder), "card": str(folder / "card.toml"), "start": start_line(folder), **about})
        )
        return
    say(f"{found.train} images to train on, {found.test} to test on.")
    for label, count in found.by_class.items():
        say(f"  {label}: {count}")
    if found.lacking:
        say(f"No images of: {', '.join(found.lacking)}. That is allowed.")
    say(
        f"Send {folder / 'card.toml'} to the server's people (name, public key, {card.images} images). Then start with:"
    )
    say(f"  fedprompt client start {folder}")
    say("or, under a service manager that starts it again when it ends, with Flower's own program:")
    say(f"  {start_line(folder)}")


@app.command("start")
def start(folder: Folder) -> None:
    """Run the node with Flower's SuperNode, and again whenever it ends; Ctrl-C stops it."""
    require_flower()
    from fedprompt.federation.flower.node_running import keep_running

    with stopping():
        keep_running(folder, say)


@app.command("adapt")
def adapt(
    folder: Folder,
    wait: Annotated[float, typer.Option(min=1, help="Seconds to wait for the model.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Join a running or finished federation as a new client: fine-tune the head on your images and keep the model.

    The server's people let you in with `fedprompt federation admit --new-client` and `fedprompt federation welcome`.
    """
    require_flower()
    from fedprompt.federation.flower.node_running import receive_model

    if not as_json:
        say("Waiting for the server's welcome.")
    with stopping():
        path = receive_model(folder, wait)
    if as_json:
        print(json.dumps({"folder": str(folder), "model": str(path)}))
    else:
        say(f"The model is in {path}; use it with: fedprompt client predict {folder} IMAGE")


@app.command("predict")
def predict(
    folder: Folder,
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 3,
    as_json: Json = False,
) -> None:
    """Classify images with the node's own model, the latest that it evaluated or adapted. Needs no network."""
    from fedprompt.federation.flower.node_model import node_predictor

    show_prediction(node_predictor(folder)(images), images, top, as_json=as_json)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        folder, equals, name = text.partition("=")
        if not equals or not folder or not name:
            raise UserError(f"--map is {text!r}, but it must be folder=class, as in hounds=dog.")
        pairs[folder] = name
    return pairs
