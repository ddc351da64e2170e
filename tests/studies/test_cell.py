"""A cell is known by what decides its result, and by nothing else."""

import shutil

import pytest

from fedprompt.config import load_config
from fedprompt.studies import Cell
from fedprompt.studies.cell import settings_key


@pytest.fixture
def key(tiny_toml):
    return lambda **changes: settings_key(
        load_config(tiny_toml, {name.replace("__", "."): value for name, value in changes.items()})
    )


def test_moved_data_are_the_same_cell(key, tiny_weights, tmp_path):
    moved = shutil.copytree(tiny_weights.parent / "images", tmp_path / "elsewhere")
    assert key(data__root=str(moved)) == key()


def test_moved_weights_are_the_same_cell_and_other_weights_are_not(key, tiny_weights, tmp_path):
    moved = tmp_path / tiny_weights.name
    shutil.copy(tiny_weights, moved)
    assert key(backbone__weights=str(moved)) == key()
    moved.write_bytes(moved.read_bytes()[:-1] + b"\1")
    assert key(backbone__weights=str(moved)) != key()


def test_how_it_is_computed_makes_no_other_cell(key):
    same = [key(threads=2), key(device="cpu"), key(training__checkpoint_every=7), key(name="other")]
    assert set(same) == {key()}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"training__rounds": 4},
        {"methods__pfedbayespt__hidden": 5},
        {"data__test_fraction": 0.5},
        {"evaluation__last": 3},
        {"new_clients__hold_out": [1]},
    ],
)
def test_a_changed_setting_makes_another_cell(key, change):
    assert key(**change) != key()


def test_settings_of_other_methods_make_no_other_cell(key):
    assert key(methods__fedvpt__length=3) == key()


def test_the_name_of_a_cell_says_what_it_is(tiny_toml):
    config = load_config(tiny_toml, {"new_clients.hold_out": "half", "seed": 3})
    assert Cell(config).name.startswith("domains-m1-new-pfedbayespt-seed3-")
    trial = load_config(tiny_toml, {"data.validation": 0.2, "evaluation.split": "validation"})
    assert Cell(trial).name.startswith("domains-m1-trial-pfedbayespt-seed0-")
