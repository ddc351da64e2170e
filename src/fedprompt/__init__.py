"""Personalised federated prompt tuning of frozen vision transformers.

>>> import fedprompt, tempfile
>>> small = {"training.rounds": 1, "data.train_per_domain": 12, "data.test_per_domain": 12}
>>> run = fedprompt.run("digits6", method="head-tune", seed=0, changes=small, out=tempfile.mkdtemp())
>>> len(run.metrics)
1
"""

from fedprompt.errors import UserError
from fedprompt.runs import Observer, Run, load_run, resume, run

__all__ = ["Observer", "Run", "UserError", "load_run", "resume", "run"]
