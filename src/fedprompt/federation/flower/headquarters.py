"""The server's side: its folder, who is admitted, and Flower's SuperLink with our app on it.

A federation's folder holds::

    federation.toml   classes, members and their numbers      tls/       certificates; server.key is private
    invitation.toml   what to hand to each organisation       members/   the public key of each member
    app/              the Flower app: two names of modules    flower/    Flower's own files and logs
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedprompt import runs
from fedprompt.backbone.weights import load_backbone
from fedprompt.config import Config
from fedprompt.errors import UserError
from fedprompt.federation.checkpoint import write_atomically
from fedprompt.federation.flower.charter import FILE, Charter, read_charter
from fedprompt.federation.flower.credentials import make_server_certificates
from fedprompt.federation.flower.papers import Card, Invitation
from fedprompt.federation.flower.processes import Processes, alive, environment, wait_for_port
from fedprompt.federation.flower.server_app import status_path
from fedprompt.run_folder import read_records
from fedprompt.toml_text import to_toml

CONNECTION = "federation"
START = 120.0  # seconds for Flower's programs to come up
WATCH = 0.3  # seconds between two looks at how a run goes
Report = Callable[[dict[str, Any]], None]


def init_federation(folder: Path, run: Path, config: Config, classes: tuple[str, ...], address: str) -> Invitation:
    """Make a federation's folder, with certificates, and the folder of its run."""
    if (folder / FILE).exists():
        raise UserError(f"{folder} is a federation already; it is not written over.")
    host, port = split_address(address)
    backbone = load_backbone(config.backbone.weights, config.backbone.image)
    hosts = list(dict.fromkeys([host, "localhost", "127.0.0.1"]))
    make_server_certificates(folder / "tls", hosts)
    certificate = (folder / "tls" / "ca.crt").read_text()
    weights = config.backbone.weights
    invitation = Invitation(
        address=address,
        certificate=certificate,
        classes=classes,
        weights=Path(weights).name if Path(weights).is_absolute() else weights,
        backbone=backbone.checksum,
        method=config.method,
        validation=config.data.validation,
    )
    invitation.write(folder / "invitation.toml")
    _write_app(folder, run)
    write_connection(folder, port)
    write_atomically(run / "config.toml", to_toml(config.resolved()).encode() + b"\n")
    Charter(run=uuid.uuid4().hex, address=address, classes=classes).write(folder)  # last: it marks the folder
    return invitation


def write_connection(folder: Path, port: int) -> None:
    """Flower's note of where the SuperLink is: its own machine reaches it on the loopback, whatever others call it."""
    connection = {"address": f"127.0.0.1:{port}", "root-certificates": str((folder / "tls" / "ca.crt").resolve())}
    home = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    write_atomically(folder / "flower" / "config.toml", to_toml(home).encode() + b"\n")


def _write_app(folder: Path, run: Path) -> None:
    """The Flower app is two names: the code is the installed package on either side, so no code travels in it."""
    app = {
        "project": {"name": "fedprompt-app", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedprompt",
                    "components": {
                        "serverapp": "fedprompt.federation.flower.server_app:app",
                        "clientapp": "fedprompt.federation.flower.client_app:app",
                    },
                    "config": {"federation": str(folder.resolve()), "run": str(run.resolve()), "welcome": ""},
                }
            }
        },
    }
    write_atomically(folder / "app" / "pyproject.toml", to_toml(app).encode() + b"\n")


def admit(folder: Path, card: Card, *, trains: bool = True) -> Charter:
    """Let a node in by its card: its key, and the number of images that it cannot exceed."""
    charter = read_charter(folder)
    path = folder / "members" / f"{card.name}.pub"
    if path.exists() and path.read_text().strip() != card.key:
        raise UserError(f"{card.name!r} was admitted with another key; remove {path} first if it really has a new one.")
    write_atomically(path, card.key.encode() + b"\n")
    charter = charter.admit(card.name, card.images, trains=trains)
    charter.write(folder)
    return charter


