"""Settings of the federation itself: how long to wait, for how many, and what to refuse."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt


class FederationSettings(BaseModel):
    """How a round copes with clients that are late, gone or wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline: PositiveFloat = Field(600.0, description="seconds that a round waits for answers over a network")
    min_clients: PositiveInt = Field(1, description="usable updates that a round needs (k of n); else it is repeated")
    attempts: PositiveInt = Field(3, description="times that a round is tried over a network before the run stops")
    norm_factor: float = Field(
        10.0, ge=0, description="refuse a change so many times as long as the cohort's median; 0 for any length"
    )
