"""Head-Tune (Sun et al., 2022): one global linear head on frozen features, averaged by FedAvg."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.methods.base import Method, Tensors


class HeadTune(Method):
    """FedAvg of the classification head alone; the backbone is run once per image and never again."""

    key = "head-tune"
    title = "Head-Tune"
    paper = "Sun et al., 2022"
    rank = 10

    class Settings(Method.Settings):
        """Settings of Head-Tune."""

        head: Literal["local", "global", "local_plus_mean"] = "global"

    @property
    def needs(self) -> Needs:
        return Needs(cls=True, embedded=False)

    def feature(self, params: Tensors, batch: Batch) -> Tensor:
        assert batch.cls is not None
        return batch.cls
