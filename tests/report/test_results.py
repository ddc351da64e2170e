"""Tables out of run folders: what stands in which cell, and what never does."""

import csv
import io
import json
import statistics

import pytest
from rich.console import Console

from fedprompt.report.published import published
from fedprompt.report.result_table import CALIBRATION
from fedprompt.report.results import result_tables
from fedprompt.report.words import in_words

M = "partition.domains_per_client"


def labels(table):
    return [row.label for row in table.rows]


def test_a_cell_is_the_mean_and_the_sample_standard_deviation_over_seeds(folder_of):
    runs = [folder_of("digits6", "head-tune", seed, average) for seed, average in enumerate((0.60, 0.62, 0.67))]
    (table,) = result_tables(runs)
    cell = table.cell("Head-Tune", "m=6", "average")
    assert cell.mean == pytest.approx(63.0)
    assert cell.std == pytest.approx(statistics.stdev([60, 62, 67]))
    assert cell.std == pytest.approx(3.605551275463989)
    assert cell.text == "63.00 ± 3.61"
    assert list(cell.by_seed) == [0, 1, 2]


def test_one_seed_has_no_spread(folder_of):
    (table,) = result_tables([folder_of("digits6", "head-tune", 0, 0.6)])
    assert table.cell("Head-Tune", "m=6", "average").std is None
    assert table.cell("Head-Tune", "m=6", "average").text == "60.00"


def test_columns_are_sorted_by_number_and_a_missing_combination_is_a_dash(folder_of):
    runs = [folder_of("digits6", "head-tune", changes={M: m}) for m in (6, 2)]
    runs.append(folder_of("digits6", "fedvpt", changes={M: 2}))
    (table,) = result_tables(runs)
    assert table.settings == ["m=2", "m=6"]
    assert table.cell("FedVPT", "m=6", "average") is None
    assert table.to_markdown().splitlines()[5] == "| FedVPT | **50.00** | **25.00** | - | - |"
    assert '<td class="missing">-</td>' in table.to_html()


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({M: 3}, "m=3"),
        ({"partition.kind": "shards", "partition.classes_per_client": 10}, "s=10"),
        ({"partition.kind": "sgpt_uniform", "partition.classes_per_client": 10}, "s=10 (uniform)"),
        ({"partition.kind": "dirichlet", "partition.alpha": 0.5}, "alpha=0.5"),
        ({"partition.kind": "iid"}, "iid"),
    ],
)
def test_the_column_is_how_images_were_dealt_out(folder_of, changes, column):
    (table,) = result_tables([folder_of("digits6", "head-tune", changes=changes)])
    assert table.settings == [column]


def test_runs_of_two_number_formats_in_one_table_are_named(folder_of):
    runs = [folder_of("digits6", method, seed) for method in ("head-tune", "fedvpt") for seed in (0, 1)]
    for run, name in zip(runs, ("bfloat16", "bfloat16", "bfloat16", "float32"), strict=True):
        (run.folder / "about.json").write_text(json.dumps({"backbone": "0" * 64, "precision": name}))
    (table,) = result_tables(runs)
    (note,) = [note for note in table.notes if "Number formats" in note]
    assert "(Head-Tune: bfloat16; FedVPT: bfloat16 and float32)" in note
    (table,) = result_tables(runs[2:])
    assert any("(FedVPT: bfloat16 and float32)" in note for note in table.notes)
    (table,) = result_tables(runs[:3])
    assert not any("Number formats" in note for note in table.notes)


def test_rows_that_each_change_one_thing_are_named_by_it(folder_of):
    own = "methods.pfedbayespt."
    changes = [{own + "length": 0}, {}, {own + "kl_weight": 0.0}, {own + "noise": False}]
    (table,) = result_tables([folder_of("digits6", "pfedbayespt", changes=change) for change in changes])
    names = ["pFedBayesPT (length=0)", "pFedBayesPT", "pFedBayesPT (kl_weight=0.0)", "pFedBayesPT (noise=False)"]
    assert [row.label for row in table.rows] == names
    assert "Where not said otherwise, pFedBayesPT has length=10, noise=True, kl_weight=0.01." in table.notes

    grid = [{own + "length": length, own + "kl_weight": weight} for length in (1, 2) for weight in (0.5, 1.0)]
    (table,) = result_tables([folder_of("digits6", "pfedbayespt", changes=change) for change in grid])
    assert table.rows[0].label == "pFedBayesPT (length=1, kl_weight=0.5)"  # there is no row in the middle
    assert not any("otherwise" in note for note in table.notes)


