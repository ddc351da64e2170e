"""One client's images, and what the frozen backbone says of them, computed once.

What a method reads of the frozen backbone depends on no trained number. It is computed at first use and kept in memory
while it fits the budget, and beyond it in a memory-mapped store on disk. Both hold the same numbers, so results do not
depend on how much memory a machine has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbone.feature_store import DamagedError, Entry, FeatureStore, Row
from fedprompt.backbone.weights import Backbone
from fedprompt.bayes.encoder import normalise

CHUNK = 128  # images per frozen forward


@dataclass(frozen=True)
class Needs:
    """What of the frozen backbone a method reads for each image."""

    cls: bool = False  # the CLS feature without prompts
    cls_blocks: int | None = None  # after how many blocks that feature is taken; by default all
    layers: int = 0  # the normalised tokens that enter the first ``layers`` blocks
    embedded: bool = True  # the embedded image, for a prompted forward

    def row(self, backbone: Backbone) -> Row:
        """Shape and number format of the frozen features of one image."""
        shape, dtype = backbone.vit.shape, backbone.vit.pos_embed.dtype
        features = {"features": ((self.layers, shape.tokens, shape.width), dtype)} if self.layers else {}
        return ({"cls": ((shape.width,), torch.float32)} if self.cls else {}) | features

    def bytes_per_image(self, backbone: Backbone) -> int:
        """Memory that keeping the frozen features of one image takes."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.row(backbone).values())


@dataclass(frozen=True)
class Batch:
    """Images as a method sees them; what it does not need is None."""

    labels: Tensor  # (batch,)
    embedded: Tensor | None = None  # (batch, tokens, width)
    cls: Tensor | None = None  # (batch, width)
    features: Tensor | None = None  # (batch, layers, tokens, width), normalised
    final: Tensor | None = None  # (batch, width), what a head reads, where it is known already

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Tensor) -> Batch:
        """Some of its images."""
        parts = (self.embedded, self.cls, self.features, self.final)
        return Batch(self.labels[index], *(None if part is None else part[index] for part in parts))


class ClientData:
    """Images of one client and one split, read at first use and kept as uint8.

    Their frozen features are kept in memory (``keep``), or else in the ``store`` on disk if there is one; with neither,
    or where the disk has no room, they are computed anew for each batch.
    """

    def __init__(
        self,
        backbone: Backbone,
        read: Callable[[], Tensor],
        labels: Tensor,
        *,
        keep: bool = True,
        store: FeatureStore | None = None,
    ) -> None:
        self.backbone = backbone
        self.labels = labels
        self._read = read
        self._keep = keep
        self._store = store
        self._pixels: Tensor | None = None
        self._kept: dict[Needs, dict[str, Tensor]] = {}
        self._stored: dict[Needs, Entry] = {}

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pixels(self) -> Tensor:
        """All images (n, 3, side, side), uint8."""
        if self._pixels is None:
            self._pixels = self._read()
        return self._pixels

    @torch.no_grad()
    def batch(self, index: Tensor, needs: Needs) -> Batch:
        """The images at these places, as a method with these needs sees them."""
        device = self.backbone.vit.pos_embed.device
        labels = self.labels[index].to(device)
        embedded = None
        if needs.embedded:
            embedded = self.backbone.vit.embed(self.backbone.normalise(self.pixels[index].to(device)))
        if not (needs.cls or needs.layers):
            return Batch(labels, embedded)
        rows = self._rows(index, needs)
        found = {name: value.to(device) for name, value in rows.items()}
        return Batch(labels, embedded, found.get("cls"), found.get("features"))

    def _rows(self, index: Tensor, needs: Needs) -> dict[str, Tensor]:
        """The frozen features of the images at these places."""
        if not self._keep:
            stored = self._rows_on_disk(index, needs) if self._store is not None else None
            return frozen_features(self.backbone, self.pixels[index], needs) if stored is None else stored
        if needs not in self._kept:
            chunks = list(self._chunks(needs))
            self._kept[needs] = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        return {name: value[index] for name, value in self._kept[needs].items()}

    def _chunks(self, needs: Needs) -> Iterator[dict[str, Tensor]]:
        for chunk in self.pixels.split(CHUNK):
            yield {name: value.cpu() for name, value in frozen_features(self.backbone, chunk, needs).items()}

    def _rows_on_disk(self, index: Tensor, needs: Needs) -> dict[str, Tensor] | None:
        """As :meth:`_rows`, from the disk, computed there first if need be; None where the disk has no room."""
        assert self._store is not None
        for attempt in range(2):
            try:
                if needs not in self._stored:
                    self._stored[needs] = self._entry(self._store, needs)
                return self._stored[needs].rows(index)
            except DamagedError:
                if attempt:
                    raise
                self._stored.pop(needs, None)
            except OSError:  # no room: from now on computed anew
                self._store = None
                return None
        raise AssertionError("unreachable")

    def _entry(self, store: FeatureStore, needs: Needs) -> Entry:
        row = needs.row(self.backbone)
        about = {
            "backbone": self.backbone.checksum,
            "side": self.backbone.vit.shape.image,
            "mean": list(self.backbone.mean),
            "std": list(self.backbone.std),
            "images": hashlib.sha256(self.pixels.numpy().tobytes()).hexdigest(),
            "needs": {"cls": needs.cls, "cls_blocks": needs.cls_blocks, "layers": needs.layers},
            "format": str(self.backbone.vit.pos_embed.dtype),
        }
        try:
            return store.get(about, row, len(self))
        except DamagedError:
            return store.build(about, row, len(self), self._chunks(needs))


@dataclass(frozen=True)
class KnownFeatures:
    """A client's images as heads see them: their last features (n, width), for training a head and nothing else."""

    labels: Tensor
    final: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor, needs: Needs) -> Batch:
        """The images at these places; nothing else of them is there, whatever a method needs."""
        return Batch(self.labels[index].to(self.final.device), final=self.final[index.to(self.final.device)])


@torch.no_grad()
def frozen_features(backbone: Backbone, pixels: Tensor, needs: Needs) -> dict[str, Tensor]:
    """Of uint8 images, as far as needed: ``cls`` (n, width) and normalised ``features`` (n, layers, tokens, width)."""
    vit = backbone.vit
    images = backbone.normalise(pixels.to(vit.pos_embed.device))
    found = {}
    if needs.cls:
        found["cls"] = vit.outputs(vit.embed(images), blocks=needs.cls_blocks)[:, 0]
    if needs.layers:
        found["features"] = normalise(vit.layer_inputs(images, needs.layers))
    return found


def within_budget(sizes: Iterable[int], per_image: int, budget: float) -> list[bool]:
    """Which of these sets of images, taken in order, fit into the memory budget in bytes.

    >>> within_budget([10, 100, 20], per_image=1, budget=50)
    [True, False, True]
    """
    fits, used = [], 0.0
    for size in sizes:
        fits.append(used + size * per_image <= budget)
        used += size * per_image if fits[-1] else 0
    return fits
