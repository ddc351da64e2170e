"""The core works without the extra fedprompt[flower]; what needs it says so in one sentence."""

import subprocess
import sys

import pytest

WITHOUT = (
    "import sys; sys.modules['flwr'] = None; sys.argv = ['fedprompt', *{}]; from fedprompt.cli import main; main()"
)


def without_flower(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(list(arguments))], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("federation", "up"),
        ("federation", "serve", "FOLDER"),
        ("client", "adapt", "FOLDER"),
        ("client", "start", "FOLDER"),
    ],
)
def test_a_command_that_needs_flower_says_how_to_get_it(arguments):
    done = without_flower(*arguments)
    assert done.returncode == 2
    assert "pip install 'fedprompt[flower]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_commands_do_without():
    done = without_flower("presets")
    assert done.returncode == 0, done.stderr
    assert "digits6" in done.stdout


def test_a_nodes_model_is_used_without(tmp_path):
    done = without_flower("client", "predict", str(tmp_path), "picture.png")
    assert done.returncode == 2
    assert "There is no node" in done.stderr
