"""fedprompt as a library: few names, and a run folder that holds all it promises."""

import csv
import json
import tomllib

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.overrides import TorchFunctionMode

import fedprompt
from fedprompt.config import load_config
from fedprompt.device import pick_device
from fedprompt.methods import methods
from fedprompt.randomness import numpy_generator, torch_generator
from fedprompt.report.table import Table
from fedprompt.runs import fingerprint
from fedprompt.toml_text import to_toml

PROMISED = [
    "about.json",
    "checkpoint.safetensors",
    "clients.png",
    "config.toml",
    "curves.png",
    "events.out.tfevents.fedprompt",
    "metrics.csv",
    "metrics.jsonl",
    "partition.png",
    "summary.json",
    "timing.jsonl",
]


def test_the_names_of_the_library_are_few_and_there():
    assert set(fedprompt.__all__) == {"Observer", "Run", "UserError", "load_run", "resume", "run"}
    assert all(hasattr(fedprompt, name) for name in fedprompt.__all__)


# The run folder


def test_a_run_folder_holds_what_it_promises_and_nothing_else(tiny_run):
    assert sorted(path.name for path in tiny_run.folder.iterdir()) == PROMISED
    for name in PROMISED:
        if name != "events.out.tfevents.fedprompt":
            assert name in fedprompt.runs.__doc__, f"the docstring of fedprompt.runs does not name {name}"


def test_the_settings_are_resolved_and_give_the_same_run(tiny_run):
    content = tomllib.loads((tiny_run.folder / "config.toml").read_text())
    assert content["methods"]["pfedbayespt"]["keep"] == 0.9, "defaults are written out"
    assert list(content["methods"]) == ["pfedbayespt"], "other methods are left out"
    again = load_config(tiny_run.folder / "config.toml")
    assert again.resolved() == tiny_run.config.resolved() == content
    assert fingerprint(again) == fingerprint(tiny_run.config)


def test_versions_seed_and_clients_are_written_down(tiny_run):
    about = tiny_run.about
    assert {"fedprompt", "torch", "numpy", "python"} <= about["versions"].keys()
    assert about["versions"]["torch"] == torch.__version__
    assert about["classes"] == ["dark", "grey", "light"]
    assert about["clients"] == len(about["images"]) == 4
    assert tiny_run.summary["seed"] == 0


def test_checkpoints_hold_trained_tensors_only(tiny_run, tiny_backbone):
    with safe_open(tiny_run.folder / "checkpoint.safetensors", framework="pt") as file:
        names = set(file.keys())
        shapes = {name: tuple(file.get_tensor(name).shape) for name in names}
    frozen = tiny_backbone.vit.state_dict()
    for name in names:
        group, _, rest = name.partition("/")
        assert group in ("shared", "personal", "server")
        assert rest not in frozen
    assert (*frozen["blocks.0.attn.qkv.weight"].shape,) not in shapes.values()
    assert {name.split("/")[1] for name in names if name.startswith("personal/")} == {"0", "1", "2", "3"}


def test_metrics_have_a_line_for_each_round(tiny_run):
    lines = (tiny_run.folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["round"] for record in records] == [1, 2, 3]
    for record in records:
        accuracy = list(record["accuracy"].values())
        assert record["average"] == pytest.approx(sum(accuracy) / 4)
        assert record["worst_local"] == min(accuracy)
        assert {"cross_entropy", "kl_per_dimension", "mean_rms", "std_mean", "mask_shift"} <= record["training"].keys()


def test_no_time_or_place_is_in_what_must_be_the_same(tiny_run):
    text = (tiny_run.folder / "metrics.jsonl").read_text() + (tiny_run.folder / "summary.json").read_text()
    assert "seconds" not in text
    assert str(tiny_run.folder.parent) not in text
    assert all(timing["seconds"] >= timing["train_seconds"] > 0 for timing in tiny_run.timings)


