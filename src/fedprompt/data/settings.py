"""Which data set, from where, and how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DataSettings(BaseModel):
    """Which data set to open, where it lies, and how much of it to use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("digits6", description="digits6, cifar100, domainnet10, pacs, folder or domains")
    root: Path | None = Field(
        None, description="folder of the data set; by default one under $FEDPROMPT_DATA or ./data"
    )
    seed: int = Field(0, description="decides subsamples and cuts; not the seed of the training")
    train_per_domain: int | None = Field(None, ge=1, description="keep at most so many training images of each domain")
    test_per_domain: int | None = Field(None, ge=1, description="keep at most so many test images of each domain")
    subsample: Literal["uniform", "stratified"] = Field(
        "uniform", description="draw these at random, or so that every class gives its share"
    )
    validation: float = Field(0.0, ge=0, lt=1, description="the fraction of a client's training images set aside")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="for image folders without a test folder of their own")
    unreadable: Literal["error", "skip"] = Field(
        "error", description="stop at broken image files, or check all files first and leave the broken ones out"
    )
