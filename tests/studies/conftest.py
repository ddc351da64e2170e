"""A study of seconds over the tiny federation."""

from __future__ import annotations

import pytest

from fedprompt.studies import load_study

LITTLE = """\
title = "A little study"
rows = ["head-tune", "pfedbayespt"]
seeds = [0]

[on]
little = [1, 2]

[setup]
key = "partition.domains_per_client"
symbol = "m"
tune_at = 2
validation = 0.3

[setup.cpu]
preset = "{preset}"
"""


@pytest.fixture(scope="session")
def little_toml(tiny_toml, tmp_path_factory):
    """The file of a study with two methods, two columns and one seed."""
    path = tmp_path_factory.mktemp("study") / "little.toml"
    path.write_text(LITTLE.format(preset=tiny_toml.as_posix()))
    return path


@pytest.fixture
def little(little_toml):
    return load_study(little_toml)
