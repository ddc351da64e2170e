"""What results/README.md says is what the records beside it hold."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
TOOL = REPOSITORY / "tools" / "results_page.py"


def test_the_tables_of_results_come_from_the_records():
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_a_number_that_no_record_gives_is_found(tmp_path):
    """The tool reads the page and the records beside itself, so a copy of both is a repository to it."""
    for name in ("tools/results_page.py", "results/README.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    for name in ("cells", "plans"):
        (tmp_path / "results" / name).symlink_to(REPOSITORY / "results" / name)
    page = tmp_path / "results" / "README.md"
    page.write_text(page.read_text("utf-8").replace("\n<!-- end -->", "| 99.99 |\n<!-- end -->", 1), "utf-8")
    done = subprocess.run([sys.executable, "tools/results_page.py", "--check"], capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert b"not what the records give" in done.stderr
