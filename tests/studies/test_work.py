"""A cell is done once, resumed where it stopped, and set aside when it is damaged."""

import json
import shutil

import pytest

from fedprompt import runs
from fedprompt.config import load_config
from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.studies import Cell
from fedprompt.studies.running import check_up_front
from fedprompt.studies.store import Store, data_digest, locked
from fedprompt.studies.work import do_cell


@pytest.fixture
def cell(tiny_toml):
    return Cell(load_config(tiny_toml, {"method": "head-tune"}))


@pytest.fixture
def digest(cell):
    return data_digest(open_dataset(cell.config.data))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"}


def test_a_finished_cell_says_what_made_it(store, cell, digest):
    assert do_cell(store, cell, digest).kind == "done"
    assert store.finished(cell)
    content = json.loads((store.folder(cell) / "cell.json").read_text())
    assert content["key"] == cell.key
    assert content["settings"] == json.loads(json.dumps(cell.config.resolved()))
    assert content["started"] < content["ended"]
    assert content["seconds"] > 0
    assert len(content["code"]["source"]) == 64
    assert {"version"} <= set(content["code"])
    assert content["machine"]["cores"]


def test_a_cell_is_the_run_that_its_settings_mean(store, cell, digest, tiny_toml, tmp_path):
    do_cell(store, cell, digest)
    run = runs.run(tiny_toml, method="head-tune", out=tmp_path)
    for name in ("metrics.jsonl", "summary.json", "checkpoint.safetensors"):
        assert (store.folder(cell) / name).read_bytes() == (run.folder / name).read_bytes()


def test_a_finished_cell_is_not_touched(store, cell, digest):
    do_cell(store, cell, digest)
    before = times(store.folder(cell))
    outcome = do_cell(store, cell, digest)
    assert (outcome.kind, outcome.seconds) == ("done", 0.0)
    assert times(store.folder(cell)) == before


def test_a_cell_stopped_after_its_summary_is_only_marked(store, cell, digest):
    do_cell(store, cell, digest)
    (store.folder(cell) / "cell.json").unlink()
    before = times(store.folder(cell))
    assert do_cell(store, cell, digest).kind == "done"
    after = times(store.folder(cell))
    assert {name for name in after if after[name] != before.get(name)} == {"cell.json", "config.toml"}


class Stopped(BaseException):
    """As if the process ended."""


def test_a_stopped_cell_goes_on_where_it_stopped(store, cell, digest):
    rounds = []

    def stop(event):
        rounds.append(event["round"])
        if event["round"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        do_cell(store, cell, digest, stop)
    assert not store.finished(cell)
    do_cell(store, cell, digest, lambda event: rounds.append(event["round"]))
    assert rounds == [1, 2, 3, 3]


def test_a_stopped_cell_goes_on_after_its_data_were_moved(store, cell, digest, tiny_weights, tmp_path):
    def stop(event):
        if event["round"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        do_cell(store, cell, digest, stop)
    images = shutil.copytree(tiny_weights.parent / "images", tmp_path / "moved")
    moved = cell.config.model_copy(update={"data": cell.config.data.model_copy(update={"root": images})})
    rounds = []
    outcome = do_cell(store, Cell(moved), digest, lambda event: rounds.append(event.get("round")))
    assert (outcome.kind, rounds) == ("done", [3])


@pytest.mark.parametrize(
    "name", ["summary.json", "cell.json", "config.toml", "checkpoint.safetensors", "metrics.jsonl"]
)
def test_a_damaged_cell_is_set_aside_and_done_anew(store, cell, digest, name):
    do_cell(store, cell, digest)
    folder = store.folder(cell)
    good = (folder / "metrics.jsonl").read_bytes()
    (folder / "cell.json").unlink() if name != "cell.json" else None
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    notes = []
    assert do_cell(store, cell, digest, lambda event: notes.append(event.get("note"))).kind == "done"
    (told,) = filter(None, notes)
    kept = store.root / "damaged" / folder.name
    assert str(kept) in told
    assert "set aside" in told
    assert len((kept / name).read_bytes()) == 20
    assert store.finished(cell)
    assert (folder / "metrics.jsonl").read_bytes() == good


def test_two_damaged_folders_of_one_cell_are_both_kept(store, cell, digest):
    for _ in range(2):
        do_cell(store, cell, digest)
        (store.folder(cell) / "summary.json").write_text("{")
    do_cell(store, cell, digest)
    assert len(list((store.root / "damaged").iterdir())) == 2


def test_a_changed_setting_makes_a_new_cell_and_keeps_the_old(store, cell, digest):
    do_cell(store, cell, digest)
    before = times(store.folder(cell))
    other = Cell(cell.config.model_copy(update={"seed": 1}))
    do_cell(store, other, digest)
    assert store.finished(cell)
    assert store.finished(other)
    assert times(store.folder(cell)) == before


def test_a_cell_that_somebody_works_on_is_left_alone(store, cell, digest):
    with locked(store.folder(cell)) as ours:
        assert ours
        assert do_cell(store, cell, digest).kind == "busy"
    assert do_cell(store, cell, digest).kind == "done"


def test_a_cell_made_from_other_images_is_refused(store, cell, digest):
    do_cell(store, cell, "other images")
    outcome = do_cell(store, cell, digest)
    assert outcome.kind == "failed"
    assert "made from other images" in outcome.complaint
    with pytest.raises(UserError, match="made from other images"):
        check_up_front(store, [cell])


def test_a_failure_is_written_down_and_forgotten_once_it_is_mended(store, cell, digest, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "resume", fails)
        outcome = do_cell(store, cell, digest)
    assert (outcome.kind, outcome.complaint) == ("failed", "RuntimeError: out of luck")
    assert "Traceback" in (store.folder(cell) / "failure.txt").read_text()
    assert do_cell(store, cell, digest).kind == "done"
    assert not (store.folder(cell) / "failure.txt").exists()


def test_missing_data_shows_before_anything_starts(store, tiny_toml, tmp_path):
    cell = Cell(load_config(tiny_toml, {"data.root": str(tmp_path / "nowhere")}))
    with pytest.raises(UserError, match="does not exist"):
        check_up_front(store, [cell])
    assert not store.folder(cell).exists()


def test_what_is_done_stays_done_where_its_images_are_not_at_hand(store, cell, digest, tmp_path):
    do_cell(store, cell, digest)
    gone = cell.config.model_copy(update={"data": cell.config.data.model_copy(update={"root": tmp_path / "gone"})})
    assert Cell(gone).key == cell.key
    assert check_up_front(store, [Cell(gone)]) == {}
