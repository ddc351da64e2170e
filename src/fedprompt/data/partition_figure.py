"""A picture of who got what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedprompt.data.dataset import Dataset
from fedprompt.data.partition import ClientIndices, tallies

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def partition_figure(dataset: Dataset, parts: list[ClientIndices]) -> Figure:
    """A picture of the partition: for each client how many training images of each class, and of which domains."""
    # Here, because matplotlib takes a second to import and training does not need it.
    from matplotlib.figure import Figure

    by_class, by_domain = tallies(dataset, parts)
    clients, classes = by_class.shape
    figure = Figure(figsize=(11, min(max(0.28 * clients + 1.6, 3.2), 14)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))

    # Zero stays white, so that "few classes a client" is seen at once.
    heat = left.imshow(
        np.ma.masked_equal(by_class, 0), aspect="auto", cmap="viridis_r", vmin=0, interpolation="nearest"
    )
    left.set(xlabel="class", ylabel="client", title=f"{dataset.name}: training images of each class")
    if classes <= 25:
        upright = sum(map(len, dataset.classes)) <= 40
        left.set_xticks(range(classes), dataset.classes, rotation=0 if upright else 60)
    if clients * classes <= 300:
        for (client, label), count in np.ndenumerate(by_class):
            if count:
                shade = "white" if count > by_class.max() / 2 else "black"
                left.text(label, client, str(count), ha="center", va="center", fontsize=8, color=shade)
    else:
        figure.colorbar(heat, ax=left, location="left", shrink=0.6, label="images")

    start = np.zeros(clients)
    for domain, name in enumerate(dataset.domains):
        right.barh(range(clients), by_domain[:, domain], left=start, height=0.8, color=f"C{domain}", label=name)
        start += by_domain[:, domain]
    right.set(xlabel="training images", title="of which domains")
    if len(dataset.domains) > 1:
        figure.legend(loc="outside right upper")
    if clients <= 30:
        left.set_yticks(range(clients))
    left.set_ylim(clients - 0.5, -0.5)
    return figure
