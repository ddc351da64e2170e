"""The page and the files beside it: self-contained, harmless, the same for the same runs, never over another file."""

import json
import math
import re
import shutil
import sys
from html.parser import HTMLParser

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import fedprompt
from fedprompt import cli
from fedprompt.config import load_config, parse_assignments
from fedprompt.errors import UserError
from fedprompt.report import provenance
from fedprompt.report.gallery import look
from fedprompt.report.page import describe, page
from fedprompt.report.results import Heading
from fedprompt.report.sources import Part, all_runs, collect
from fedprompt.report.table_picture import table_picture
from fedprompt.report.writing import write_report
from fedprompt.runs import Run, fingerprint, load_run
from fedprompt.studies import load_study, run_study

STUDY = """\
title = "A little study"
rows = ["head-tune"]
seeds = [0]
on.little = [2]
setup = {{key = "partition.domains_per_client", symbol = "m", tune_at = 2, validation = 0.3, cpu.preset = "{preset}"}}
"""
HOSTILE = '<script>alert("1")</script>&'


@pytest.fixture(scope="module")
def runs(tiny_toml, tmp_path_factory):
    """Two methods, two seeds; not to be written to."""
    out = tmp_path_factory.mktemp("compared")
    return [
        fedprompt.run(tiny_toml, method=method, seed=seed, out=out)
        for method in ("head-tune", "pfedbayespt")
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def written(runs):
    return page(describe([Part(runs)], look(runs, 0), "fedprompt report RUNS"))


class Reader(HTMLParser):
    """Elements with their attributes, and which were left open."""

    EMPTY = ("meta", "img", "br", "input", "path", "rect", "circle")

    def __init__(self):
        super().__init__()
        self.found, self.stack = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert tag in self.EMPTY or self.stack.pop() == tag


def read(text: str) -> list[tuple[str, dict[str, str]]]:
    reader = Reader()
    reader.feed(text)
    assert reader.stack == []
    return reader.found


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_the_page_needs_nothing_else(written):
    elements = read(written)
    addresses = [attrs[name] for _, attrs in elements for name in ("src", "href", "srcset", "data") if attrs.get(name)]
    assert addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?://|@import|url\(", written)
    policy = next(attrs["content"] for tag, attrs in elements if "Content-Security-Policy" in attrs.values())
    assert policy.startswith("default-src 'none'")


def test_the_page_can_be_used_without_eyes(written):
    elements = read(written)
    assert {"header", "main", "nav", "footer", "h1"} <= {tag for tag, _ in elements}
    assert all(attrs.get("alt") for tag, attrs in elements if tag == "img")
    assert all(attrs.get("scope") for tag, attrs in elements if tag == "th")
    pictures = [attrs for tag, attrs in elements if tag == "svg"]
    assert pictures
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs in pictures)
    links = {attrs["href"][1:] for tag, attrs in elements if tag == "a"}
    assert links <= {attrs.get("id") for _, attrs in elements}


def test_the_figures_on_the_page_are_those_of_the_summaries(runs, written):
    for method in ("head-tune", "pfedbayespt"):
        for key in ("average", "worst_local"):
            values = [100 * run.summary["final"][key] for run in runs if run.config.method == method]
            mean, gap = sum(values) / 2, abs(values[0] - values[1])
            assert f"{mean:.2f} ± {gap / 2**0.5:.2f}" in written


def test_every_section_is_there_with_its_pictures(written):
    for section in (
        "summary",
        "results",
        "curves",
        "clients",
        "calibration",
        "gallery",
        "partition",
        "settings",
        "again",
    ):
        assert f'<section id="{section}"' in written
    assert "Most certain" in written
    assert "Least certain" in written
    assert written.count('class="card"') == 8
    draws = 3  # methods.pfedbayespt.samples of the tiny settings
    assert written.count('class="draw"') == 8 * 3 * draws  # of three classes
    assert len(written) < 3_000_000


def measured(folder, accuracy=0.5):
    """Figures as evaluation.samples writes them: accuracy rises by a point with each draw."""
    rows = [
        {"samples": v, "average": accuracy + v / 100, "worst_local": 0.25, "nll": 1 / v, "brier": 0.5 / v}
        | {"calibration_error": 0.1}
        for v in range(1, 11)
    ]
    (folder / "samples.json").write_text(json.dumps({"round": 3, "rows": rows}))


