"""Draw docs/digits6.png: a sheet with one row for each style of digits6 and one column for each digit.

python tools/contact_sheet.py [--out docs/digits6.png] [--sheet 0]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedprompt.data.dataset import Dataset
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings


def sheet(dataset: Dataset, which: int) -> Figure:
    """The ``which``-th training image of every class (columns) in every domain (rows), pixels left square."""
    rows, columns = len(dataset.domains), len(dataset.classes)
    figure = Figure(figsize=(columns * 0.95 + 1.2, rows * 0.95 + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns)
    for row, domain in enumerate(dataset.domains):
        for column, label in enumerate(dataset.classes):
            found = np.flatnonzero((dataset.train.domains == row) & (dataset.train.labels == column))
            # Another digit in each row: the rows should not look like one picture in six filters.
            image = dataset.train.images(found[[(which + 7 * row) % len(found)]], 32)[0]
            axis = axes[row, column]
            axis.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(label)
            if column == 0:
                axis.set_ylabel(domain, rotation=0, ha="right", va="center", fontsize=12)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/digits6.png"))
    parser.add_argument("--sheet", type=int, default=0, help="which digit of each class to begin with")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet(open_dataset(DataSettings(name="digits6")), options.sheet).savefig(options.out, dpi=100)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