def test_the_csv_holds_every_client_and_round(tiny_run):
    with (tiny_run.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 4
    found = {(int(row["round"]), int(row["client"])): float(row["accuracy"]) for row in rows}
    for record in tiny_run.records:
        for client, value in record["accuracy"].items():
            assert found[record["round"], int(client)] == value


def test_pictures_open(tiny_run):
    for name in ("curves.png", "clients.png", "partition.png"):
        with Image.open(tiny_run.folder / name) as picture:
            picture.load()
            assert min(picture.size) > 100


def test_tensorboard_reads_the_events(tiny_run):
    events = EventAccumulator(str(tiny_run.folder)).Reload()
    for name in ("average", "worst_local"):
        found = [(event.step, event.value) for event in events.Scalars(f"evaluation/{name}")]
        assert found == [(r["round"], pytest.approx(r[name])) for r in tiny_run.records]
    found = [event.value for event in events.Scalars("training/cross_entropy")]
    assert found == pytest.approx([record["training"]["cross_entropy"] for record in tiny_run.records])


# Reading a run


def test_a_run_is_read_back_from_its_folder(tiny_run):
    loaded = fedprompt.load_run(str(tiny_run.folder))
    assert loaded.summary == tiny_run.summary
    assert loaded.records == tiny_run.records
    assert loaded.config == tiny_run.config
    assert str(tiny_run.folder) in repr(loaded)


def test_metrics_are_tables(tiny_run):
    assert isinstance(tiny_run.metrics, Table)
    assert tiny_run.metrics["round"] == [1, 2, 3]
    assert tiny_run.metrics["average"] == [record["average"] for record in tiny_run.records]
    assert {"worst_local", "nll", "calibration_error", "cross_entropy"} <= set(tiny_run.metrics.columns)
    assert len(tiny_run.client_accuracy) == 12
    assert tiny_run.client_accuracy.columns == ["round", "client", "accuracy"]


def test_the_summary_is_a_mean_over_the_last_rounds(tiny_run):
    last = tiny_run.records[-2:]
    for name in ("average", "worst_local", "nll"):
        assert tiny_run.summary["final"][name] == pytest.approx(sum(record[name] for record in last) / 2)
    assert tiny_run.summary["never_sampled"] == []


def test_the_state_of_a_run_is_that_of_its_last_round(tiny_run):
    state = tiny_run.state()
    assert state.round == 3
    assert state.participations == {0: 3, 1: 3, 2: 3, 3: 3}


def test_evaluating_seldom_changes_no_tensor_and_the_last_rounds_are_evaluated(tiny_run, tiny_toml, tmp_path):
    seldom = fedprompt.run(tiny_toml, changes={"evaluation.every": 100, "evaluation.last": 1}, out=tmp_path)
    assert ["average" in record for record in seldom.records] == [False, False, True]
    assert seldom.records[-1] == tiny_run.records[-1]
    a, b = seldom.state(), tiny_run.state()
    assert all(torch.equal(a.shared[name], b.shared[name]) for name in b.shared)
    assert all(torch.equal(a.personal[c][name], b.personal[c][name]) for c in b.personal for name in b.personal[c])


def test_a_client_never_sampled_is_reported_and_still_predicts(tiny_toml, tmp_path):
    changes = {"training.participation": 0.25, "training.rounds": 1}
    run = fedprompt.run(tiny_toml, method="fedvpt-d", changes=changes, out=tmp_path)
    (sampled,) = run.records[0]["participants"]
    assert run.summary["never_sampled"] == [client for client in range(4) if client != sampled]
    assert len(run.records[0]["accuracy"]) == 4, "it is evaluated all the same"
    prediction = run.predictor(client=run.summary["never_sampled"][0])(torch.zeros(3, 16, 16, dtype=torch.uint8))
    assert prediction.probabilities.shape == (1, 3)


def test_a_client_that_is_none_is_refused(tiny_run):
    for client in (-1, 4):
        with pytest.raises(fedprompt.UserError, match="clients are 0 to 3"):
            tiny_run.predictor(client)


def test_an_observer_sees_the_run_go_by(tiny_toml, tmp_path):
    seen = []

    class Watch(fedprompt.Observer):
        def started(self, folder, simulation, state):
            seen.append(("started", folder.parent))

        def round_begins(self, number, steps):
            seen.append(("begins", number, steps))

        def stepped(self):
            seen.append(("step",))

        def round_ended(self, record):
            seen.append(("ended", record["round"]))

        def finished(self, summary):
            seen.append(("finished", summary["rounds"]))

    fedprompt.run(tiny_toml, method="head-tune", changes={"training.rounds": 2}, out=tmp_path, observer=Watch())
    steps = seen[1][2]
    rounds = [[("begins", number, steps), *[("step",)] * steps, ("ended", number)] for number in (1, 2)]
    assert seen == [("started", tmp_path), *rounds[0], *rounds[1], ("finished", 2)]


# Settings


def test_what_is_written_as_toml_is_read_back():
    tree = {
        "text": 'quotes " and \\ and\nlines\tand \x01 and é and 😀',
        "small": 1e-05,
        "large": 10**15,
        "whole": 3.0,
        "yes": True,
        "list": [1, 2],
        "words": ["a", "b"],
        "table": {"inner": {"x": -1}, "y": []},
    }
    assert tomllib.loads(to_toml(tree)) == tree


@pytest.mark.parametrize("wanted", ["none", "half", [0, 2]])
def test_settings_survive_the_disk(wanted, tiny_toml, tmp_path):
    config = load_config(tiny_toml, {"new_clients.hold_out": wanted, "methods.pfedbayespt.learning_rate": 1e-05})
    (tmp_path / "config.toml").write_text(to_toml(config.resolved()))
    assert load_config(tmp_path / "config.toml").resolved() == config.resolved()


def test_only_settings_that_decide_results_are_in_the_fingerprint(tiny_toml):
    mark = fingerprint(load_config(tiny_toml))
    assert fingerprint(load_config(tiny_toml, {"device": "cpu", "threads": 2})) == mark
    assert fingerprint(load_config(tiny_toml, {"methods.fedvpt.learning_rate": 1.0})) == mark
    for key, value in (("seed", 1), ("training.rounds", 4), ("methods.pfedbayespt.keep", 0.5)):
        assert fingerprint(load_config(tiny_toml, {key: value})) != mark


# Randomness and devices


def test_draws_are_made_on_the_cpu_and_depend_on_their_address_alone():
    generator = torch_generator(0, "train", 1, 2)
    assert generator.device.type == "cpu"
    first = torch.rand(5, generator=generator)
    torch.manual_seed(123)
    assert torch.equal(torch.rand(5, generator=torch_generator(0, "train", 1, 2)), first)
    for other in ((1, "train", 1, 2), (0, "evaluate", 1, 2), (0, "train", 2, 1), (0, "train", 12)):
        assert not torch.equal(torch.rand(5, generator=torch_generator(*other)), first)
    assert numpy_generator(0, "a").random() == numpy_generator(0, "a").random() != numpy_generator(0, "b").random()


def test_a_run_neither_reads_nor_moves_the_global_generators(tiny_toml, tiny_run, tmp_path):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    run = fedprompt.run(tiny_toml, out=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert run.records == tiny_run.records


class Draws(TorchFunctionMode):
    """Notes every call of a random function."""

    names = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "normal", "multinomial")

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "").rstrip("_")
        if name in (*self.names, "uniform", "exponential", "dropout"):
            self.calls.append((name, kwargs or {}))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", list(methods()))
def test_every_draw_of_a_method_names_a_cpu_generator_and_no_device(method, tiny_toml, tiny_run, tmp_path):
    # The backbone is there since tiny_run; building one calls torch's own start of layers, on no device at all.
    with Draws() as draws:
        fedprompt.run(tiny_toml, method=method, changes={"training.rounds": 1}, out=tmp_path)
    assert draws.calls, "at least the order of the images is drawn"
    for name, arguments in draws.calls:
        assert arguments["generator"].device.type == "cpu", name
        assert arguments.get("device") is None, f"{name} is drawn where it is used, not on the CPU"


def test_auto_takes_the_best_device_there_is(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert pick_device("auto") == "mps"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert pick_device("auto") == "cuda"


@pytest.mark.skipif(pick_device("auto") == "cpu", reason="no accelerator here")
def test_an_accelerator_gives_the_figures_of_the_cpu(tiny_toml, tmp_path):
    """The same draws, so that only rounding differs."""
    runs = [fedprompt.run(tiny_toml, changes={"device": device}, out=tmp_path) for device in ("cpu", "auto")]
    losses = [[record["training"]["cross_entropy"] for record in run.records] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
