"""Pictures of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2f6690", "#d1603d", "#9aa5b1"


def learning_curves(records: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Average and Worst Local accuracy, and the training loss, over the rounds."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    evaluated = [record for record in records if "average" in record]
    rounds = [record["round"] for record in evaluated]
    for key, label, colour in (("average", "Average", BLUE), ("worst_local", "Worst Local", ORANGE)):
        left.plot(rounds, [100 * record[key] for record in evaluated], label=label, color=colour, marker=".")
    left.set(xlabel="round", ylabel="accuracy (%)", title="Clients' own images")
    left.legend(frameon=False)
    for key, label, colour in (("cross_entropy", "cross-entropy", BLUE), ("loss", "loss", GREY)):
        shown = [(record["round"], record["training"][key]) for record in records if key in record["training"]]
        right.plot(*zip(*shown, strict=True), label=label, color=colour, linestyle="-" if key != "loss" else "--")
    right.set(xlabel="round", ylabel="nats", title="Training")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    return figure


def client_bars(accuracy: Mapping[str, float], title: str) -> Figure:
    """Accuracy of each client, with the mean and the worst marked."""
    clients = list(accuracy)
    values = [100 * accuracy[client] for client in clients]
    worst = min(range(len(values)), key=values.__getitem__)
    figure = Figure(figsize=(max(5, min(14, 1.5 + 0.45 * len(clients))), 3.4), layout="constrained")
    axes = figure.subplots()
    colours = [ORANGE if i == worst else BLUE for i in range(len(values))]
    axes.bar(range(len(values)), values, color=colours, width=0.75)
    mean = sum(values) / len(values)
    axes.axhline(mean, color="black", linewidth=1, linestyle="--")
    axes.text(1.01, mean, f"{mean:.1f}", transform=axes.get_yaxis_transform(), va="center")
    if len(values) <= 20:
        axes.set_xticks(range(len(clients)), clients)
        for i, value in enumerate(values):
            axes.text(i, value + 1, f"{value:.0f}", ha="center", fontsize=8)
    axes.set(xlabel="client", ylabel="accuracy (%)", ylim=(0, 108), title=title)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def comparison_curves(histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], title: str) -> Figure:
    """Average and Worst Local over the rounds for several methods; each line a mean over seeds, with their range.

    ``histories`` holds, under each method's name, the records of one run for each seed.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, label in zip(panels, ("average", "worst_local"), ("Average", "Worst Local"), strict=True):
        for number, (name, per_seed) in enumerate(histories.items()):
            curves = [{r["round"]: 100 * r[key] for r in records if key in r} for records in per_seed]
            rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = [[curve[r] for curve in curves] for r in rounds]
            means = [sum(column) / len(column) for column in values]
            colour = f"C{number}"
            axes.plot(rounds, means, label=name, color=colour, marker=".")
            axes.fill_between(rounds, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
        axes.set(xlabel="round", title=label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("accuracy (%)")
    panels[0].legend(frameon=False)
    figure.suptitle(title)
    return figure


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=130)
    return out.getvalue()
