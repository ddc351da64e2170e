"""The work under pfl-research: federated averaging on its simulated backend.

PYTHONPATH=. python pfl_peer.py FOLDER KIND ROUNDS THREADS   prints one line of JSON: seconds and losses of rounds.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F
from work import BATCH, LEARNING_RATE, MOMENTUM, clients_data, make_model

folder, kind, rounds, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
about = json.loads((folder / "work.json").read_text())
torch.set_num_threads(threads)
np.random.seed(0)  # noqa: NPY002 (pfl draws from it)
clients = clients_data(folder, kind)
module = make_model(kind, about["classes"])


losses: list[float] = []  # of all steps


class WithLoss(type(module)):  # type: ignore[misc]
    """What pfl asks of a module: a loss and metrics over a user's data."""

    def loss(self, inputs, labels):
        loss = F.cross_entropy(self(inputs), labels)
        if loss.requires_grad:  # a training step, not an evaluation
            losses.append(loss.item())
        return loss

    @torch.no_grad()
    def metrics(self, inputs, labels):
        return {"loss": Weighted(float(self.loss(inputs, labels)), len(labels))}


class Clock(TrainingProcessCallback):
    """Notes when each round ended."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_train_begin(self, *, model):
        self.moments.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.moments.append(time.perf_counter())
        return False, Metrics()


module.__class__ = WithLoss
model = PyTorchModel(
    model=module,
    local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
    central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
)
data = FederatedDataset(lambda user: Dataset(clients[user]), MinimizeReuseUserSampler(list(range(len(clients)))))
clock = Clock()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=len(clients),
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE
    ),
    callbacks=[clock],
)
seconds = [after - before for before, after in pairwise(clock.moments)]
each = len(losses) // rounds
means = [sum(losses[i : i + each]) / each for i in range(0, len(losses), each)]
print(json.dumps({"seconds": seconds, "losses": means}))