def test_the_best_of_a_column_is_marked_and_so_is_what_prints_the_same(folder_of):
    runs = [
        folder_of("digits6", "head-tune", 0, average=0.60001),
        folder_of("digits6", "fedvpt", 0, average=0.60004, nll=0.9),
        folder_of("digits6", "fedvpt-d", 0, average=0.59),
    ]
    (table,) = result_tables(runs)
    assert [row.cells[0].best for row in table.rows] == [True, True, False]
    (calibration,) = result_tables(runs, CALIBRATION)
    assert [row.cells[0].best for row in calibration.rows] == [False, True, False]  # lower is better


def test_one_row_alone_is_not_the_best_of_anything(folder_of):
    (table,) = result_tables([folder_of("digits6", "head-tune")])
    assert not table.rows[0].cells[0].best


def test_the_papers_figure_and_the_difference_stand_beside_ours(folder_of):
    (table,) = result_tables([folder_of("domainnet10", "fedvpt-d", average=0.85, changes={M: 6})])
    cell = table.cell("FedVPT-D", "m=6", "average")
    assert cell.paper == 88.31
    assert cell.difference == pytest.approx(-3.31)
    assert cell.paper_text == "paper 88.31 (\N{MINUS SIGN}3.31)"
    assert any("ViT-B/16" in note for note in table.notes)


@pytest.mark.parametrize(
    ("data", "column", "method", "metric", "new", "figure"),
    [
        ("domainnet10", "m=1", "pFedBayesPT", "worst_local", False, 68.85),
        ("cifar100", "s=50", "pFedBayesPT-G", "average", False, 81.65),
        ("cifar100", "s=50", "pFedBayesPT-G", "worst_local", False, None),
        ("cifar100", "s=10", "SGPT", "average", True, 95.12),
        ("cifar100", "s=10", "SGPT", "worst_local", True, None),
        ("cifar100", "s=10 (uniform)", "SGPT", "average", False, None),
        ("pacs", "m=2", "SGPT", "average", False, None),
    ],
)
def test_published_figures_are_those_of_the_paper(data, column, method, metric, new, figure):
    assert published(data, column, method, metric, new_clients=new) == figure


def test_variants_of_a_method_are_rows_named_by_what_differs_and_the_better_one_has_the_papers_figure(folder_of):
    key = "methods.fedvpt-d.learning_rate"
    runs = [
        folder_of("domainnet10", "head-tune", changes={M: 6}),
        folder_of("domainnet10", "fedvpt-d", average=0.5, worst_local=0.4, changes={M: 6, key: 0.1}),
        folder_of("domainnet10", "fedvpt-d", average=0.6, worst_local=0.3, changes={M: 6, key: 0.2}),
    ]
    (table,) = result_tables(runs)
    worse, better = "FedVPT-D (learning_rate=0.1)", "FedVPT-D (learning_rate=0.2)"
    assert labels(table) == ["Head-Tune", worse, better]
    for metric in ("average", "worst_local"):
        assert table.cell(worse, "m=6", metric).paper is None
        assert table.cell(better, "m=6", metric).paper is not None


def test_a_setting_that_is_odd_in_one_row_is_named_there_alone(folder_of):
    runs = [folder_of("digits6", method) for method in ("head-tune", "fedvpt", "fedvpt-d")]
    runs.append(folder_of("digits6", "pfedbayespt", changes={"training.rounds": 99}))
    (table,) = result_tables(runs)
    assert labels(table) == ["Head-Tune", "FedVPT", "FedVPT-D", "pFedBayesPT (rounds=99)"]


def test_a_setting_that_changes_with_the_column_is_a_note_and_no_row(folder_of):
    runs = [
        folder_of("digits6", method, changes={M: m, "training.rounds": 10 * m})
        for m in (2, 1)
        for method in ("head-tune", "fedvpt")
    ]
    (table,) = result_tables(runs)
    assert labels(table) == ["Head-Tune", "FedVPT"]
    assert "training.rounds changes with the column: 10 (m=1), 20 (m=2)." in table.notes
    (table,) = result_tables([*runs, folder_of("digits6", "fedvpt-d", changes={M: 2, "training.rounds": 10})])
    assert "FedVPT (rounds=20)" in labels(table)


