"""The built wheel is complete: it installs into a fresh environment and runs from any folder."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SMALL = {
    "training.rounds": 1,
    "data.train_per_domain": 12,
    "data.test_per_domain": 12,
    "threads": 1,
    "partition.domains_per_client": 1,
}


def call(*command, cwd, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built with the backend at hand, or with the one that pip fetches."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(REPOSITORY), "--no-deps", "--quiet", "-w", str(folder)]
    if importlib.util.find_spec("hatchling"):
        command.append("--no-build-isolation")
    done = call(*command, cwd=folder)
    if "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("the build backend hatchling is neither installed nor to be had from the package index")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_carries_presets_the_mini_vit_and_its_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    packaged = REPOSITORY / "src"
    wanted = [path for path in packaged.glob("fedprompt/**/*") if path.suffix in (".py", ".toml", ".csv", ".css")]
    assert len(wanted) > 30
    for path in (*wanted, packaged / "fedprompt/py.typed"):
        assert path.relative_to(packaged).as_posix() in found
    assert {f"fedprompt/backbone/mini/mini_vit.{ending}" for ending in ("safetensors", "json")} <= found
    assert not [name for name in found if name.startswith(("tests", "docs", "tools"))]


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """The Python of a fresh environment with the wheel in it; the dependencies are lent by this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = call(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    site = asked.stdout.strip()
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)]
    done = call(*install, cwd=folder)
    assert done.returncode == 0, done.stderr
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # A plain path line comes after the fresh site-packages, so the wheel goes before the package under development.
    with open(os.path.join(site, "lent.pth"), "w", encoding="utf-8") as file:
        file.write("\n".join(sorted(lent)) + "\n")
    return python


def test_the_package_is_that_of_the_wheel(fresh, tmp_path):
    done = call(str(fresh), "-c", "import fedprompt; print(fedprompt.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(fresh.parent.parent))


def test_the_embedded_preset_runs_from_any_folder(fresh, tmp_path):
    command = fresh.parent / ("fedprompt.exe" if os.name == "nt" else "fedprompt")
    changes = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    done = call(str(command), "run", "--json", "--method", "pfedbayespt", *changes, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == os.path.join("runs", "digits6-pfedbayespt-seed0")
    assert (tmp_path / "runs" / "digits6-pfedbayespt-seed0" / "curves.png").is_file()
