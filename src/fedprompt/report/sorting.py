"""Where a run belongs in a table: its data set, its column, and a row named by what sets it apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedprompt.data.partition import LEVELS
from fedprompt.errors import UserError
from fedprompt.evaluation.metrics import mean_of_last
from fedprompt.methods import methods
from fedprompt.run_folder import read_json
from fedprompt.runs import Run

TITLES = {"domainnet10": "DomainNet", "cifar100": "CIFAR-100", "pacs": "PACS"}
# What decides no result, or is shown in another place than the row's name.
_ELSEWHERE = {
    *("name", "seed", "device", "threads", "method", "data.name", "data.root"),
    *("evaluation.every", "evaluation.batch", "evaluation.split", "training.checkpoint_every"),
    *("backbone.feature_memory", "federation.deadline", "federation.min_clients", "federation.attempts"),
}
# Settings of the partition that only some kinds read.
_PARTITION_KEYS = {"assign": ("domains",), "min_images": ("dirichlet",)}


@dataclass(frozen=True)
class Entry:
    """A run with what the tables need of it."""

    run: Run

    @cached_property
    def data(self) -> str:
        """The data set; image folders are told apart by their folder's name."""
        settings = self.run.config.data
        if settings.name in ("folder", "domains") and settings.root is not None:
            return f"{settings.name} {settings.root.name}"
        return settings.name

    @property
    def data_title(self) -> str:
        return TITLES.get(self.data, self.data)

    @property
    def split(self) -> str:
        return self.run.config.evaluation.split

    @property
    def new_clients(self) -> bool:
        """Whether the run held clients out, to join after training."""
        return self.run.config.new_clients.hold_out not in ("none", ())

    @property
    def method(self) -> str:
        return self.run.config.method

    @property
    def title(self) -> str:
        return methods()[self.method].title

    @property
    def seed(self) -> int:
        return self.run.config.seed

    @cached_property
    def column(self) -> str:
        """How the images were dealt out: ``m=6``, ``s=10``, ``alpha=0.5``, ``iid``."""
        partition = self.run.config.partition
        return partition.level + (" (uniform)" if partition.kind == "sgpt_uniform" else "")

    @property
    def column_order(self) -> tuple[str, float]:
        """Sorts columns by their kind, then by their number."""
        partition = self.run.config.partition
        key = LEVELS.get(partition.kind, ("", ""))[1]
        return partition.kind, float(getattr(partition, key, 0))

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings that decide the result and are not seen from the table, data set and column."""
        return {key: str(value) for key, value in flat(self._tree()).items() if key not in _ELSEWHERE}

    def _tree(self) -> dict[str, Any]:
        tree = self.run.config.resolved()
        kind = tree["partition"]["kind"]
        own = LEVELS.get(kind, ("", ""))[1]
        foreign = {key for _, key in LEVELS.values()} | {
            key for key, kinds in _PARTITION_KEYS.items() if kind not in kinds
        }
        tree["partition"] = {
            key: value for key, value in tree["partition"].items() if key not in {own, "kind"} | foreign
        }
        # Where weights lie is no setting, which weights they are is one.
        tree["backbone"]["weights"] = Path(tree["backbone"]["weights"]).name + self._checksum()
        if not self.new_clients:
            del tree["new_clients"]
        return tree

    def _checksum(self) -> str:
        return "@" + self._about("backbone")[:8]

    @property
    def number_format(self) -> str:
        """The numbers of the backbone, as in ``bfloat16``: with ``auto`` they are the machine's choice."""
        return self._about("precision")

    def _about(self, key: str) -> str:
        try:
            return str(self.run.about[key])
        except (UserError, KeyError):
            return ""  # stopped before it was written

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """What was written down of each round, read once."""
        return self.run.records

    @cached_property
    def finished(self) -> bool:
        return (self.run.folder / "summary.json").is_file()

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The figures of the end; of an unfinished run those of its last evaluated rounds, if it has any."""
        if self.finished:
            summary = read_json(self.run.folder / "summary.json")
            found = summary.get("new_clients" if self.new_clients else "final", {})
            return found if isinstance(found, dict) else {}
        if self.new_clients:
            return {}
        return mean_of_last(self.records, self.run.config.evaluation.last)

    @cached_property
    def progress(self) -> str:
        """How far an unfinished run got; empty for a finished one."""
        if self.finished:
            return ""
        return f"{len(self.records)} of {self.run.config.training.rounds} rounds"


@dataclass
class Group:
    """The runs of one row: a method, settings, and whether it is finished; one entry for each column and seed."""

    method: str
    title: str
    settings: dict[str, str]
    progress: str
    entries: list[Entry] = field(default_factory=list)


def grouped(entries: Iterable[Entry], ignored: Container[str] = ()) -> list[Group]:
    """The rows of a table, in the paper's order of methods; settings that are ``ignored`` set no rows apart."""
    groups: dict[Any, Group] = {}
    for entry in entries:
        settings = {key: value for key, value in entry.settings.items() if key not in ignored}
        key = (entry.method, tuple(sorted(settings.items())), entry.progress)
        group = groups.setdefault(key, Group(entry.method, entry.title, settings, entry.progress))
        group.entries.append(entry)
    order = list(methods())
    return sorted(groups.values(), key=lambda group: order.index(group.method))


