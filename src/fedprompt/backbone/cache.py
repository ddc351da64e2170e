"""One client's images, and what the frozen backbone says of them, computed once.

What a method reads of the frozen backbone depends on no trained number. It is computed at first use and kept while it
fits the memory budget; beyond it, it is computed anew for each batch. Which client is kept is settled before the first
round, in the order of the clients' numbers, so that it is the same in a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbone.weights import Backbone
from fedprompt.bayes.encoder import normalise

CHUNK = 128  # images per frozen forward


@dataclass(frozen=True)
class Needs:
    """What of the frozen backbone a method reads for each image."""

    cls: bool = False  # the CLS feature without prompts
    layers: int = 0  # the normalised tokens that enter the first ``layers`` blocks
    embedded: bool = True  # the embedded image, for a prompted forward

    def bytes_per_image(self, backbone: Backbone) -> int:
        """Memory that keeping the frozen features of one image takes."""
        shape = backbone.vit.shape
        return 4 * shape.width * (int(self.cls) + self.layers * shape.tokens)


@dataclass(frozen=True)
class Batch:
    """Images as a method sees them; what it does not need is None."""

    labels: Tensor  # (batch,)
    embedded: Tensor | None = None  # (batch, tokens, width)
    cls: Tensor | None = None  # (batch, width)
    features: Tensor | None = None  # (batch, layers, tokens, width), normalised

    def __len__(self) -> int:
        return len(self.labels)


class ClientData:
    """Images of one client and one split, read at first use and kept as uint8."""

    def __init__(self, backbone: Backbone, read: Callable[[], Tensor], labels: Tensor, *, keep: bool = True) -> None:
        self.backbone = backbone
        self.labels = labels
        self._read = read
        self._keep = keep
        self._pixels: Tensor | None = None
        self._kept: dict[Needs, Batch] = {}

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
        pixels = self.pixels[index]
        embedded = self.backbone.vit.embed(self.backbone.normalise(pixels.to(device))) if needs.embedded else None
        if not (needs.cls or needs.layers):
            return Batch(labels, embedded)
        if not self._keep:
            frozen = frozen_features(self.backbone, pixels, needs)
            return Batch(labels, embedded, frozen.cls, frozen.features)
        if needs not in self._kept:
            self._kept[needs] = self._compute(needs)
        kept = self._kept[needs]
        cls = None if kept.cls is None else kept.cls[index].to(device)
        features = None if kept.features is None else kept.features[index].to(device)
        return Batch(labels, embedded, cls, features)

    def _compute(self, needs: Needs) -> Batch:
        chunks = [frozen_features(self.backbone, chunk, needs) for chunk in self.pixels.split(CHUNK)]
        cls = torch.cat([c.cls.cpu() for c in chunks if c.cls is not None]) if needs.cls else None
        features = torch.cat([c.features.cpu() for c in chunks if c.features is not None]) if needs.layers else None
        return Batch(self.labels, None, cls, features)


@torch.no_grad()
def frozen_features(backbone: Backbone, pixels: Tensor, needs: Needs) -> Batch:
    """CLS features and normalised layer inputs of uint8 images, as far as needed."""
    vit = backbone.vit
    images = backbone.normalise(pixels.to(vit.pos_embed.device))
    labels = torch.zeros(len(images), dtype=torch.long)
    cls = vit(images) if needs.cls else None
    features = normalise(vit.layer_inputs(images, needs.layers)) if needs.layers else None
    return Batch(labels, None, cls, features)


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
