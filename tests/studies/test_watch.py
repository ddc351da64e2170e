"""The time left is told from what finished cells took."""

import pytest

from fedprompt.config import load_config
from fedprompt.studies import Cell
from fedprompt.studies.watch import Estimate


def cell(method, data="digits6"):
    return Cell(load_config(data, {"method": method}))


def test_nothing_is_told_while_nothing_is_known():
    assert Estimate().left([cell("fedvpt")], [], jobs=1) is None


def test_a_cell_takes_what_those_of_its_method_and_data_took():
    estimate = Estimate()
    estimate.learn(cell("fedvpt"), 10.0)
    estimate.learn(cell("fedvpt"), 20.0)
    estimate.learn(cell("head-tune"), 3.0)
    estimate.learn(cell("fedvpt", "pacs"), 100.0)
    assert estimate.of(cell("fedvpt")) == 15.0
    assert estimate.of(cell("sgpt")) == 11.0  # of the same data
    assert estimate.of(cell("sgpt", "cifar100")) == pytest.approx(133 / 4)  # of all


def test_the_time_left_counts_what_is_done_of_a_running_cell_and_all_jobs():
    estimate = Estimate()
    estimate.learn(cell("fedvpt"), 10.0)
    assert estimate.left([cell("fedvpt")] * 3, [(cell("fedvpt"), 0.5)], jobs=2) == 17.5


def test_cells_that_were_done_before_are_no_measure():
    estimate = Estimate()
    estimate.learn(cell("fedvpt"), 0.0)
    assert estimate.of(cell("fedvpt")) is None
