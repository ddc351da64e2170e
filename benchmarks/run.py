"""Run all benchmarks and write results.json and the tables of README.md: ``make bench``.

    PYTHONPATH=tests python benchmarks/run.py [--only 1,2,...] [--peers PYTHON] [--run RUN_FOLDER]

Every figure is a ratio within one run: candidates take turns. ``--peers`` is the interpreter of the environment that
``make bench-peers`` makes; without it the peers' rows stay as they were. ``--run`` is a finished run of pFedBayesPT for
the figure on early stopping; by default one is trained on digits6. Figures that are not asked for keep what is in
results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from against_peers import compare
from engine import overhead, synthetic_cifar
from growth import grow, picture
from models import CASES
from prediction import all_draws, as_many_as_needed
from tables import readme
from timing import alone
from training_steps import fedvpt_deep, one_off_features, pfedbayespt, share_of_limit

import fedprompt
from fedprompt.report.plots import png

HERE = Path(__file__).parent
TOLERANCES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.0)


def figure_1() -> list[dict[str, Any]]:
    """pFedBayesPT's local epoch."""
    return [pfedbayespt(case) | {"one_off": one_off_features(case)} for case in CASES]


def figure_2() -> list[dict[str, Any]]:
    """FedVPT-D's local epoch."""
    return [fedvpt_deep(case) for case in CASES]


def figure_3(folder: Path | None) -> dict[str, Any]:
    """Prediction."""
    found: dict[str, Any] = {"all": [all_draws(case) for case in CASES]}
    with tempfile.TemporaryDirectory() as scratch:
        done = folder or fedprompt.run("digits6", method="pfedbayespt", seed=0, out=scratch).folder
        found["early"] = as_many_as_needed(done, TOLERANCES, repeats=3, timed=64)
    return found


def figure_4() -> list[dict[str, Any]]:
    """Share of the machine's limit."""
    return [share_of_limit(case, dtype) for case in CASES for dtype in (torch.float32, torch.bfloat16)]


def figure_5(peers: Path | None, before: dict[str, Any]) -> dict[str, Any]:
    """Engine overhead, and the same work elsewhere."""
    found: dict[str, Any] = {"overhead": [], "peers": before.get("peers", [])}
    with tempfile.TemporaryDirectory() as scratch:
        root = synthetic_cifar(Path(scratch), 64_000)
        for clients in (10, 100, 1000):
            # Five epochs are the paper's; one of a single step is the least that a client can do.
            found["overhead"] += [alone(overhead, root, clients, "head-tune", 64, 5, 3)]
            found["overhead"] += [alone(overhead, root, clients, "head-tune", 32, 1, 3)]
            found["overhead"] += [alone(overhead, root, clients, "fedvpt", 8, 1, 2)]
    if peers is not None:
        found["peers"] = []
        for method, clients, images, rounds in (("head-tune", 100, 64, 24), ("fedvpt", 100, 16, 4)):
            with tempfile.TemporaryDirectory() as scratch:
                found["peers"].append(compare(peers, Path(scratch), clients, images, method, rounds))
    return found


def machine() -> dict[str, Any]:
    """Where the figures were taken."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        model = next(lines, model).split(":")[-1].strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return {
        "processor": model,
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "torch": torch.__version__,
        "fedprompt": metadata.version("fedprompt"),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="1,2,3,4,5,6", help="figures to take, comma-separated")
    parser.add_argument("--peers", type=Path, help="interpreter with flwr[simulation], pfl and fedprompt")
    parser.add_argument("--run", type=Path, help="a finished run of pFedBayesPT")
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    path = HERE / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    takers = {
        "1": figure_1,
        "2": figure_2,
        "3": lambda: figure_3(args.run),
        "4": figure_4,
        "5": lambda: figure_5(args.peers, found.get("5", {}).get("figures", {})),
        "6": grow,
    }
    for number in args.only.split(","):
        about = machine()
        began = time.perf_counter()
        found[number] = {"machine": about, "figures": takers[number]()}
        print(f"figure {number}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        if number == "6":
            (HERE / "growth.png").write_bytes(png(picture(found["6"]["figures"])))
    (HERE / "README.md").write_text(readme(found))


if __name__ == "__main__":
    main()
