"""The command that predicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprompt import runs
from fedprompt.cli.console import Json, out, table
from fedprompt.serve.predictor import Prediction


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    client: Annotated[int, typer.Option(help="Whose classifier to use.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 3,
    as_json: Json = False,
) -> None:
    """Classify images with one client's model: probabilities, and their spread over the draws of the prompt."""
    show_prediction(runs.load_run(folder).predictor(client)(images), images, top, as_json=as_json)


def show_prediction(prediction: Prediction, images: list[str], top: int, *, as_json: bool) -> None:
    """Print the most probable classes of each image."""
    rows: list[dict[str, Any]] = []
    for image, mean, spread in zip(images, prediction.probabilities, prediction.spread, strict=True):
        best = mean.argsort(descending=True)[:top]
        found = [
            {"class": prediction.classes[int(i)], "probability": float(mean[i]), "spread": float(spread[i])}
            for i in best
        ]
        rows.append({"image": image, "draws": len(prediction.draws), "classes": found})
    if as_json:
        print(json.dumps(rows))
        return
    shown = table("image", "class", "probability", f"spread over {len(prediction.draws)} draws")
    for row in rows:
        for place, found_class in enumerate(row["classes"]):
            figures = (f"{100 * found_class[key]:.1f} %" for key in ("probability", "spread"))
            shown.add_row(row["image"] if place == 0 else "", found_class["class"], *figures)
    out.print(shown)
