"""README.md of the benchmarks out of results.json: tables and what they say; nothing in them is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from growth import images_mib

WORDS = Path(__file__).parent / "words.md"  # what the profiles show, written by people


def readme(found: dict[str, Any]) -> str:
    """The whole page."""
    parts = [
        "# Benchmarks",
        "",
        "    make bench          # figures 1 to 6; about 35 minutes on 2 cores",
        "    make bench-peers    # the environment with Flower and pfl-research, for figure 5",
        "",
        "Every figure is a ratio within one run: candidates take turns on one machine, so that what else runs there",
        "hits all alike. A ratio is the median over turns, with the lowest and highest in brackets. Random weights and",
        "images serve where only speed is asked for. Tests never look at a clock; what they assert is that the fast",
        "forms equal the textbook's.",
        "",
    ]
    parts += [*_goals(found), ""]
    makers = {"1": _epoch, "2": _epoch, "3": _prediction, "4": _limit, "5": _engine, "6": _growth}
    titles = {
        "1": "1. A local epoch of pFedBayesPT against the textbook",
        "2": "2. A local epoch of FedVPT-D against the textbook and transformers",
        "3": "3. Prediction",
        "4": "4. Share of the machine's limit",
        "5": "5. The engine",
        "6": "6. How cost grows",
    }
    for number, title in titles.items():
        if number in found:
            parts += [f"## {title}", "", *makers[number](found[number]["figures"]), "", _where(found[number]), ""]
    if WORDS.is_file():
        parts += [WORDS.read_text("utf-8").strip(), ""]
    return "\n".join(parts)


def _goals(found: dict[str, Any]) -> list[str]:
    """What was asked for, and what was measured."""
    rows: list[tuple[str, str, str]] = []

    def fastest(number: str, title: str, asked: dict[str, tuple[float, float]]) -> None:
        for result in found.get(number, {}).get("figures", []):
            plain, half = (result["candidates"][f"fedprompt {name}"]["ratio"] for name in ("fp32", "bf16"))
            least = asked["ViT-B" if "ViT-B" in result["case"] else "ViT-Ti"]
            rows.append((f"{title}, {result['case']}", f"{least[0]}x / {least[1]}x", f"{plain:.2f}x / {half:.2f}x"))

    fastest("1", "1. pFedBayesPT epoch, fp32 / bf16", {"ViT-B": (1.6, 2.8), "ViT-Ti": (1.7, 2.3)})
    fastest("2", "2. FedVPT-D epoch, fp32 / bf16", {"ViT-B": (1.1, 1.8), "ViT-Ti": (1.1, 1.5)})
    if figures := found.get("3", {}).get("figures"):
        for result in figures["all"]:
            own = [result["candidates"][f"fedprompt bf16, {kind}"]["ratio"] for kind in ("new images", "features kept")]
            told = f"{own[0]:.2f}x new, {own[1]:.2f}x known images"
            rows.append((f"3. prediction V = 5, bf16, {result['case']}", "1.8x", told))
        agreeing = {
            name: own for name, own in figures["early"]["candidates"].items() if own.get("agreement", 0.0) >= 0.995
        }
        name = max(agreeing, key=lambda one: agreeing[one]["ratio"])
        told = f"{agreeing[name]['ratio']:.2f}x ({name}, {100 * agreeing[name]['agreement']:.2f} %)"
        rows.append((f"3. draws as needed at 99.5 % agreement, {figures['early']['run']}", "3x", told))
    for own in found.get("4", {}).get("figures", []):
        if "ViT-B" in own["case"]:
            rows.append((f"4. share of the matmul limit, {own['case']}, {own['format']}", "0.7", f"{own['share']:.2f}"))
    if figures := found.get("5", {}).get("figures"):
        for own in figures["overhead"]:
            if own["clients"] == 1000:
                work = f"{own['method']}, {own['images']} images x {own['epochs']} epochs"
                rows.append((f"5. engine overhead, 1,000 clients, {work}", "at most 1.05", f"{own['overhead']:.3f}"))
        least = {"Flower simulation": "5x", "pfl-research": "1.2x"}
        for one in figures["peers"]:
            for peer, own in one["peers"].items():
                rows.append((f"5. against {peer}, {one['method']}", least[peer], f"{own['ratio']:.2f}x"))
    if figures := found.get("6", {}).get("figures"):
        aside, without = _memory(figures["clients"])
        rows.append(("6. memory, 100 to 10,000 clients", "at most 1.10", f"{aside:.2f}; {without:.2f} without images"))
    return _rows(("figure", "asked", "measured"), rows)


def _memory(clients: list[dict[str, Any]]) -> tuple[float, float]:
    """Peak memory at the most clients over that at 100, personal tensors aside; and with the images aside as well."""
    ends = [next(point for point in clients if point["value"] == 100), clients[-1]]
    before, after = (point["peak_mib"] - point["personal_mib"] for point in ends)
    fewer, more = (images_mib(point["value"]) for point in ends)
    return after / before, (after - more) / (before - fewer)


def _where(figure: dict[str, Any]) -> str:
    about = figure["machine"]
    return (
        f"*{about['processor']}, {about['threads']} threads, torch {about['torch']}, fedprompt {about['fedprompt']} at "
        f"{about['commit']}, {about['date']}; load before the start {about['load_before']:.1f}.*"
    )


def _ratio(figures: dict[str, float]) -> str:
    return f"**{figures['ratio']:.2f}x** ({figures['lowest']:.2f} to {figures['highest']:.2f})"


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _epoch(figures: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            result["case"],
            name,
            f"{own['images_per_second']:.1f}",
            _ratio(own),
            f"{own['difference']:.1e}" if "fp32" in name else f"{own['difference']:.2f}",
        )
        for result in figures
        for name, own in result["candidates"].items()
    ]
    lines = _rows(("backbone", "code", "images/s", "against the textbook", "difference"), rows)
    lines += ["", "Difference: of what was trained, as a share of how far training moved it, the worst tensor."]
    if "one_off" in figures[0]:
        told = ", ".join(
            f"{result['one_off']['images'] / result['one_off']['seconds']:.0f} images/s ({result['case']})"
            for result in figures
        )
        lines += [
            f"Not in our epochs: the frozen features, computed once for all epochs and rounds, at {told} in fp32."
        ]
    return lines


def _prediction(figures: dict[str, Any]) -> list[str]:
    rows = [
        (result["case"], name, _ratio(own), f"{own['difference']:.1e}")
        for result in figures["all"]
        for name, own in result["candidates"].items()
    ]
    lines = ["Five draws for every image:", ""]
    lines += _rows(("backbone", "code", "against the textbook", "largest difference of a probability"), rows)
    early = figures["early"]
    lines += [
        "",
        f"As many draws as an image needs, on a trained run ({early['run']}, {early['images']:,} images):",
        "",
    ]
    lines += _rows(
        ("code", "against the textbook", "draws an image", "accuracy", "agreement with V = 5"),
        [
            (
                name,
                _ratio(own),
                *(
                    (f"{own['draws']:.2f}", f"{100 * own['accuracy']:.2f} %", f"{100 * own['agreement']:.2f} %")
                    if "draws" in own
                    else ("5.00", "", "")
                ),
            )
            for name, own in early["candidates"].items()
        ],
    )
    return lines


def _limit(figures: list[dict[str, Any]]) -> list[str]:
    lines = ["Useful FLOP/s of a FedVPT-D training step over those of one large matmul in the same format:", ""]
    return lines + _rows(
        ("backbone", "format", "share", "matmul"),
        [
            (
                own["case"],
                own["format"],
                f"**{own['share']:.2f}** ({own['lowest']:.2f} to {own['highest']:.2f})",
                f"{own['gflops_of_matmul']:.0f} GFLOP/s",
            )
            for own in figures
        ],
    )


def _engine(figures: dict[str, Any]) -> list[str]:
    lines = ["Wall time of a round over the time inside local training, all clients in each round:", ""]
    lines += _rows(
        ("method", "clients", "images x epochs of each", "overhead", "round", "peak memory"),
        [
            (
                own["method"],
                f"{own['clients']:,}",
                f"{own['images']} x {own['epochs']}",
                f"**{own['overhead']:.3f}**",
                f"{own['seconds']:.2f} s",
                f"{own['peak_mib']:.0f} MiB",
            )
            for own in figures["overhead"]
        ],
    )
    if figures["peers"]:
        lines += ["", "The same work elsewhere, a round's time over ours:", ""]
        lines += _rows(
            ("method", "clients x images", "ours", *figures["peers"][0]["peers"]),
            [
                (
                    own["method"],
                    f"{own['clients']} x {own['images']}",
                    f"{own['seconds']:.2f} s",
                    *(f"{_ratio(peer)}, {peer['seconds']:.2f} s" for peer in own["peers"].values()),
                )
                for own in figures["peers"]
            ],
        )
    return lines


def _growth(figures: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["![Time and memory over what may grow](growth.png)", ""]
    aside, without = _memory(figures["clients"])
    most = figures["clients"][-1]["value"]
    lines += [
        f"Peak memory at {most:,} clients over that at 100, personal tensors aside and with ten clients in a round: "
        f"**{aside:.2f}**. What is more is the images themselves, {images_mib(most):.0f} MiB at {most:,} clients; "
        f"without them it is {without:.2f}.",
        "",
    ]
    return lines + _rows(
        ("what", "value", "training, ms an image", "prediction, ms an image", "peak memory"),
        [
            (
                axis,
                f"{point['value']:,}",
                f"{1000 * point['round_seconds'] / point['images_trained']:.2f}",
                f"{1000 * point['predict_seconds'] / point['images_predicted']:.2f}",
                f"{point['peak_mib']:.0f} MiB",
            )
            for axis, points in figures.items()
            for point in points
        ],
    )
