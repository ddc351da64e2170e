"""Run folders for tables: real settings files with figures that are known."""

import json

import pytest

from fedprompt.config import load_config
from fedprompt.runs import Run
from fedprompt.toml_text import to_toml


@pytest.fixture
def folder_of(tmp_path):
    """Makes a finished run folder: ``folder_of("digits6", "head-tune", seed=0, average=0.5, ...)``."""

    def make(preset, method, seed=0, average=0.5, worst_local=0.25, changes=None, **figures) -> Run:
        config = load_config(preset, {**(changes or {}), "method": method, "seed": seed})
        folder = tmp_path / "made" / f"run{len(list(tmp_path.glob('made/*')))}"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(config.resolved()), encoding="utf-8")
        final = {
            "average": average,
            "worst_local": worst_local,
            "nll": 1.0,
            "brier": 0.5,
            "calibration_error": 0.1,
            **figures,
        }
        accuracy = {"0": average, "1": worst_local}
        record = {"round": 1, "training": {"cross_entropy": 1.0}, "accuracy": accuracy, **final}
        (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        summary = {"method": method, "seed": seed, "final": final, "never_sampled": []}
        if config.new_clients.hold_out != "none":
            summary["new_clients"] = {**final, "average": average + 0.125, "accuracy": accuracy}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return Run(folder)

    return make
