"""Accuracy against the number of draws: smaller numbers are the first draws of the largest."""

import json

import pytest
import torch

from fedprompt.config import load_config
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.evaluation.metrics import accuracy
from fedprompt.evaluation.samples import by_samples, running_means, with_samples
from fedprompt.federation.simulation import Simulation
from fedprompt.randomness import torch_generator
from fedprompt.report.draws import draws_tables
from fedprompt.studies import Cell
from fedprompt.studies.store import Store, data_digest
from fedprompt.studies.work import do_cell

COUNTS = tuple(range(1, 11))


@pytest.fixture(scope="module")
def trained(tiny_run):
    simulation = Simulation(tiny_run.config)
    return simulation, tiny_run.state()


@pytest.fixture(scope="module")
def rows(trained):
    return by_samples(*trained, COUNTS)


def test_measuring_twice_gives_the_same(trained, rows):
    assert by_samples(*trained, COUNTS) == rows


def test_five_of_ten_draws_are_the_prediction_with_five_samples(trained, rows):
    """Given the same generator: masks are drawn one after the other, so five of ten are the five."""
    simulation, state = trained
    groups = simulation.groups(state)
    method = with_samples(simulation.method, 5)
    accuracies = []
    for client in simulation.members:
        data = simulation.held_data[client]
        params = {**method.payload(groups, client), **simulation.personal(state, client)}
        parts = []
        for place, index in enumerate(torch.arange(len(data)).split(simulation.config.evaluation.batch)):
            generator = torch_generator(simulation.config.seed, "samples", state.round, client, place)
            with torch.no_grad():
                parts.append(method.predict(params, data.batch(index, method.needs), generator).mean(0))
        means = running_means(simulation, params, data, 10, ("samples", state.round, client))
        torch.testing.assert_close(means[4], torch.cat(parts))
        accuracies.append(accuracy(torch.cat(parts), data.labels))
    assert rows[4]["average"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert rows[4]["worst_local"] == min(accuracies)


def test_fewer_numbers_do_not_change_what_the_others_say(trained, rows):
    assert by_samples(*trained, (2, 10)) == [rows[1], rows[9]]


def test_draws_differ_and_so_do_their_means(rows):
    assert len({row["nll"] for row in rows}) == len(COUNTS)
    assert {"samples", "average", "worst_local", "nll", "calibration_error", "brier"} == set(rows[0])


def test_a_method_without_draws_is_one_sentence(tiny_toml):
    simulation = Simulation(load_config(tiny_toml, {"method": "head-tune"}))
    with pytest.raises(UserError, match="draws no prompts"):
        by_samples(simulation, simulation.start(), COUNTS)


def test_a_cell_of_the_table_is_measured_without_being_trained_again(tiny_toml, tmp_path):
    config = load_config(tiny_toml)
    store, digest = Store(tmp_path), data_digest(open_dataset(config.data))
    plain, measured = Cell(config), Cell(config, (1, 2, 3))
    do_cell(store, plain, digest)
    folder = store.folder(plain)
    before = (folder / "cell.json").stat().st_mtime_ns, (folder / "checkpoint.safetensors").stat().st_mtime_ns
    assert store.finished(plain)
    assert not store.finished(measured)
    assert do_cell(store, measured, digest).kind == "done"
    assert store.finished(measured)
    after = (folder / "cell.json").stat().st_mtime_ns, (folder / "checkpoint.safetensors").stat().st_mtime_ns
    assert after == before
    content = json.loads((folder / "samples.json").read_text())
    assert [row["samples"] for row in content["rows"]] == [1, 2, 3]

    average = draws_tables(store.runs([measured]))[0]
    assert average.settings == ["V=1", "V=2", "V=3"]
    shown = average.cell("pFedBayesPT, domains images m=1", "V=2", "average")
    assert shown is not None
    assert shown.mean == pytest.approx(100 * content["rows"][1]["average"])
