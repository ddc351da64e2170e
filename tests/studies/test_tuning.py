"""Settings are chosen on validation images, within the same number of trials for every method."""

import json
import math
import shutil
import tomllib
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedprompt.cli import app
from fedprompt.config import load_config
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.studies import Cell, load_study
from fedprompt.studies.definition import GridSettings, read_grids
from fedprompt.studies.store import Store, data_digest
from fedprompt.studies.tuning import choices, grid_points, parse_grid, plan_trials
from fedprompt.studies.work import do_cell


def test_a_small_grid_is_tried_whole():
    assert len(choices(grid_points({"a": [1, 2, 3], "b": [4, 5]}), [{}], 6, "x")) == 6


def test_a_large_grid_is_drawn_from_without_repetition_and_always_alike():
    grid = grid_points({"a": list(range(12)), "b": list(range(12)), "c": list(range(5))})
    drawn = choices(grid, [{}], 16, "domainnet pfedbayespt")
    assert len({json.dumps(choice) for choice in drawn}) == len(drawn) == 16
    assert drawn == choices(grid, [{}], 16, "domainnet pfedbayespt")
    assert drawn != choices(grid, [{}], 16, "cifar100 pfedbayespt")


def test_what_a_data_set_tries_is_as_much_for_every_method():
    trials = plan_trials(load_study("cifar100", "cpu"), read_grids("cpu"))
    assert {len(one.tried) for one in trials} == {6}


@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_no_method_gets_more_trials_than_the_others_may_have(scale):
    grids = read_grids(scale)
    trials = plan_trials(load_study("domainnet", scale), grids)
    assert max(len(one.tried) for one in trials) == grids.trials
    assert {one.method: one.possible for one in trials}["fedpr"] == (2 if scale == "paper" else 6)


def test_trials_of_the_paper_are_its_grids():
    trials = {one.method: one for one in plan_trials(load_study("cifar100", "paper"), read_grids("paper"))}
    assert (len(trials["pfedpg"].tried), trials["pfedpg"].possible) == (16, 16)
    assert (len(trials["pfedbayespt"].tried), trials["pfedbayespt"].possible) == (16, 720)
    assert [choice for choice, _ in trials["fedpr"].tried] == [{"variant": "deep"}, {"variant": "shallow"}]
    assert trials["fedvpt"].cells == []  # the paper does not tune it, so nothing is run


def test_the_better_variant_of_fedpr_is_the_one_row():
    study = load_study("digits6")
    winners = {"digits6": {"fedpr": {"variant": "shallow"}, "fedvpt": {}}}
    cells = study.cells([0], ["m=6"], winners)
    assert [cell.config.method for cell in cells] == ["fedvpt", "fedpr"]
    assert cells[1].config.method_settings().variant == "shallow"


def test_a_grid_that_says_nothing_is_one_sentence():
    with pytest.raises(UserError, match="must be key=value,value"):
        parse_grid(["learning_rate"])


@pytest.fixture
def blind(tiny_toml, tiny_weights, tmp_path):
    """The tiny federation with test images that cannot be read."""
    images = shutil.copytree(tiny_weights.parent / "images", tmp_path / "images")
    path = tmp_path / "blind.toml"
    path.write_text(tiny_toml.read_text().replace(f"{tiny_weights.parent.as_posix()}/images", images.as_posix()))
    for file in open_dataset(load_config(path).data).test.paths:
        file.write_bytes(b"no image")
    return path


def test_tuning_reads_no_test_image_and_finds_the_known_best(blind, tmp_path):
    """A learning rate of 1e-9 learns nothing; the other classes by brightness."""
    arguments = ["tune", str(blind), "--methods", "head-tune", "--grid", "learning_rate=1e-9,0.1"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "store"), "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    (found,) = content["methods"]
    assert found["winner"] == {"learning_rate": 0.1}
    assert found["trials"] == 2
    assert [row["settings"]["learning_rate"] for row in found["ranking"]] == [0.1, 1e-9]
    assert found["ranking"][0]["average"] > found["ranking"][1]["average"]
    snippet = tomllib.loads((tmp_path / "store" / "tuned" / "tiny-cpu.toml").read_text())
    assert snippet == {"methods": {"head-tune": {"learning_rate": 0.1}}}


def test_reading_the_test_images_would_fail(blind, tmp_path):
    """The test above is worth something: a run that is judged on test images does not get through."""
    config = load_config(blind, {"method": "head-tune"})
    outcome = do_cell(Store(tmp_path), Cell(config), data_digest(open_dataset(config.data)))
    assert outcome.kind == "failed"
    assert "cannot be" in outcome.complaint or "unreadable" in outcome.complaint.lower()


def test_settings_may_be_judged_at_several_columns(little):
    """Otherwise a rate that only one of them bears may win."""
    several = replace(little, setups={"little": little.setups["little"].model_copy(update={"tune_at": (1, 2)})})
    (trials,) = plan_trials(several, GridSettings(trials=9), wanted=["head-tune"], grid={"learning_rate": [0.1, 0.2]})
    for _, cells in trials.tried:
        assert [cell.column for cell in cells] == ["m=1", "m=2"]


def test_a_data_set_may_have_its_own_tries(little):
    """In place of the usual grid, for the methods it names; what is asked for comes before both."""
    points = [{"learning_rate": 0.1}, {"learning_rate": 0.2, "momentum": 0.5}]
    setup = little.setups["little"]
    cpu = setup.cpu.model_copy(update={"tries": {"head-tune": points}})
    own = replace(little, setups={"little": setup.model_copy(update={"cpu": cpu})})
    usual = GridSettings(trials=9, methods={"head-tune": {"learning_rate": [0.3]}, "pfedbayespt": {"length": [1, 2]}})
    tried = {one.method: [choice for choice, _ in one.tried] for one in plan_trials(own, usual)}
    assert tried == {"head-tune": points, "pfedbayespt": [{"length": 1}, {"length": 2}]}
    (asked,) = plan_trials(own, usual, wanted=["head-tune"], grid={"learning_rate": [0.4]})
    assert [choice for choice, _ in asked.tried] == [{"learning_rate": 0.4}]


def test_the_winner_is_the_best_on_average_over_the_seeds(little, tmp_path):
    grids = GridSettings(trials=9)
    values = {"learning_rate": [1e-9, 0.1], "step_limit": [math.inf]}
    (trials,) = plan_trials(little, grids, wanted=["head-tune"], grid=values, seeds=[0, 1])
    assert len(trials.cells) == 4
    store = Store(tmp_path)
    digest = data_digest(open_dataset(trials.cells[0].config.data))
    assert not trials.decided(store)
    with pytest.raises(UserError, match="nothing can be chosen"):
        trials.winner(store)
    for cell in trials.cells:
        assert do_cell(store, cell, digest).kind == "done"
    assert trials.winner(store) == {"learning_rate": 0.1, "step_limit": math.inf}
    assert tomllib.loads(trials.to_toml(store))["methods"]["head-tune"]["step_limit"] == math.inf
    found = json.loads(json.dumps(trials.to_json(store), allow_nan=False))
    assert found["winner"] == found["ranking"][0]["settings"] == {"learning_rate": 0.1, "step_limit": None}
    assert (found["trials"], found["runs"], [row["runs"] for row in found["ranking"]]) == (2, 4, [2, 2])
    assert [row["runs"] for row in trials.ranking(store)] == [2, 2]