def test_what_decides_no_result_makes_no_row(folder_of):
    changes = {"threads": 1, "device": "cpu", "evaluation.batch": 7, "training.checkpoint_every": 3, "name": "other"}
    runs = [folder_of("digits6", "head-tune", 0), folder_of("digits6", "head-tune", 1, changes=changes)]
    (table,) = result_tables(runs)
    assert labels(table) == ["Head-Tune"]
    assert len(table.rows[0].cells[0].by_seed) == 2


def test_validation_is_never_mixed_with_test_and_has_no_figure_of_the_paper(folder_of):
    on_validation = {"evaluation.split": "validation", "data.validation": 0.2, M: 6}
    runs = [
        folder_of("domainnet10", "head-tune", average=0.9, changes=on_validation),
        folder_of("domainnet10", "head-tune", average=0.4, changes={M: 6}),
    ]
    first, second = result_tables(runs)
    assert "VALIDATION" in first.title
    assert "VALIDATION" not in second.title
    assert first.rows[0].cells[0].values == [90.0]
    assert first.rows[0].cells[0].paper is None
    assert second.rows[0].cells[0].values == [40.0]
    assert first.name != second.name


def test_new_clients_have_a_table_of_their_own_with_their_own_average(folder_of):
    runs = [
        folder_of("domainnet10", "head-tune", average=0.5, changes={"new_clients.hold_out": "half"}),
        folder_of("domainnet10", "head-tune", average=0.5),
    ]
    new, plain = result_tables(runs)
    assert "new clients" in new.title
    assert [column.metric.key for column in new.columns] == ["average"]
    assert new.rows[0].cells[0].values == [62.5]
    assert new.rows[0].cells[0].paper == 81.0
    assert plain.rows[0].cells[0].values == [50.0]


def test_ablations_have_a_table_of_their_own_where_the_full_method_is_there(folder_of):
    keys = ("head-tune", "pfedbayespt", "pfedbayespt-g", "pfedbayespt-d")
    methods, ablation = result_tables([folder_of("digits6", key) for key in keys])
    assert labels(methods) == ["Head-Tune", "pFedBayesPT"]
    assert labels(ablation) == ["pFedBayesPT", "pFedBayesPT-G", "pFedBayesPT-D"]
    (only,) = result_tables([folder_of("digits6", key) for key in ("head-tune", "pfedbayespt-g")])
    assert labels(only) == ["Head-Tune", "pFedBayesPT-G"]


def test_a_client_that_never_trained_is_said(folder_of):
    """Its accuracy counts like any other's, and where heads are local it has none."""
    runs = [folder_of("digits6", "fedvpt", seed, changes={M: m}) for seed in (1, 0) for m in (2, 6)]
    (table,) = result_tables(runs)
    assert not any("Sampled" in note for note in table.notes)
    for run, absent in zip(runs, ([4], [4], [1, 2], []), strict=True):
        path = run.folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "never_sampled": absent}))
    (table,) = result_tables(runs)
    told = "client 1 with seed 0, client 2 with seed 0, client 4 with seed 1"
    assert f"Sampled in no round, so judged as it began: {told}." in table.notes


def test_different_seeds_in_a_column_are_said(folder_of):
    runs = [folder_of("digits6", "head-tune", seed) for seed in (0, 1)] + [folder_of("digits6", "fedvpt", 0)]
    (table,) = result_tables(runs)
    assert "Seeds differ between the rows of m=6 (Head-Tune: seeds 0, 1; FedVPT: seed 0)." in table.notes
    more = [folder_of("digits6", method, seed) for method in ("fedvpt-d", "pfedpg") for seed in (0, 1)]
    (table,) = result_tables([*more, *runs])
    assert "Seeds differ between the rows of m=6 (FedVPT: seed 0; the other rows: seeds 0, 1)." in table.notes
    (table,) = result_tables([*runs[1:2], folder_of("digits6", "fedvpt", 1)])
    assert not any("Seeds differ" in note for note in table.notes)


