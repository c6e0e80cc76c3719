"""The wheel works outside the checkout, configs included."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INSIDE = {
    "neuroshard": "neuroshard",
    "augment": "neuroshard/stages/augment",
    "pretrain": "neuroshard/stages/pretrain",
    "search": "neuroshard/stages/search",
    "conf": "neuroshard/conf",
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel, built from the source distribution and unpacked."""
    base = tmp_path_factory.mktemp("wheel")
    for name in INSIDE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, base / "source" / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, base / "source")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "dist", base / "source"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (base / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(base / "site")
    return base / "site"


def _run(unpacked, tmp_path, *command):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_and_config_is_in_it(unpacked):
    for name, inside in INSIDE.items():
        for path in (ROOT / name).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".safetensors") and not any(
                parent.is_symlink() for parent in path.parents
            ):
                assert (unpacked / inside / path.relative_to(ROOT / name)).is_file(), path


def test_only_the_package_is_at_its_top(unpacked):
    assert {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")} == {"neuroshard"}


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["dim_greedy", "neuroshard"])
def test_a_first_search_works_outside_the_checkout_with_the_configs_and_models_inside(unpacked, tmp_path, searcher):
    """From Python, then as a command, in one process: importing takes longest."""
    given = ["search", "tables=criteo", "topology.memory_bytes=34359738368", f"searcher={searcher}", "out=found"]
    code = (
        "import neuroshard as ns; print(ns.__file__)\n"
        "from neuroshard.app.cli import main\n"
        "from neuroshard.testing import linear_models, toy_task\n"
        "print(ns.search(toy_task(), ns.Simulator(linear_models()), searcher='dim_greedy').fits)\n"
        f"main(['search', '--help']); main({given})\n"
    )
    where, fits, *shown = _run(unpacked, tmp_path, sys.executable, "-c", code).splitlines()
    assert Path(where).is_relative_to(unpacked)
    assert fits == "True"
    assert "size_lookup_greedy" in "\n".join(shown)
    assert any("solved 1 of 1 tasks" in line for line in shown)
    plan = json.loads((tmp_path / "found" / "plans" / "task-0000.json").read_text())
    assert (plan["format"], plan["prediction"]["models"]) == ("neuroshard-plan-3", {"name": "cpu"})
