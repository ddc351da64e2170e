"""The shipped studies are the paper's tables: their sizes, their numbers, and what is smaller on a CPU."""

import re
from importlib import resources

import pytest

from fedprompt.errors import UserError
from fedprompt.federation.participation import participants
from fedprompt.methods import methods
from fedprompt.studies import load_study, study_names
from fedprompt.studies.definition import read_grids, read_study

PAPER_METHODS = ["head-tune", "fedvpt", "fedvpt-d", "pfedpg", "fedpr", "sgpt", "pfedbayespt"]
FOLDER = resources.files("fedprompt") / "presets" / "studies"


def tuned(study):
    """The grid with one row a method, as after tuning."""
    return study.cells(winners=study.one_row_each())


@pytest.mark.parametrize(
    ("name", "columns", "methods"),
    [("domainnet", 6, 7), ("cifar100", 5, 7), ("new-clients", 4, 7), ("ablation", 2, 3), ("samples", 2, 1)],
)
def test_the_grid_is_that_of_the_papers_table(name, columns, methods):
    study = load_study(name, "paper")
    assert len(tuned(study)) == len(study) == columns * methods * 3
    assert {cell.config.seed for cell in tuned(study)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "on", "cells"),
    [
        ("domainnet", None, 6 * 8 * 3),  # both variants of FedPR have a row where nothing is tuned
        ("cifar100", None, 5 * 8 * 3),
        ("pacs", None, 4 * 7 * 3),  # where only one of them is left
        ("digits6", None, 6 * 8 * 3),
        ("new-clients", ["digits6"], 2 * 8 * 3),
        ("ablation", ["digits6"], 3 * 3),
        ("samples", ["pacs"], 3),
    ],
)
def test_the_grid_on_a_cpu_has_the_same_shape(name, on, cells):
    study = load_study(name, "cpu", on)
    assert len(study.cells()) == len(study) == cells
    assert len(tuned(study)) <= cells


def test_the_columns_are_the_papers():
    assert [cell.column for cell in load_study("domainnet", "paper").cells([0], ["fedvpt"])] == [
        f"m={m}" for m in range(1, 7)
    ]
    assert [cell.column for cell in load_study("cifar100", "paper").cells([0], ["fedvpt"])] == [
        f"s={s}" for s in (5, 10, 15, 20, 50)
    ]
    assert load_study("domainnet", "paper").methods == PAPER_METHODS


@pytest.mark.parametrize("name", ["domainnet", "cifar100", "new-clients", "ablation", "samples"])
def test_the_papers_numbers_are_in_every_cell_of_its_scale(name):
    for cell in load_study(name, "paper").cells():
        config, method = cell.config, cell.config.method_settings()
        assert "vit_base_patch16_224" in config.backbone.weights
        assert config.backbone.image in (None, 224)
        assert (config.training.rounds, config.training.epochs) == (100, 5)
        assert (config.evaluation.last, config.evaluation.split) == (10, "test")
        assert method.learning_rate == 0.01
        assert getattr(method, "length", 10) == 10
        if config.method.startswith("pfedbayespt"):
            assert (method.instance_length, method.keep, method.draws, method.extra_draws) == (1, 0.9, 1, 1)
            assert method.samples == 5
        if config.method == "fedpr":
            assert method.keep_ratio == 0.8
        if config.data.name == "domainnet10":
            assert (config.partition.clients, config.training.participation) == (6, 1.0)
            assert config.data.train_per_domain == 1830
        else:
            assert (config.partition.clients, config.data.train_per_domain) == (100, None)
            members = list(range(50 if name == "new-clients" else 100))
            assert len(participants(0, 1, members, config.training.participation)) == 5
        assert config.new_clients.hold_out == ("half" if name == "new-clients" else "none")
        assert config.new_clients.epochs == 5


def test_the_papers_grids_are_tuned_at_its_scale():
    grids = read_grids("paper")
    assert grids.methods["pfedpg"] == {
        "learning_rate": [0.01, 0.05, 0.1, 0.25],
        "server_learning_rate": [0.001, 0.01, 0.05, 0.1],
    }
    assert grids.methods["pfedbayespt"]["encoder_learning_rate"] == [0.0001, 0.0005, 0.001, 0.005, 0.01]
    assert grids.methods["pfedbayespt"]["global_depth"] == list(range(1, 13))
    assert grids.methods["pfedbayespt"]["instance_depth"] == list(range(1, 13))
    assert load_study("domainnet", "paper").tunes
    assert not load_study("domainnet", "cpu").tunes


def test_five_clients_a_round_train_on_cifar100_on_a_cpu_too():
    for name, clients in (("cifar100", 20), ("new-clients", 10)):
        config = load_study(name, "cpu", ["cifar100"]).cells([0])[0].config
        assert len(participants(0, 1, list(range(clients)), config.training.participation)) == 5


def test_classes_of_cifar100_can_be_cut_among_the_clients_of_every_column():
    for cell in load_study("cifar100", "cpu").cells([0], ["fedvpt"]):
        partition, data = cell.config.partition, cell.config.data
        assert partition.clients * partition.classes_per_client % 100 == 0
        pieces = partition.clients * partition.classes_per_client // 100
        assert min(data.train_per_domain, data.test_per_domain) // 100 >= pieces


@pytest.mark.parametrize("name", ["domainnet", "cifar100"])
def test_every_change_for_a_cpu_stands_beside_the_papers_value(name):
    text = (FOLDER / f"{name}.toml").read_text("utf-8")
    changes = text.partition("[setup.cpu]")[2].partition("[setup.cpu.tries]")[0].splitlines()[2:]
    for line in (line for line in changes if "=" in line):
        assert "#" in line, line


