"""Flower's simulation engine on Ray drives the same apps to the same tensors."""

import json
import subprocess
import sys

import pytest
import torch

import fedprompt

pytestmark = pytest.mark.federation


def test_the_simulation_engine_ends_in_the_same_tensors(tiny_toml, tmp_path):
    pytest.importorskip("ray", reason="the extra fedprompt[flower-simulation] is not installed")
    changes = {"partition.clients": 3, "training.rounds": 2, "new_clients.hold_out": [2]}
    expected = fedprompt.run(tiny_toml, changes=changes, out=tmp_path / "plain")
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fedprompt", "federation", "up", str(tiny_toml), *settings]
    command += ["--engine", "flower-simulation", "--out", str(tmp_path / "ray"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["final"] == pytest.approx(expected.summary["final"], abs=1e-6)
    assert summary["new_clients"]["average"] == pytest.approx(expected.summary["new_clients"]["average"], abs=1e-6)
    mine, theirs = fedprompt.load_run(summary["folder"]).state(), expected.state()
    for name, value in theirs.shared.items():
        torch.testing.assert_close(mine.shared[name], value, rtol=0, atol=1e-6, msg=name)
