"""What a person sees of a federation whose server app runs elsewhere: the rounds as they are written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.live import Live

from fedprompt.config import Config
from fedprompt.live import LiveRun
from fedprompt.methods import methods


class LiveRounds(LiveRun):
    """As the view of a run, a step being a round."""

    def begin(self, folder: Path, config: Config, clients: int) -> None:
        """Show what is about to happen."""
        self.rounds = config.training.rounds
        self.title = f"{methods()[config.method].title}, seed {config.seed}, {clients} clients"
        self.say(f"{self.title}: {folder}")
        self.task = self.progress.add_task(f"{self.title}: starting", total=self.rounds)
        if self.console.is_terminal:
            self.live = Live(self._view(), console=self.console, transient=True, refresh_per_second=4)
            self.live.start()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def round_ended(self, record: dict[str, Any]) -> None:
        for key, word in (("missing", "Missing"), ("not_evaluated", "Not evaluated")):
            for sentence in record.get(key, []):
                self.console.print(f"{word}: {sentence}", style="yellow", markup=False, soft_wrap=True)
        self.progress.update(
            self.task, completed=record["round"], description=f"{self.title}, round {record['round']}/{self.rounds}"
        )
        super().round_ended(record)
