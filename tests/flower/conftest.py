"""Federations of real processes: SuperLink, SuperNodes and server app on the loopback, with TLS and node keys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedprompt[flower] is not installed")

from fedprompt.config import load_config
from fedprompt.federation.flower.local import LocalFederation, prepare
from fedprompt.federation.flower.processes import Processes

INSIDE = str(Path(__file__).parent / "inside")


def flower_processes() -> list[str]:
    """The command lines of Flower's programs that run now, of this test run alone."""
    listing = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    names = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp", "flwr-clientapp")
    return [line for line in listing.splitlines() if any(f"/{name} " in line for name in names) and _ours(line)]


def _ours(line: str) -> bool:
    """Whether a process was started by these tests: other federations may run on the same machine."""
    try:
        environment = Path(f"/proc/{line.split()[0]}/environ").read_bytes()
    except OSError:
        return False
    return f"FEDPROMPT_TEST_RUN={os.getpid()}".encode() in environment


@pytest.fixture(autouse=True, scope="session")
def _mark():
    os.environ["FEDPROMPT_TEST_RUN"] = str(os.getpid())


@pytest.fixture
def processes():
    with Processes() as started:
        yield started


@pytest.fixture
def federation(processes, tmp_path):
    """Makes a federation that is not started yet: ``federation(preset, **changes)``."""

    def make(preset, changes, out=tmp_path) -> LocalFederation:
        return LocalFederation(prepare(load_config(preset, changes), out), processes)

    return make


def inside(**settings: str) -> dict[str, str]:
    """What a node's environment needs for the code in ``inside/``."""
    return {"PYTHONPATH": INSIDE, **settings}
