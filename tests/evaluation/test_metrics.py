"""Figures of merit against plain arithmetic."""

import math

import pytest
import torch

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.evaluation.evaluate import evaluate_client
from fedprompt.evaluation.metrics import accuracy, calibration_error, mean_of_last, negative_log_likelihood, summary


@pytest.fixture
def guesses():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(200, 5, generator=generator).softmax(-1), torch.randint(0, 5, (200,), generator=generator)


def test_accuracy_is_the_share_of_right_guesses(guesses):
    probabilities, labels = guesses
    right = sum(int(row.argmax()) == int(label) for row, label in zip(probabilities, labels, strict=True))
    assert accuracy(probabilities, labels) == pytest.approx(right / 200)


def test_likelihood_is_the_mean_log_of_the_right_class(guesses):
    probabilities, labels = guesses
    logs = [-math.log(float(row[label])) for row, label in zip(probabilities, labels, strict=True)]
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(sum(logs) / 200, rel=1e-6)


def test_a_certain_mistake_costs_much_but_is_finite():
    found = negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert found == pytest.approx(-math.log(1e-12), rel=1e-6)


def test_calibration_error_is_the_gap_in_each_bin_weighted_by_its_images(guesses):
    probabilities, labels = guesses
    bins = {}
    for row, label in zip(probabilities.double(), labels, strict=True):
        confidence = float(row.max())
        place = min(int(confidence * 15), 14)
        bins.setdefault(place, []).append((confidence, float(row.argmax() == label)))
    gaps = [
        abs(sum(c for c, _ in own) / len(own) - sum(r for _, r in own) / len(own)) * len(own) for own in bins.values()
    ]
    assert calibration_error(probabilities, labels) == pytest.approx(sum(gaps) / 200, rel=1e-6)


def test_certainty_is_calibrated_only_when_right():
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert calibration_error(sure, torch.tensor([0, 1])) == 0
    assert calibration_error(sure, torch.tensor([1, 0])) == 1


def test_clients_count_alike_whatever_their_size():
    assert summary([1.0, 0.5, 0.0]) == {"average": 0.5, "worst_local": 0.0}


def test_the_end_is_a_mean_over_evaluated_rounds_and_worst_local_a_mean_of_minima():
    records = [
        {"round": 1, "average": 0.0, "worst_local": 0.0, "nll": 9.0, "calibration_error": 1.0},
        {"round": 2, "average": 0.6, "worst_local": 0.5, "nll": 1.0, "calibration_error": 0.2},
        {"round": 3},
        {"round": 4, "average": 0.8, "worst_local": 0.1, "nll": 2.0, "calibration_error": 0.4},
    ]
    last = mean_of_last(records, 2)
    assert last == pytest.approx({"average": 0.7, "worst_local": 0.3, "nll": 1.5, "calibration_error": 0.3})
    assert mean_of_last(records, 10)["average"] == pytest.approx(1.4 / 3)
    assert mean_of_last([], 3) == {}


class Coin:
    """A method whose draws say class 0 and class 1 in turn, the second more surely."""

    needs = Needs()

    def predict(self, params, batch, generator):
        return torch.tensor([[0.6, 0.4], [0.1, 0.9]])[:, None].expand(2, len(batch), 2)


class Data:
    labels = torch.tensor([1, 1, 1, 0, 1])

    def __len__(self):
        return 5

    def batch(self, index, needs):
        return Batch(self.labels[index])


def test_probabilities_are_averaged_over_draws_not_votes():
    found = evaluate_client(Coin(), {}, Data(), torch.Generator(), batch=2)
    assert (found.right, found.images, found.drawn) == (4, 5, 10)
    assert found.log_loss == pytest.approx(-4 * math.log(0.65) - math.log(0.35))
    assert found.squares == pytest.approx(4 * 2 * 0.35**2 + 2 * 0.65**2)
