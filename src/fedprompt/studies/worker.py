"""A process that does cells one after the other: tasks come as JSON lines, and so do answers go.

Started as ``python -m fedprompt.studies.worker STORE`` with its number of threads in the environment, before torch is
imported. It ends when its input ends, so no worker outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from fedprompt.config import Config
from fedprompt.studies.cell import Cell
from fedprompt.studies.store import Store
from fedprompt.studies.work import do_cell


def main() -> None:
    """Do what standard input says until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints, only answers go to the answers' pipe
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, tasks), daemon=True).start()
    store = Store(Path(sys.argv[1]))
    while True:
        task = json.loads(tasks.get())
        cell = Cell(Config(**task["settings"]), tuple(task["samples"]))
        outcome = do_cell(store, cell, task["data"], lambda event: _say(answers, event))
        _say(answers, {"outcome": outcome.kind, "seconds": outcome.seconds, "complaint": outcome.complaint})


def _listen(source: IO[str], tasks: queue.Queue[str]) -> None:
    for line in source:
        tasks.put(line)
    os._exit(0)  # nobody waits for an answer any more; what is on the disk is whole at any moment


def _say(answers: IO[str], event: dict[str, Any]) -> None:
    answers.write(json.dumps(event) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
