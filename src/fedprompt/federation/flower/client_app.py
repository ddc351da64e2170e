"""What runs at a node: Flower hands it a message, it answers with shared tensors, counts and figures alone."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedprompt.federation.flower import wire
from fedprompt.federation.flower.node import node_for
from fedprompt.federation.flower.node_images import NodeRefusalError
from fedprompt.federation.flower.node_settings import read_node_settings
from fedprompt.federation.flower.processes import end_with_parent
from fedprompt.federation.flower.wire import Order

Folder = Callable[[Context], Path]


def folder_of(context: Context) -> Path:
    """The node's folder, as ``flower-supernode --node-config 'folder="..."'`` says."""
    return Path(str(context.node_config["folder"]))


def make_client_app(folder: Folder = folder_of) -> ClientApp:
    """The app of a node; ``folder`` says where its own things are."""
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        def work() -> RecordDict:
            return RecordDict({"node": ConfigRecord({"name": read_node_settings(folder(context)).name})})

        return _answer(message, folder(context), work)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        def work() -> RecordDict:
            node = node_for(folder(context), Order.from_content(message.content))
            return wire.update_content(node.train(wire.unpack(message.content, "payload")))

        return _answer(message, folder(context), work)

    @app.train("join")
    def join(message: Message, context: Context) -> Message:
        def work() -> RecordDict:
            node = node_for(folder(context), Order.from_content(message.content))
            return wire.update_content(node.train(wire.unpack(message.content, "payload"), "joining"))

        return _answer(message, folder(context), work)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        def work() -> RecordDict:
            node = node_for(folder(context), Order.from_content(message.content))
            return wire.tally_content(node.evaluate(wire.unpack(message.content, "payload")))

        return _answer(message, folder(context), work)

    @app.train("adapt")
    def adapt(message: Message, context: Context) -> Message:
        def work() -> RecordDict:
            node = node_for(folder(context), Order.from_content(message.content))
            return wire.tally_content(node.adapt(wire.unpack(message.content, "payload")))

        return _answer(message, folder(context), work)

    return app


def _answer(message: Message, folder: Path, work: Callable[[], RecordDict]) -> Message:
    """Do the work; an error's text may name a patient's file, so it stays in the node's own log."""
    try:
        content = work()
    except NodeRefusalError as refusal:
        _note(folder, str(refusal))
        content = wire.failure_content(str(refusal))
    except Exception:
        _note(folder, traceback.format_exc())
        content = wire.failure_content("failed; the reason is in the node's own log")
    return Message(content, reply_to=message)


def _note(folder: Path, text: str) -> None:
    logging.getLogger("fedprompt").error(text)
    with (folder / "node.log").open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text.rstrip()}\n")


end_with_parent()
app = make_client_app()