def test_figures_against_draws_are_shown_where_they_were_measured(runs, tmp_path):
    folder = shutil.copytree(runs[2].folder, tmp_path / "measured")
    assert "Draws at prediction" not in page(describe([Part([Run(folder)])], "", ""))
    measured(folder)
    report = describe([Part([Run(folder), runs[3]])], "", "")
    shown = page(report)
    assert "Draws at prediction" in shown
    assert "Average, % over draws V; at the end: pFedBayesPT, domains images m=1 60.00" in shown
    assert "After round 3; the first V of 10 prompt draws, averaged." in shown
    assert [len(table.rows) for table in report.draws] == [1] * 5  # nothing was measured in the other run


def test_draws_of_a_run_that_two_tables_have_are_shown_once(folder_of):
    runs = [folder_of("digits6", method) for method in ("head-tune", "pfedbayespt", "pfedbayespt-d")]
    measured(runs[1].folder)
    report = describe([Part(runs)], "", "")
    assert len(report.tables) == 2
    assert page(report).count("<title>Average, % over draws V") == 1


def test_draws_of_variants_and_settings_are_rows_of_their_own(folder_of):
    changes = [{}, {"methods.pfedbayespt.kl_weight": 0.5}, {"partition.domains_per_client": 2}]
    runs = [folder_of("digits6", "pfedbayespt", changes=change) for change in changes]
    for number, run in enumerate(runs):
        measured(run.folder, accuracy=number / 10)
    average = describe([Part(runs)], "", "").draws[0]
    assert {row.label: round(row.cells[0].mean) for row in average.rows} == {
        "pFedBayesPT (kl_weight=0.01), digits6 m=2": 21,
        "pFedBayesPT (kl_weight=0.01), digits6 m=6": 1,
        "pFedBayesPT (kl_weight=0.5), digits6 m=6": 11,
    }


def test_each_study_has_tables_of_its_own_under_its_title(folder_of):
    """The same run may stand in two of them; rows of one study do not get into the table of the other."""
    full, other = folder_of("digits6", "pfedbayespt"), folder_of("digits6", "fedvpt-d")
    part = folder_of("digits6", "pfedbayespt", changes={"methods.pfedbayespt.length": 0})
    measured(full.folder)
    report = describe(
        [
            Part([full, other], Heading("Methods on digits6, all of them", "digits6")),
            Part([full, part], Heading("What it comes from", "parts")),
            Part([full], Heading("Draws", "samples"), draws=True),
        ],
        "",
        "",
    )
    methods, parts = report.tables
    assert [methods.title, parts.title] == ["Methods on digits6, all of them", "What it comes from: digits6"]
    assert [methods.name, parts.name] == ["digits6", "digits6-parts"]
    assert [row.label for row in methods.rows] == ["FedVPT-D", "pFedBayesPT"]
    assert [row.label for row in parts.rows] == ["pFedBayesPT (length=10)", "pFedBayesPT (length=0)"]
    assert [table.title for table in report.calibration][1] == "What it comes from: digits6, calibration"
    assert len(report.runs) == 3
    assert len(report.draws) == 5
    alone = describe([Part([full], Heading("Draws", "samples"), draws=True)], "", "")
    assert alone.tables == []
    assert '<section id="samples"' in page(alone)


def test_the_same_runs_give_the_same_bytes(runs, written):
    assert page(describe([Part(runs)], look(runs, 0), "fedprompt report RUNS")) == written


def test_names_from_outside_are_text_and_nothing_else(tiny_toml, tiny_weights, tmp_path):
    """Class, domain and folder names are whatever somebody called a folder."""
    images = tmp_path / "images"
    source = tiny_weights.parent / "images"
    for domain in ("day", "night"):
        for old, new in (("dark", "<script>alert(1)<"), ("grey", "\"'><img src=x onerror=alert(2)>")):
            new = new.replace("/", "") if sys.platform != "win32" else old
            shutil.copytree(source / domain / old, images / f"{domain}<b>" / new)
    out = tmp_path / "<i>runs"
    run = fedprompt.run(tiny_toml, out=out, changes={"data.root": str(images), "name": "<u>x"})
    shown = page(describe([Part([run])], look([run], 0), f"fedprompt report '{HOSTILE}'"))
    elements = read(shown)
    assert "&lt;script&gt;" in shown
    assert not {tag for tag, _ in elements} & {"script", "i", "b", "u"}
    assert not [attrs for _, attrs in elements if any(name.startswith("on") for name in attrs)]
    assert "<script" not in describe([Part([run])], "", HOSTILE).to_markdown().replace(f"    {HOSTILE}", "")


