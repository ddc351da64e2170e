"""What the pages of results say is what the records beside it hold."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedprompt
from fedprompt.federation.simulation import Simulation
from fedprompt.randomness import torch_generator
from fedprompt.report.result_table import ACCURACY, Cell, Column, ResultTable, Row

REPOSITORY = Path(__file__).parent.parent
TOOL = REPOSITORY / "tools" / "results_page.py"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def tool():
    return module(TOOL)


def made_table(rows):
    """A table in m=1 and m=2; of each row a method and its figures by seed, in each column, alike in both metrics."""
    columns = tuple(Column(f"m={m}", metric) for m in (1, 2) for metric in ACCURACY)
    made = tuple(
        Row(method, method, tuple(one and Cell(dict(enumerate(one))) for one in cells for _ in ACCURACY))
        for method, *cells in rows
    )
    return ResultTable("Made", "made", columns, made)


def test_the_tables_of_results_come_from_the_records():
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_the_report_names_no_folder_of_the_machine_that_made_it():
    page = (REPOSITORY / "results" / "report" / "report.html").read_text("utf-8")
    assert "fedprompt run pacs " in page
    assert not re.search(r"fedprompt run (?=/|\S*[\\:])", page)


@pytest.mark.parametrize(
    ("wrong", "old", "new"),
    [("tuning.md", "\n<!-- end -->", "| 99.99 |\n<!-- end -->"), ("report/report.md", "Average", "Avarage")],
)
def test_a_number_that_no_record_gives_is_found(tmp_path, wrong, old, new):
    """The tool reads the page and the records beside itself, so a copy of both is a repository to it."""
    own = ("tuning.md", "prompt-starts.json", "report/report.md")
    for name in ("tools/results_page.py", "README.md", *(f"results/{name}" for name in own)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    for name in ("cells", "plans"):
        (tmp_path / "results" / name).symlink_to(REPOSITORY / "results" / name)
    page = tmp_path / "results" / wrong
    page.write_text(page.read_text("utf-8").replace(old, new, 1), "utf-8")
    done = subprocess.run([sys.executable, "tools/results_page.py", "--check"], capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert f"{wrong} is not what the records give" in done.stderr.decode()


def test_a_lead_is_taken_seed_by_seed(tool):
    """The seeds' own ups and downs are shared by both methods, and drop out of the error."""
    table = made_table([("ours", [70.0, 50.0, 90.0], [1.0]), ("theirs", [69.0, 51.0, 87.0], None)])
    # Gaps 1, -1, 3: mean 1, deviation 2, error 2 / sqrt(3).
    assert tool.lead_of("ours", table).splitlines()[2:] == [
        "| theirs | +1.00 ± 1.15 (2 of 3) | +1.00 ± 1.15 (2 of 3) | - | - |"
    ]
    with pytest.raises(SystemExit, match="has 0 rows of nobody"):
        tool.lead_of("nobody", table)


def test_trials_are_listed_by_their_mean_over_the_columns(tool):
    """That is what chooses; a trial that has not been done everywhere cannot win."""
    table = made_table([("a", [80.0], [60.0]), ("a", [71.0], [73.0]), ("a", [99.0], None), ("b", [10.0], [20.0])])
    listed = tool._best_first(tool._with_means(table))
    assert [row.cells[0] and row.cells[0].mean for row in listed.rows] == [72.0, 70.0, None, 15.0]
    assert [cell and cell.mean for cell in listed.rows[0].cells[-2:]] == [71.0, 73.0]


def test_with_its_own_prompt_an_image_is_classified_as_in_the_run(tiny_toml, tmp_path):
    """By the deterministic method, whose prompt is that of the whole image at test too."""
    run = fedprompt.run(tiny_toml, method="pfedbayespt-d", out=tmp_path)
    own_prompts = module(REPOSITORY / "tools" / "own_prompts.py")
    simulation = Simulation(run.config)
    found = own_prompts.by_prompt(simulation, run.state())
    evaluated = simulation.evaluate(run.state())
    own = {key: evaluated[key] for key in ("average", "worst_local")}
    assert found["prompts"]["own"] == {**own, "changed": 0.0}
    assert list(found["prompts"]) == ["own", "another", "stranger", "mean"]
    assert 0 < found["apart"] < 1


def test_another_image_is_never_the_image_itself():
    another = module(REPOSITORY / "tools" / "own_prompts.py")._another
    for count in (2, 3, 50):
        other = another(count, torch_generator(0, count))
        assert sorted(other.tolist()) == list(range(count))
        assert (other != torch.arange(count)).all()


def test_tokens_of_one_direction_count_once_however_long_they_are():
    different = module(REPOSITORY / "tools" / "prompt_starts.py").different
    basis = torch.eye(4)
    assert different(basis) == pytest.approx(4)
    assert different(basis[[0, 0, 0]] * torch.tensor([[1.0], [2.0], [30.0]])) == pytest.approx(1)
    assert different(basis[[0, 0, 1, 1]]) == pytest.approx(2)


def test_before_training_prompts_of_each_start_are_looked_at(tiny_backbone):
    backbone = tiny_backbone
    shape = backbone.vit.shape
    images = backbone.vit.embed(torch.randn(3, 3, shape.image, shape.image))
    found = module(REPOSITORY / "tools" / "prompt_starts.py").by_start(backbone, images)
    assert list(found) == ["uniform", "blank", "tokens"]
    assert all(len(one["rms"]) == len(one["different"]) == shape.depth for one in found.values())
    alike, apart = found["blank"]["different"], found["uniform"]["different"]
    assert all(few < many for few, many in zip(alike, apart, strict=True))
