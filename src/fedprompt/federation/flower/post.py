"""Messages to clients and their answers, with a deadline; and who is connected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedprompt.federation.flower import wire

POLL = 0.5  # seconds between two looks for answers
LOOK = 5.0  # seconds between two looks at who is connected
GRACE = 60.0  # seconds that Flower keeps a message beyond our own deadline

Answers = dict[int, RecordDict]
Reasons = dict[int, str]  # why a client gave none; goes on after its name


class Post:
    """Flower's grid in terms of clients. A node is who its key was registered for, whatever it says."""

    def __init__(self, grid: Grid, clients: Mapping[str, int], deadline: float) -> None:
        self.grid, self.clients, self.deadline = grid, clients, deadline
        self._told: dict[int, str] = {}  # names that nodes without a registered one gave, in a simulation

    def exchange(
        self, kind: str, contents: Answers, number: int, on_answer: Callable[[], None] = lambda: None
    ) -> tuple[Answers, Reasons]:
        """Send each client its message and take what comes back before the deadline; the others with the reason."""
        answers: Answers = {}
        nodes = self.connected()
        missing: Reasons = dict.fromkeys(contents.keys() - nodes.keys(), "is not connected")
        here = [client for client in contents if client in nodes]
        messages = [
            Message(contents[client], nodes[client], kind, ttl=self.deadline + GRACE, group_id=str(number))
            for client in here
        ]
        sent = dict(zip(self.grid.push_messages(messages), here, strict=True)) if messages else {}
        waiting = {identifier: client for identifier, client in sent.items() if identifier}
        missing |= dict.fromkeys(set(here) - set(waiting.values()), "could not be sent its message")
        until, look = time.monotonic() + self.deadline, time.monotonic() + LOOK
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:
                    _sort(client, reply, answers, missing)
                    on_answer()
            if time.monotonic() > look:
                look, present = time.monotonic() + LOOK, self.connected()
                for identifier in [one for one, client in waiting.items() if client not in present]:
                    missing[waiting.pop(identifier)] = "left in the middle of the round"
            if waiting:
                time.sleep(POLL)
        return answers, missing | dict.fromkeys(waiting.values(), f"did not answer within {self.deadline:g} s")

    def connected(self) -> dict[int, int]:
        """The node of each client that is connected now."""
        found: dict[int, int] = {}
        for node in self.grid.get_nodes():
            name = getattr(node, "name", "") or self._ask_name(node.node_id)
            if name in self.clients:
                found[self.clients[name]] = node.node_id
        return found

    def wait_for(self, wanted: list[int], enough: int) -> None:
        """Wait until so many of these are connected, or the deadline has passed."""
        until = time.monotonic() + self.deadline
        while len(self.connected().keys() & set(wanted)) < enough and time.monotonic() < until:
            time.sleep(POLL)

    def _ask_name(self, node: int) -> str:
        """In a simulation nodes have no registered name, and no stranger can be among them."""
        if node not in self._told:
            question = Message(RecordDict({"hello": ConfigRecord()}), node, wire.HELLO, ttl=GRACE)
            for reply in self.grid.send_and_receive([question], timeout=GRACE):
                with suppress(ValueError, KeyError):
                    self._told[node] = str(reply.content.config_records["node"]["name"])
        return self._told.get(node, "")


def _sort(client: int, reply: Message, answers: Answers, missing: Reasons) -> None:
    if reply.has_error():
        missing[client] = "failed before it could answer"
    elif reason := wire.read_failure(reply.content):
        missing[client] = reason
    else:
        answers[client] = reply.content
