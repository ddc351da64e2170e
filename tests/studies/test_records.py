"""Records are what a finished cell measured, small enough to commit, and the same tables come out of them."""

import json

import pytest

from fedprompt.data.registry import open_dataset
from fedprompt.errors import UserError
from fedprompt.report.results import result_tables
from fedprompt.runs import load_run
from fedprompt.studies.plans import find_plan, save_plan
from fedprompt.studies.records import keep_records
from fedprompt.studies.store import Store, data_digest
from fedprompt.studies.work import do_cell


@pytest.fixture
def store(little, tmp_path):
    """Two of four cells are done."""
    store, cells = Store(tmp_path / "store"), little.cells()
    digest = data_digest(open_dataset(cells[0].config.data))
    for cell in cells[:2]:
        assert do_cell(store, cell, digest).kind == "done"
    store.folder(cells[2]).mkdir(parents=True)
    return store


def test_records_give_the_same_tables_as_the_cells(store, tmp_path):
    kept = keep_records(store, tmp_path / "records")
    assert len(kept) == 2
    here = result_tables(
        [load_run(folder) for folder in sorted((store.root / "cells").glob("*seed0-*")) if any(folder.iterdir())]
    )
    there = result_tables([load_run(folder) for folder in kept])
    assert [table.to_csv() for table in there] == [table.to_csv() for table in here]


def test_records_are_a_store_of_their_own(store, little, tmp_path):
    """Wherever the weights are now, and beside the records of another store."""
    cells = little.cells()
    save_plan(store, little, cells[:2], tuned=False)
    keep_records(store, tmp_path / "records")
    save_plan(store, little, cells, tuned=False)
    keep_records(store, tmp_path / "records")
    records = Store(tmp_path / "records")
    plan = find_plan(records, little)
    assert [cell.key for cell in plan.cells] == [cell.key for cell in cells]
    assert plan.cells[0].config.data.root is None
    assert [run.summary for run in records.runs(list(plan.cells))] == [run.summary for run in store.runs(cells)]


def test_records_hold_neither_tensors_nor_paths(store, little, tmp_path):
    save_plan(store, little, little.cells(), tuned=False)
    keep_records(store, tmp_path / "records")
    files = [path for path in (tmp_path / "records").rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(files) > 10
    for file in files:
        assert file.suffix in (".json", ".jsonl", ".toml")
        assert str(tmp_path) not in file.read_text()
        assert '"/' not in file.read_text(), file


def test_images_that_could_not_be_read_are_named_without_their_folder(store, tmp_path):
    about = next((store.root / "cells").glob("*/about.json"))
    about.write_text(json.dumps(json.loads(about.read_text()) | {"unreadable": ["/home/me/scans/broken.png"]}))
    kept = {folder.name: folder for folder in keep_records(store, tmp_path / "records")}[about.parent.name]
    assert json.loads((kept / "about.json").read_text())["unreadable"] == ["broken.png"]


def test_another_result_of_the_same_cell_is_not_written_over(store, tmp_path):
    first = keep_records(store, tmp_path / "records")[0] / "summary.json"
    keep_records(store, tmp_path / "records")  # the same again is no conflict
    first.write_text("{}")
    with pytest.raises(UserError, match="another result"):
        keep_records(store, tmp_path / "records")
    assert first.read_text() == "{}"


def test_a_store_without_a_finished_cell_says_so(tmp_path):
    with pytest.raises(UserError, match="no finished cell"):
        keep_records(Store(tmp_path), tmp_path / "records")