def test_a_run_that_is_there_twice_counts_once_and_it_is_said(folder_of):
    one = folder_of("digits6", "head-tune", 0, 0.5)
    again = folder_of("digits6", "head-tune", 0, 0.7)
    (table,) = result_tables([one, one, again])
    assert table.rows[0].cells[0].values == [50.0]
    assert any(again.folder.name in note for note in table.notes)


def test_an_unfinished_run_stands_apart_and_is_in_no_contest(folder_of):
    stopped = folder_of("domainnet10", "fedvpt", 0, average=0.9)
    (stopped.folder / "summary.json").unlink()
    (table,) = result_tables([folder_of("domainnet10", "head-tune"), folder_of("domainnet10", "fedvpt", 1), stopped])
    assert labels(table) == ["Head-Tune", "FedVPT", "FedVPT (1 of 100 rounds)"]
    assert table.cell("FedVPT", "m=1", "average").values == [50.0]
    assert not table.rows[2].cells[0].best
    assert table.rows[1].cells[0].paper is not None
    assert table.rows[2].cells[0].paper is None
    assert any(f"{stopped.folder.name} is unfinished (1 of 100 rounds)" in note for note in table.notes)


def test_a_run_stopped_before_its_first_evaluation_is_a_note(folder_of):
    stopped = folder_of("digits6", "fedvpt")
    for name in ("summary.json", "metrics.jsonl"):
        (stopped.folder / name).unlink()
    (table,) = result_tables([stopped])
    assert table.rows == ()
    assert "it has no figures yet" in table.notes[0]
    assert table.to_html()
    assert table.to_markdown()


def test_all_forms_hold_the_same_figures(folder_of):
    runs = [folder_of("domainnet10", "head-tune", seed, average) for seed, average in enumerate((0.123, 0.2))]
    (table,) = result_tables(runs)
    cell = table.rows[0].cells[0]
    (first, _) = csv.DictReader(io.StringIO(table.to_csv()))
    assert float(first["mean"]) == cell.mean == table.to_json()["cells"][0]["mean"]
    assert (first["row"], first["setting"], first["metric"], first["seeds"]) == ("Head-Tune", "m=1", "average", "2")
    assert json.loads(json.dumps(table.to_json())) == table.to_json()
    console = Console(width=200, file=io.StringIO())
    console.print(table.rich())
    for form in (table.to_markdown(), table.to_html(), console.file.getvalue()):
        assert cell.text in form
        assert cell.paper_text in form


def test_a_figure_that_diverged_is_shown_and_wins_nothing(folder_of):
    runs = [
        folder_of("digits6", "head-tune", nll=float("nan")),
        folder_of("digits6", "fedvpt"),
        folder_of("digits6", "fedvpt-d", nll=2.0),
    ]
    (table,) = result_tables(runs, CALIBRATION)
    assert table.rows[0].cells[0].text == "nan"
    assert [row.cells[0].best for row in table.rows] == [False, True, False]
    assert json.loads(json.dumps(table.to_json(), allow_nan=False))["cells"][0]["mean"] is None
    assert "FedVPT has the lowest NLL" in in_words(table)[0]


def test_words_say_when_a_lead_is_within_the_spread(folder_of):
    def sentences(gap):
        figures = {"head-tune": (0.50, 0.54), "fedvpt": (0.50 + gap, 0.54 + gap)}
        runs = [folder_of("digits6", m, s, a, 0.1) for m, v in figures.items() for s, a in enumerate(v)]
        return in_words(result_tables(runs)[0])

    assert "FedVPT has the highest Average" in sentences(0.01)[0]
    assert "within the spread over seeds: no clear winner" in sentences(0.01)[0]
    assert "larger than the spread" in sentences(0.05)[0]
    assert "share the highest Worst Local" in sentences(0.05)[1]


def test_many_settings_are_summed_up_in_one_sentence(folder_of):
    runs = [
        folder_of("digits6", method, seed, average + seed / 100, 0.1 * average, changes={M: m})
        for m in (1, 2, 3)
        for seed in (0, 1)
        for method, average in (("head-tune", 0.5), ("fedvpt", 0.9 if m > 1 else 0.501))
    ]
    first, _ = in_words(result_tables(runs)[0])
    assert first == (
        "highest Average of 3 settings: FedVPT in 3; ahead of the next by more than the spread over seeds in 2 of 3."
    )
