"""Measure settings on a validation split, one change at a time, and keep every figure.

    python tools/choose_defaults.py digits6 --out results/defaults/digits6.jsonl [--seeds 0,1] [--jobs 2]
    python tools/choose_defaults.py digits6 --out results/defaults/digits6.jsonl --table

Each line of the output is one run: method, changes, seed, and Average and Worst Local on images that were set aside
from the clients' *training* data; test images are never looked at. Runs that are already there are not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import fedprompt
import fedprompt.config

Change = dict[str, Any]
VALIDATION = {"data.validation": 0.25, "evaluation.split": "validation", "threads": 1}


def variants(key: str, axes: dict[str, list[Any]]) -> list[tuple[str, Change]]:
    """The preset as it is, and every single change of one setting."""
    changes: list[Change] = [{}]
    changes += [{f"methods.{key}.{name}": value} for name, values in axes.items() for value in values]
    return [(key, change) for change in changes]


RATES = [0.003, 0.01, 0.03, 0.1]
GRID = {
    "head-tune": {"learning_rate": RATES, "head": ["local"]},
    "fedvpt": {"learning_rate": RATES, "prompt_start": ["uniform", "blank", "tokens"]},
    "fedvpt-d": {"learning_rate": RATES, "prompt_start": ["uniform", "blank", "tokens"], "depth": [1, 3]},
    "pfedbayespt": {
        "encoder_learning_rate": [0.0001, 0.001, 0.01, 0.1],
        "log_variance_start": [-6.0, -4.0, -3.0, -2.0, -1.0, 0.0],
        "kl_weight": [0.0, 0.001, 0.01, 0.1, 1.0],
        "instance_depth": [1, 2, 3, 6],
        "global_depth": [1, 3, 6],
        "encoder_start": ["random", "pooled"],
        "prompt_start": ["uniform", "blank", "tokens"],
        "learning_rate": RATES,
        "hidden": [4, 16, 64],
        "head": ["local", "global"],
        "head_start": ["torch", "zeros"],
        "prior": ["conditional"],
        "std_sees": ["whole"],
        "kl_warmup_rounds": [5],
        "keep": [0.5, 0.7, 0.9],
    },
    "pfedbayespt-d": {},
    "pfedbayespt-g": {"sample_noise": [True]},
}


def measure(preset: str, method: str, change: Change, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        changes = {**VALIDATION, **change}
        final = fedprompt.run(preset, method=method, seed=seed, changes=changes, out=folder).summary["final"]
    seconds = round(time.perf_counter() - began, 1)
    figures = {name: round(100 * final[name], 2) for name in ("average", "worst_local")}
    return {"method": method, "changes": change, "seed": seed, **figures, "seconds": seconds}


def table(path: Path) -> str:
    """All figures of a file as Markdown: a row for each change, means over seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        change = ", ".join(f"{key.removeprefix('methods.' + record['method'] + '.')} = {value}"
                           for key, value in record["changes"].items())  # fmt: skip
        groups.setdefault((record["method"], change or "(preset)"), []).append(record)
    lines = ["| method | change | Average | Worst Local | seeds |", "|---|---|---|---|---|"]
    for (method, change), records in sorted(groups.items()):
        means = [sum(r[key] for r in records) / len(records) for key in ("average", "worst_local")]
        lines.append(f"| {method} | {change} | {means[0]:.1f} | {means[1]:.1f} | {len(records)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--methods", default=",".join(GRID))
    parser.add_argument("--axes", default="", help="comma-separated; by default all")
    parser.add_argument("--set", action="append", default=[], help="key=value for every run; noted with it")
    parser.add_argument("--table", action="store_true", help="print what was measured as Markdown, and run nothing")
    args = parser.parse_args()
    if args.table:
        print(table(args.out))
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = args.out.read_text().splitlines() if args.out.is_file() else []
    done = {(r["method"], json.dumps(r["changes"], sort_keys=True), r["seed"]) for r in map(json.loads, lines)}
    common = fedprompt.config.parse_assignments(args.set)
    wanted = []
    for seed in [int(part) for part in args.seeds.split(",")]:
        for key in args.methods.split(","):
            axes = {n: v for n, v in GRID[key].items() if not args.axes or n in args.axes.split(",")}
            for method, change in variants(key, axes):
                full = {**common, **change}
                if (method, json.dumps(full, sort_keys=True), seed) not in done:
                    wanted.append((method, full, seed))
    with ProcessPoolExecutor(args.jobs) as pool, args.out.open("a") as out:
        for future in as_completed([pool.submit(measure, args.preset, *one) for one in wanted]):
            record = future.result()
            print(json.dumps(record), file=out, flush=True)
            print(json.dumps(record), flush=True)
    print(f"{len(wanted)} new runs in {args.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