def column_settings(entries: Sequence[Entry]) -> dict[str, dict[str, str]]:
    """Settings that change from column to column but not within one: by key, the value of each column.

    Those of a single method are not among them: they say what the method is.
    """
    values: dict[str, dict[str, set[str]]] = {}
    for entry in entries:
        for key, value in entry.settings.items():
            if not key.startswith("methods."):
                values.setdefault(key, {}).setdefault(entry.column, set()).add(value)
    single = {
        key: {column: one.pop() for column, one in by_column.items()}
        for key, by_column in values.items()
        if all(len(one) == 1 for one in by_column.values())
    }
    return {key: by_column for key, by_column in single.items() if len(set(by_column.values())) > 1}


def plain_settings(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """What a row has that is named by its method's title alone, though the method has others; by title."""
    found = {}
    for rows, centre in _by_method(groups).values():
        if centre is not None:
            keys = [key for key in centre.settings if _differs(key, centre, rows)]
            found[centre.title] = {_short(key, keys): centre.settings[key] for key in keys}
    return found


def row_labels(groups: Sequence[Group]) -> list[str]:
    """The name of each row: the method's title, and the settings that set it apart from the others.

    Where each row of a method changes one thing in the same row, it is named by that, and the row in the middle by the
    title alone; what that one has tells :func:`plain_settings`.
    """
    labels = []
    named = {group.settings.get("backbone.weights", "") for group in groups}
    plain = len({name.rpartition("@")[0] for name in named}) == len(
        named
    )  # the checksum is not needed to tell them apart
    by_method = _by_method(groups)
    for group in groups:
        rows, centre = by_method[group.method]
        same_method = rows if centre is None else [centre]
        differing = [
            key
            for key in group.settings
            if _differs(key, group, same_method) or (not key.startswith("methods.") and _is_odd(key, group, groups))
        ]
        values = {key: group.settings[key] for key in differing}
        if plain and "backbone.weights" in values:
            values["backbone.weights"] = values["backbone.weights"].rpartition("@")[0]
        parts = [f"{_short(key, differing)}={value}" for key, value in values.items()]
        parts += [group.progress] if group.progress else []
        labels.append(group.title + (f" ({', '.join(parts)})" if parts else ""))
    return labels


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of settings as one level of dotted keys.

    >>> flat({"seed": 0, "data": {"name": "digits6"}})
    {'seed': 0, 'data.name': 'digits6'}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _by_method(groups: Sequence[Group]) -> dict[str, tuple[list[Group], Group | None]]:
    """The rows of each method, and the one in their middle if there is such a row."""
    rows: dict[str, list[Group]] = {}
    for group in groups:
        rows.setdefault(group.method, []).append(group)
    return {method: (own, _centre(own)) for method, own in rows.items()}


def _centre(rows: Sequence[Group]) -> Group | None:
    """The row of a method from which every other differs in one setting, if these are not all the same one."""
    for row in rows:
        apart = [[key for key in row.settings if _differs(key, row, [other])] for other in rows]
        if all(len(keys) <= 1 for keys in apart) and len({key for keys in apart for key in keys}) > 1:
            return row
    return None


def _differs(key: str, group: Group, others: Sequence[Group]) -> bool:
    return any(other.settings.get(key) != group.settings[key] for other in others)


def _is_odd(key: str, group: Group, groups: Sequence[Group]) -> bool:
    """Whether most rows have another value; where no value has the majority, every row names its own."""
    if not _differs(key, group, groups):
        return False
    counts = Counter(other.settings.get(key) for other in groups)
    return 2 * counts[group.settings[key]] <= len(groups)


def _short(key: str, shown: Sequence[str]) -> str:
    """The last part of a dotted key, or all of it where two would look the same."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in shown) > 1 else last