def test_an_unfinished_run_is_shown_as_far_as_it_got(runs, tmp_path):
    folder = shutil.copytree(runs[0].folder, tmp_path / "stopped")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    shown = page(describe([Part([Run(folder), *runs[2:]])], "", ""))
    assert "Head-Tune (2 of 3 rounds)" in shown
    assert "stopped is unfinished (2 of 3 rounds)" in shown
    assert "3 runs, 2 of them finished" in shown


def test_a_missing_data_set_or_backbone_leaves_out_the_images_and_says_so(runs, tmp_path):
    folder = shutil.copytree(runs[2].folder, tmp_path / "moved")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub(r'root = ".*"', f'root = "{(tmp_path / "gone").as_posix()}"', text))
    told = look([Run(folder)], 0)
    assert isinstance(told, str)
    assert "does not exist" in told
    shown = page(describe([Part([Run(folder)])], told, ""))
    assert "No images are shown." in shown
    assert "<table" in shown


def test_of_all_runs_the_gallery_takes_the_main_method(runs):
    assert look(runs, 1).title.startswith("pFedBayesPT")
    assert look(runs, 1).client == 1
    assert look(runs[:1], 0).draws == 1


def test_the_surest_come_first_and_no_image_is_shown_twice(runs):
    shown = look(runs, 0)
    sure = [max(mean for _, mean, _, _ in image.classes) for image in shown.surest]
    unsure = [max(mean for _, mean, _, _ in image.classes) for image in shown.least_sure]
    assert sure == sorted(sure, reverse=True)
    assert unsure == sorted(unsure)
    assert min(sure) >= max(unsure)
    assert sum(count for _, _, count in shown.reliability) == shown.images
    for image in (*shown.surest, *shown.least_sure):
        assert image.truth in [name for name, _, _, right in image.classes if right]
        for _, mean, draws, _ in image.classes:
            assert mean == pytest.approx(sum(draws) / 3, abs=1e-6)


@pytest.mark.parametrize("changes", [{}, {"training.rounds": 2, "methods.fedvpt.learning_rate": 0.5}, {"name": "mine"}])
def test_the_command_that_is_shown_makes_the_same_run_again(folder_of, changes):
    run = folder_of("digits6", "fedvpt", 3, changes={**changes, "new_clients.hold_out": [4, 5]})
    parser = typer.main.get_command(cli.app).commands["run"]
    words = provenance.shlex.split(provenance.command(run))
    assert words[:2] == ["fedprompt", "run"]
    given = parser.make_context("run", words[2:]).params
    chosen = {key: given[key] for key in ("method", "seed") if given[key] is not None}
    again = load_config(given["preset"], parse_assignments(given["change"] or []) | chosen)
    assert fingerprint(again) == fingerprint(run.config)


def test_the_command_lifts_a_limit_that_the_preset_has_and_the_run_has_not(folder_of):
    run = folder_of("pacs", "fedvpt-d", 0, changes={"methods.fedvpt-d.step_limit": math.inf})
    words = provenance.shlex.split(provenance.command(run))
    assert words[2] == "pacs"
    assert words[-1] == "methods.fedvpt-d.step_limit=inf"


def test_settings_that_differ_come_apart_from_those_that_do_not(runs):
    differing, common = provenance.settings(runs)
    assert set(differing) == {"method", "seed"}
    assert differing["seed"] == ["0", "1", "0", "1"]
    assert common["training.rounds"] == "3"
    assert common["methods.pfedbayespt.samples"] == "3"


def test_files_beside_the_page_have_its_name(runs, tmp_path):
    files = write_report(describe([Part(runs)], "", "again"), tmp_path / "deep" / "mine.html")
    assert sorted(path.name for path in files) == sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert [path.name for path in files[:2]] == ["mine.html", "mine.md"]
    name = "domains-images"
    assert {f"mine-{name}.csv", f"mine-{name}.png", f"mine-{name}-calibration.csv"} <= {path.name for path in files}
    assert "| Head-Tune |" in files[1].read_text("utf-8")
    with Image.open(next(path for path in files if path.suffix == ".png")) as picture:
        assert picture.width > 300


