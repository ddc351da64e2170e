"""Flower's own programs as child processes: each with a log, all stopped at the end, none left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedprompt.errors import UserError

STOP = 10.0  # seconds that a process gets to stop by itself
_PR_SET_PDEATHSIG = 1  # Linux: a signal to the child when its parent dies


class Processes:
    """Started programs; leaving the context stops them and all that they started."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start a program in a session of its own, so that Ctrl-C reaches us alone and we stop it in good order."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def check(self, name: str, log: Path) -> None:
        """One sentence if a program that should run has ended."""
        for process in self.running.values():
            process.poll()  # take leave of the dead: Flower's helpers of a node wait for that
        code = self.running[name].poll()
        if code is not None:
            raise UserError(f"{name} has stopped with code {code}; its last words are in {log}.")

    def stop(self, *names: str) -> None:
        """Stop these programs, or all, with everything that they started."""
        chosen = {name: self.running.pop(name) for name in names or reversed(list(self.running))}
        # By session: a helper that has lost its parent, or was started just now, is still of its parent's session.
        sessions = {process.pid for process in chosen.values()} | {
            line.session for line in family(list(chosen.values()))
        }
        for process in chosen.values():
            _signal(process.pid, signal.SIGTERM)
        until = time.monotonic() + STOP
        while time.monotonic() < until and any(process.poll() is None for process in chosen.values()):
            time.sleep(0.05)
        for process in chosen.values():
            _signal(process.pid, signal.SIGKILL)
            process.wait()
        while left := [line.pid for line in listing() if line.session in sessions and not line.ended]:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)


class Line(NamedTuple):
    """One process of this machine."""

    pid: int
    parent: int
    session: int
    ended: bool  # and not yet taken leave of


def listing() -> list[Line]:
    """All processes that there are now."""
    text = subprocess.run(["ps", "-eo", "pid=,ppid=,sess=,stat="], capture_output=True, text=True, check=False).stdout
    rows = (line.split() for line in text.splitlines())
    return [Line(int(pid), int(parent), int(session), state.startswith("Z")) for pid, parent, session, state in rows]


def family(processes: Sequence[subprocess.Popen[bytes]]) -> list[Line]:
    """All children of these, and theirs."""
    lines = listing()
    found: list[Line] = []
    queue = [process.pid for process in processes]
    while queue:
        parent = queue.pop()
        children = [line for line in lines if line.parent == parent]
        found += children
        queue += [line.pid for line in children]
    return found


def environment(home: Path, threads: int | None = None, pace: float = 0.5) -> dict[str, str]:
    """The environment of Flower's programs: their folder, this Python's programs, no telemetry, few threads.

    ``pace`` is how many seconds pass between two looks for work; many nodes on one machine should not look too often.
    """
    chosen = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(pace),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    if threads:
        chosen |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return chosen


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for_port(host: str, port: int, seconds: float) -> bool:
    """Whether somebody listens there before the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with socket.create_connection((host, port), timeout=1):
                return True
        except OSError:
            time.sleep(0.1)
    return False


def alive(pid: int) -> bool:
    """Whether a process still runs; one that ended and was not taken leave of does not."""
    return any(line.pid == pid and not line.ended for line in listing())


def end_with_parent() -> None:
    """In a process that Flower started for one task: end with the one that started it, whatever it waits for.

    Flower itself asks such an orphan to stop once; one that is then about to answer asks for its SuperNode for ever.
    """
    if sys.platform == "linux" and Path(sys.argv[0]).name in ("flwr-clientapp", "flwr-serverapp"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1 and "--parent-pid" in sys.argv:  # it is gone already
            os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
