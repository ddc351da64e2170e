"""What the commands print, and what they say to a mistake."""

import json

import pytest
from typer.testing import CliRunner

from fedprompt.cli import app
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.studies import finished, load_study, planned
from fedprompt.studies.plans import save_plan
from fedprompt.studies.store import Store, data_digest
from fedprompt.studies.work import do_cell


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def begun(little_toml, tmp_path_factory):
    """A store in which one of four cells is done; changed settings were used."""
    out = tmp_path_factory.mktemp("begun")
    study = load_study(little_toml, changes={"training.rounds": 2})
    cells = study.cells()
    save_plan(Store(out), study, cells, tuned=False)
    digest = data_digest(open_dataset(cells[0].config.data))
    assert do_cell(Store(out), cells[0], digest).kind == "done"
    return out


def test_studies_are_listed():
    rows = {row["study"]: row for row in json.loads(call("study", "list", "--json").stdout)}
    assert rows["domainnet"]["cells"] == {"paper": 126, "cpu": 144}
    assert rows["digits6"]["cells"] == {"cpu": 144}
    assert "ablation" in call("study", "list").stdout


def test_show_needs_no_options_to_find_what_was_run(little_toml, begun):
    content = json.loads(call("study", "show", little_toml, "--out", begun, "--json").stdout)
    assert (content["cells"], content["done"]) == (4, 1)
    (table,) = content["tables"]
    assert {cell["method"] for cell in table["cells"]} == {"head-tune"}
    shown = call("study", "show", little_toml, "--out", begun).stdout
    assert "Head-Tune" in shown
    assert "1 of 4 cells are done" in shown


def test_other_settings_are_another_study(little_toml, begun):
    content = json.loads(
        call("study", "show", little_toml, "--out", begun, "--set", "training.rounds=5", "--json").stdout
    )
    assert (content["cells"], content["done"], content["tables"]) == (4, 0, [])


def test_finished_gives_the_runs(little_toml, begun):
    (run,) = finished(little_toml, out=begun)
    assert run.config.training.rounds == 2
    assert finished(little_toml, "cpu", ["little"], out=begun)[0].folder == run.folder


def test_further_seeds_join_the_plan(little_toml, tmp_path):
    study = load_study(little_toml)
    for seed in (0, 1):
        save_plan(Store(tmp_path), study, study.cells([seed]), tuned=False)
    assert {cell.config.seed for cell in planned(little_toml, out=tmp_path)} == {0, 1}
    assert len(planned(little_toml, out=tmp_path)) == 8


def test_a_method_tuned_anew_has_one_row(little_toml, tmp_path):
    """What an earlier tuning chose is no longer part of the study; the other method and column are left alone."""
    study = load_study(little_toml)
    for rate, only in ((0.1, None), (0.2, ["head-tune", "m=2"])):
        winners = {"little": {method: {"learning_rate": rate} for method in study.methods}}
        save_plan(Store(tmp_path), study, study.cells(only=only, winners=winners), tuned=True)
    rates = {
        (cell.config.method, cell.column): cell.config.methods[cell.config.method]["learning_rate"]
        for cell in planned(little_toml, out=tmp_path)
    }
    assert rates == {
        ("head-tune", "m=1"): 0.1,
        ("head-tune", "m=2"): 0.2,
        ("pfedbayespt", "m=1"): 0.1,
        ("pfedbayespt", "m=2"): 0.1,
    }
    assert len(planned(little_toml, out=tmp_path)) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("study", "run", "digits6", "--scale", "paper"), "digits6 exists at scale cpu only"),
        (("study", "run", "ablation", "--on", "digits6", "--seeds", "a"), "--seeds is 'a'"),
        (("study", "run", "ablation", "--on", "digits6", "--only", "m=1"), "--only names 'm=1'"),
        (("study", "run", "ablation", "--on", "digits6", "--set", "training.round=1"), "training.rounds"),
        (("study", "show", "ablatoin"), "did you mean 'ablation'"),
        (("tune", "digits7"), "There is no preset or .toml file 'digits7'"),
        (("tune", "digits6", "--methods", "fedvtp"), "There is no method 'fedvtp'"),
        (("tune", "digits6", "--methods", "fedvpt", "--grid", "lerning_rate=1"), "learning_rate"),
        (("tune", "digits6", "--scale", "gpu"), "There is no scale 'gpu'"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_written(arguments, sentence, tmp_path):
    with pytest.raises(UserError) as error:
        call(*arguments, "--out", tmp_path / "store")
    assert sentence in str(error.value)
    assert not (tmp_path / "store").exists()


def test_missing_data_is_one_sentence_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="pacs"):
        call("study", "run", "pacs", "--set", f"data.root={tmp_path}/nowhere", "--out", tmp_path / "store")
    assert not (tmp_path / "store").exists()