class Headquarters:
    """A federation's server at work: SuperLink, registered members, and runs on it."""

    def __init__(self, folder: Path, processes: Processes, threads: int | None = None) -> None:
        self.folder = folder.resolve()
        self.processes = processes
        self.environment = environment(self.folder / "flower", threads)
        self.log = self.folder / "flower" / "superlink.log"

    def start(self, host: str = "127.0.0.1") -> None:
        """Start Flower's SuperLink with TLS and node authentication, and register everybody admitted."""
        if self.listens():
            raise UserError("The federation's port is taken; is its SuperLink running already?")
        self.processes.start("The SuperLink", superlink_command(self.folder, host), self.log, self.environment)
        if not self.listens(START):
            self.check()
            raise UserError(f"The SuperLink did not come up within {START:g} s; see {self.log}.")
        self.register()

    def listens(self, seconds: float = 0.2) -> bool:
        """Whether the SuperLink is up, or comes up before the time is over."""
        _, port = split_address(read_charter(self.folder).address)
        return wait_for_port("127.0.0.1", port, seconds)

    def check(self) -> None:
        self.processes.check("The SuperLink", self.log)

    def register(self) -> None:
        """Make every admitted key known to the SuperLink; to register one again is no harm."""
        waiting = []
        for name in read_charter(self.folder).members:
            key = self.folder / "members" / f"{name}.pub"
            command = ["flwr", "supernode", "register", str(key), CONNECTION, "--name", name, "--format", "json"]
            waiting.append((name, self._flwr(command)))
            if len(waiting) >= (os.cpu_count() or 1):
                _check_registered(*waiting.pop(0))
        for name, process in waiting:
            _check_registered(name, process)

    def submit(self, welcome: str = "") -> str:
        """Start our app on the SuperLink, to train or to welcome one new client; returns Flower's number of the run."""
        command = ["flwr", "run", str(self.folder / "app"), CONNECTION, "--format", "json"]
        if welcome:
            command += ["--run-config", f'welcome="{welcome}"']
        out, err = self._flwr(command).communicate(timeout=START)
        answer = _last_json(out)
        if not answer.get("success"):
            raise UserError(f"Flower did not start the run: {_one_line(out + err)}")
        return str(answer["run-id"])

    def status(self, path: Path, since: float) -> dict[str, Any]:
        """How the server app goes; one that was killed says nothing any more, which is a failure too."""
        try:
            status: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return {"state": "waiting"}
        if status["time"] < since:
            return {"state": "waiting"}  # that of an earlier start
        if status["state"] == "running" and not alive(status["process"]):
            return {"state": "failed", "reason": "The server app was killed."}
        return status

    def _flwr(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


def follow(server: Headquarters, run: Path, report: Report = lambda record: None) -> runs.Run:
    """Train a run to its end, reporting each round's record as it is written."""
    since, seen = time.time(), len(read_records(run / "metrics.jsonl"))
    server.submit()
    while True:
        status = server.status(status_path(server.folder), since)
        records = read_records(run / "metrics.jsonl")
        for record in records[seen:]:
            report(record)
        seen = max(seen, len(records))
        if status["state"] == "finished":
            return runs.load_run(run)
        if status["state"] == "failed":
            raise UserError(str(status["reason"]))
        server.check()
        time.sleep(WATCH)


def welcome_client(server: Headquarters, name: str) -> dict[str, Any]:
    """Give one new client a model, on a SuperLink that runs already; returns its figures on its own test images."""
    if name not in read_charter(server.folder).members:
        raise UserError(f"Nobody of the name {name!r} was admitted; use fedprompt federation admit.")
    if not server.listens():
        raise UserError("The SuperLink does not run; start it with fedprompt federation serve --stay.")
    server.register()
    since = time.time()
    server.submit(welcome=name)
    while True:
        status = server.status(status_path(server.folder, name), since)
        if status["state"] == "finished":
            return {key: status[key] for key in ("accuracy", "images")}
        if status["state"] == "failed":
            raise UserError(str(status["reason"]))
        time.sleep(WATCH)


def superlink_command(folder: Path, host: str) -> list[str]:
    """Flower's own program with what this federation needs."""
    folder = folder.resolve()
    _, port = split_address(read_charter(folder).address)
    tls = folder / "tls"
    command = ["flower-superlink", "--host", host, "--port", str(port)]
    command += ["--ssl-ca-certfile", str(tls / "ca.crt"), "--ssl-certfile", str(tls / "server.crt")]
    command += ["--ssl-keyfile", str(tls / "server.key"), "--enable-supernode-auth"]
    return [*command, "--disable-runtime-dependency-installation"]


def split_address(address: str) -> tuple[str, int]:
    """host:port as two.

    >>> split_address("fl.example.org:9092")
    ('fl.example.org', 9092)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"The address is {address!r}, but it must be host:port, as in fl.example.org:9092.")
    return host, int(port)


def _check_registered(name: str, process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=START)
    known = "already" in (out + err).lower()
    if not known and not _last_json(out).get("success"):
        raise UserError(f"Flower did not register {name!r}: {_one_line(out + err)}")


def _last_json(text: str) -> dict[str, Any]:
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300] or "it said nothing."