def test_equal_cells_are_shared_between_studies():
    for scale in ("paper", "cpu"):
        table = {cell.key for cell in load_study("domainnet", scale).cells([0], ["pfedbayespt", "m=6"])}
        for other in ("ablation", "samples"):
            assert table <= {cell.key for cell in load_study(other, scale, ["domainnet"]).cells([0])}
        assert not table & {cell.key for cell in load_study("new-clients", scale, ["domainnet"]).cells()}


def test_what_new_heads_start_from_is_compared_in_the_set_up_of_new_clients():
    keys = {
        name: {cell.key for cell in load_study(name, "cpu", ["cifar100"]).cells([0], ["s=10"])}
        for name in ("new-clients", "new-heads")
    }
    # Six methods have local heads; each is in both studies as it is, and in one of them with the other start.
    assert len(keys["new-clients"] & keys["new-heads"]) == 6
    assert len(keys["new-heads"] - keys["new-clients"]) == 6


def test_trials_are_shared_between_studies_and_see_no_test_image():
    studies = [load_study(name, "paper", ["domainnet"]) for name in ("domainnet", "new-clients")]
    trials = [trial for study in studies for trial in study.trials("domainnet", "fedpr", {}, [0])]
    assert len({trial.key for trial in trials}) == 1
    assert trials[0].config.evaluation.split == "validation"
    assert trials[0].config.data.validation > 0


def test_only_keeps_what_it_names():
    study = load_study("digits6")
    cells = study.cells([0], ["fedvpt", "sgpt", "m=2"])
    assert [(cell.config.method, cell.column) for cell in cells] == [("fedvpt", "m=2"), ("sgpt", "m=2")]
    with pytest.raises(UserError, match=r"'m=9'.*parts are digits6, m=1"):
        study.cells([0], ["m=9"])


def test_a_change_goes_over_everything_else():
    study = load_study("ablation", "cpu", ["digits6"], {"training.rounds": 2, "methods.pfedbayespt.hidden": 4})
    assert all(cell.config.training.rounds == 2 for cell in study.cells())
    assert study.cells([0], ["pfedbayespt"])[0].config.method_settings().hidden == 4


def test_rows_that_a_change_makes_the_same_are_one():
    study = load_study("digits6", changes={"methods.fedpr.variant": "deep"})
    assert len(study.cells([0], ["fedpr"])) == 6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ablatoin",), "There is no study 'ablatoin'; did you mean 'ablation'?"),
        (("ablation", "gpu"), "There is no scale 'gpu'; there are paper and cpu."),
        (("digits6", "paper"), "digits6 exists at scale cpu only; use --scale cpu."),
        (("pacs", "paper"), "pacs exists at scale cpu only; use --scale cpu."),
        (("ablation", "paper", ["digits6"]), "digits6 exists at scale cpu only; use --scale cpu."),
        (("digits6", "cpu", ["pacs"]), "The study 'digits6' is not defined on 'pacs'; use --on digits6."),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence):
    with pytest.raises(UserError) as error:
        load_study(*arguments)
    assert str(error.value) == sentence


def test_a_wrong_definition_is_one_sentence(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "x"\nrows = []\nseeds = [0]\n[on]\nmine = [1]\n')
    with pytest.raises(UserError, match=r"In the study .*rows"):
        read_study(path)
    path.write_text('title = "x"\nrowz = ["fedvpt"]\n')
    with pytest.raises(UserError, match=re.escape("mine.toml")):
        read_study(path)


def test_tries_and_grids_name_methods_that_exist(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "x"\nrows = ["fedpr"]\nseeds = [0]\n[on]\nmine = [1]\n'
        '[setup]\nkey = "partition.domains_per_client"\nsymbol = "m"\ntune_at = 1\n[setup.cpu]\npreset = "digits6"\n'
        "[setup.cpu.tries]\nfedprr = [{ prompt_learning_rate = 1.0 }]\n"
    )
    with pytest.raises(UserError, match=re.escape("There is no method 'fedprr'; did you mean 'fedpr'?")):
        load_study(path)
    for scale in ("paper", "cpu"):
        assert set(read_grids(scale).methods) <= set(methods())


OTHERS = ["ablation", "heads", "new-clients", "new-heads", "parts", "samples", "starts"]


def test_studies_are_listed_with_those_that_define_data_first():
    assert study_names() == ["cifar100", "digits6", "domainnet", "pacs", *OTHERS]


def test_a_trial_may_set_aside_more_images_without_training_on_more():
    """So that a difference of a point shows, and what is tuned is tuned for as many images as in the table."""
    for name in ("pacs", "cifar100"):
        study = load_study(name, "cpu")
        cell, trial = study.cells([0])[0].config.data, study.trials(name, "fedvpt", {}, [0])[0].config.data
        assert trial.train_per_domain * trial.validation >= 300
        assert trial.train_per_domain * (1 - trial.validation) == cell.train_per_domain
    assert load_study("cifar100", "paper").trials("cifar100", "fedvpt", {}, [0])[0].config.data.validation == 0.2


def test_a_setup_that_no_data_set_would_have_is_refused(tmp_path):
    """It belongs to the data set of the file's name; ``on.pacs`` is the PACS that is shipped."""
    path = tmp_path / "mine.toml"
    setup = 'key = "partition.domains_per_client", symbol = "m", tune_at = 4, cpu.preset = "pacs"'
    path.write_text(f'title = "a"\nrows = ["fedvpt"]\nseeds = [0]\non.pacs = [4]\nsetup = {{{setup}}}')
    with pytest.raises(UserError, match=re.escape("[on] does not name 'mine'")):
        load_study(path)