def test_nothing_is_written_over_unless_asked_for(runs, tmp_path):
    report = describe([Part(runs[:1])], "", "")
    first = write_report(report, tmp_path / "report.html")
    for path in first:
        path.write_text("precious")
    second = write_report(report, tmp_path / "report.html")
    assert second[0].name == "report-2.html"
    assert not set(first) & set(second)
    assert all(path.read_text() == "precious" for path in first)
    assert write_report(report, tmp_path / "report.html", force=True) == first
    assert first[0].read_text("utf-8").startswith("<!doctype html>")


def test_one_file_of_the_report_that_exists_moves_them_all(runs, tmp_path):
    (tmp_path / "report.md").write_text("precious")
    files = write_report(describe([Part(runs[:1])], "", ""), tmp_path / "report.html")
    assert all(path.name.startswith("report-2") for path in files)


def test_a_picture_of_a_table_with_the_papers_figures(folder_of):
    from fedprompt.report.results import result_tables

    runs = [folder_of("domainnet10", m, s) for m in ("head-tune", "fedvpt") for s in (0, 1)]
    (table,) = result_tables(runs)
    texts = {text.get_text() for text in table_picture(table).axes[0].texts}
    assert {"Methods on DomainNet", "Head-Tune", "50.00 ± 0.00", table.rows[0].cells[0].paper_text} <= texts


def test_the_command_takes_folders_of_runs_and_says_what_it_wrote(runs, tmp_path):
    done = invoke("report", runs[0].folder.parent, "-o", tmp_path / "r.html", "--client", 1)
    assert done.exit_code == 0, done.output
    assert "Page:" in done.output
    assert "client 1: its own model" in (tmp_path / "r.html").read_text("utf-8")
    again = invoke("report", runs[0].folder, runs[2].folder, "-o", tmp_path / "r.html", "--no-gallery", "--json")
    told = json.loads(again.stdout)
    assert told["page"].endswith("r-2.html")
    assert len(told["tables"]) == 2
    assert {cell["row"] for cell in told["tables"][0]["cells"]} == {"Head-Tune", "pFedBayesPT"}
    text = (tmp_path / "r-2.html").read_text("utf-8")
    assert 'class="card"' not in text
    assert "--no-gallery" in text


def test_runs_given_in_two_ways_count_once(runs):
    assert len(all_runs(collect([str(runs[0].folder), str(runs[0].folder.parent)]))) == 4


def test_a_study_is_taken_as_far_as_it_is_finished(tiny_toml, tmp_path):
    definition = tmp_path / "little.toml"
    definition.write_text(STUDY.format(preset=tiny_toml.as_posix()))
    run_study(load_study(definition), out=tmp_path / "store")
    (found,) = collect([str(definition)], tmp_path / "store")
    assert [run.config.method for run in found.runs] == ["head-tune"]
    (below,) = collect([str(tmp_path / "store")])
    assert {run.folder for run in below.runs} == {run.folder for run in found.runs}
    (table,) = describe([found], "", "").tables
    assert table.settings == ["m=2"]
    assert "source" in provenance.code(found.runs[0])  # which code made it, as the study wrote it down


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["EMPTY"], "neither it nor a folder below it"),
        (["digits7"], "no study of that name"),
        (["ablation"], "has no finished run in 'studies'"),
        (["RUN", "-o", "r.pdf"], "must end in .html"),
        (["RUN", "--client", "9"], "clients are 0 to 3"),
        (["BROKEN"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(runs, tmp_path, monkeypatch, arguments, sentence):
    work = tmp_path / "work"
    (tmp_path / "empty").mkdir()
    shutil.copytree(runs[0].folder, tmp_path / "broken")
    (tmp_path / "broken" / "config.toml").write_text("rounds = = 3")
    work.mkdir()
    monkeypatch.chdir(work)
    places = {"EMPTY": tmp_path / "empty", "RUN": runs[0].folder, "BROKEN": tmp_path / "broken"}
    done = invoke("report", *(places.get(argument, argument) for argument in arguments))
    assert isinstance(done.exception, UserError)
    assert sentence in str(done.exception)
    assert list(work.iterdir()) == []


def test_a_run_that_is_loaded_again_tells_the_same(runs):
    assert (
        describe([Part([load_run(run.folder) for run in runs])], "", "").tables == describe([Part(runs)], "", "").tables
    )
