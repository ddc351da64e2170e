"""What carries the messages of a federation: a run asks this of it and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fedprompt.backbone.weights import Backbone
from fedprompt.config import Config
from fedprompt.federation.checkpoint import FederationState
from fedprompt.methods.base import Method, State, Tensors

if TYPE_CHECKING:  # a third of a second to import
    from matplotlib.figure import Figure


class Engine(Protocol):
    """Clients, wherever they are, and the rounds over an explicit state."""

    config: Config
    backbone: Backbone
    method: Method
    fresh: State  # what a federation and a client start from
    members: list[int]  # clients that train
    newcomers: list[int]  # clients that join only after training

    def about(self) -> dict[str, Any]:
        """The classes, the domains, and the images of each client, for about.json."""

    def picture(self) -> Figure | None:
        """Who has what; None where the server does not know."""

    def start(self) -> FederationState:
        """The state before the first round."""

    def steps(self, round_number: int) -> int:
        """Local steps that a round takes, for progress bars."""

    def round(
        self, state: FederationState, on_step: Callable[[], None] = lambda: None
    ) -> tuple[FederationState, dict[str, Any]]:
        """The next state and a record of the round."""

    def evaluate(self, state: FederationState) -> dict[str, Any]:
        """Accuracy of every member with the aggregated shared tensors and its own latest personal ones."""

    def adapt_newcomers(self, state: FederationState) -> tuple[dict[str, Any], dict[int, Tensors]]:
        """Figures over the clients that join after training, and those of their tensors that the server may see."""
