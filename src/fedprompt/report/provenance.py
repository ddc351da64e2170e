"""Where results come from: settings, versions, times, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fedprompt.config import Config, load_config, parse_assignments, preset_names
from fedprompt.errors import UserError
from fedprompt.report.sorting import flat
from fedprompt.runs import Run, fingerprint


def settings(runs: Sequence[Run]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The resolved settings: those that differ, with a value for each run, and those that all who have them share."""
    trees = [{key: _shown(value) for key, value in flat(run.config.resolved()).items()} for run in runs]
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    differing, common = {}, {}
    for key in keys:
        values = {tree[key] for tree in trees if key in tree}  # a method's own settings are in its runs alone
        if len(values) > 1:
            differing[key] = [tree.get(key, "") for tree in trees]
        else:
            common[key] = values.pop()
    return differing, common


def code(run: Run) -> dict[str, str]:
    """Versions, device and times of a run, as far as its folder has them."""
    found: dict[str, str] = {}
    try:
        about = run.about
        found |= {"device": str(about.get("device", "")), **{k: str(v) for k, v in about.get("versions", {}).items()}}
    except UserError:
        pass  # stopped before it was written
    found |= {key: _shown(value) for key, value in flat(_cell(run).get("code", {})).items()}
    timings = run.timings
    if timings:
        found["ended"] = datetime.fromtimestamp(timings[-1]["ended"], UTC).strftime("%Y-%m-%d %H:%M UTC")
        found["seconds"] = f"{sum(line['seconds'] for line in timings):.0f}"
    return found


def command(run: Run) -> str:
    """The command that makes a run again: its preset and what was changed, or its own settings file."""
    config = run.config
    if config.name in preset_names():
        words = _from_preset(config)
        if words:
            return shlex.join(words)
    return shlex.join(["fedprompt", "run", str(run.folder / "config.toml")])


def _from_preset(config: Config) -> list[str]:
    """The words of a command that starts from the preset; none if these settings cannot be reached that way."""
    plain = load_config(config.name, {"method": config.method, "seed": config.seed})
    before, after = flat(plain.resolved()), flat(config.resolved())
    ignored = ("device", "threads")
    changed = {key: value for key, value in after.items() if before.get(key) != value and key not in ignored}
    words = ["fedprompt", "run", config.name, "--method", config.method, "--seed", str(config.seed)]
    lifted = [
        f"{key}=inf" for key in before if key not in after
    ]  # a limit of the preset; below it shows whether it is one
    assignments = [*(f"{key}={_toml(value)}" for key, value in changed.items()), *lifted]
    changes: dict[str, Any] = {"method": config.method, "seed": config.seed, **parse_assignments(assignments)}
    try:
        again = load_config(config.name, changes)
    except UserError:
        return []
    if fingerprint(again) != fingerprint(config):
        return []
    return words + [word for assignment in assignments for word in ("--set", assignment)]


def _toml(value: Any) -> str:
    """A value as the command line reads it; text that could be read as something else stands in quotes."""
    if isinstance(value, str):
        return value if parse_assignments([f"x={value}"])["x"] == value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _cell(run: Run) -> dict[str, Any]:
    """What a study wrote down of the run, if it is one of a study."""
    try:
        content = json.loads((run.folder / "cell.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
