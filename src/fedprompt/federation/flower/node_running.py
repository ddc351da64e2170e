"""A node at its post: Flower's SuperNode, started again whenever it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedprompt.errors import UserError
from fedprompt.federation.flower.node_folder import start_command
from fedprompt.federation.flower.node_settings import read_node_settings
from fedprompt.federation.flower.processes import Processes, environment, free_ports

NAME = "The SuperNode"
POLL = 0.3  # seconds between two looks
AGAIN = 15.0  # seconds before a SuperNode that ended is started again
ANSWER = 10.0  # seconds for a node's answer to reach the server


def keep_running(folder: Path, say: Callable[[str], None]) -> None:
    """Run a node until Ctrl-C. Flower's program ends when the SuperLink was restarted, or does not know it yet."""
    with Processes() as processes:
        while True:
            _start(folder, processes)
            say(f"{NAME} is up; its log is {folder / 'supernode.log'}.")
            while processes.running[NAME].poll() is None:
                time.sleep(POLL)
            processes.stop(NAME)
            say(f"{NAME} has ended; it is started again in {AGAIN:g} s.")
            time.sleep(AGAIN)


def receive_model(folder: Path, seconds: float) -> Path:
    """Connect a node until it has got a model from the server, and no longer."""
    path = folder / "model.safetensors"
    before = path.stat().st_mtime_ns if path.is_file() else 0
    until = time.monotonic() + seconds
    with Processes() as processes:
        _start(folder, processes)
        while not (path.is_file() and path.stat().st_mtime_ns != before):
            processes.check(NAME, folder / "supernode.log")
            if time.monotonic() > until:
                raise UserError(f"No model came within {seconds:g} s; has the server's side run federation welcome?")
            time.sleep(POLL)
        time.sleep(ANSWER)  # the answer with the figures is still on its way
    return path


def _start(folder: Path, processes: Processes) -> None:
    around = environment(folder.resolve() / "flower", read_node_settings(folder).threads or None)
    processes.start(NAME, start_command(folder, free_ports(1)[0]), folder / "supernode.log", around)
