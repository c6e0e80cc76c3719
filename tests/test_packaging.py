"""The wheel works outside the checkout, configs included."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import neuroshard

ROOT = Path(__file__).resolve().parents[1]
INSIDE = {
    "neuroshard": "neuroshard",
    "augment": "neuroshard/stages/augment",
    "pretrain": "neuroshard/stages/pretrain",
    "search": "neuroshard/stages/search",
    "conf": "neuroshard/conf",
}


ALONE = ("README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md")  # in the source distribution only
LICENSES = ("LICENSE", "NOTICE", "neuroshard/models/points/LICENSE")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory of the source distribution and of the wheel that is built from it."""
    base = tmp_path_factory.mktemp("wheel")
    for name in INSIDE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, base / "source" / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", *ALONE, "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, base / "source")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "dist", base / "source"]
    subprocess.run(command, check=True, capture_output=True)
    return base / "dist"


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    (wheel,) = built.glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def _run(unpacked, tmp_path, *command):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_contains_every_module_and_config(unpacked):
    for name, inside in INSIDE.items():
        for path in (ROOT / name).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".safetensors") and not any(
                parent.is_symlink() for parent in path.parents
            ):
                assert (unpacked / inside / path.relative_to(ROOT / name)).is_file(), path


def test_licences_are_in_both_distributions_and_the_citation_is_in_the_source(built, unpacked):
    (information,) = unpacked.glob("*.dist-info")
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {*ALONE, *LICENSES}
    for name in LICENSES:
        assert (information / "licenses" / name).read_text() == (ROOT / name).read_text()
    assert "Author: The NeuroShard developers" in (information / "METADATA").read_text()


def test_the_citation_is_of_this_version_and_of_the_three_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == neuroshard.__version__
    assert [paper["doi"].removeprefix("10.48550/arXiv.") for paper in cited["references"]] == [
        "2305.01868",
        "2208.06399",
        "2210.02023",
    ]
    assert all(paper["authors"][0]["family-names"] == "Zha" for paper in cited["references"])


def test_wheel_has_only_the_package_at_the_top(unpacked):
    assert {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")} == {"neuroshard"}


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["dim_greedy", "neuroshard"])
def test_first_search_works_with_the_wheel_outside_the_checkout(unpacked, tmp_path, searcher):
    """From Python, then as a command, in one process, because imports take most of the time."""
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
    assert any("1 of 1 task" in line for line in shown)
    plan = json.loads((tmp_path / "found" / "plans" / "task-0000.json").read_text())
    assert (plan["format"], plan["prediction"]["models"]) == ("neuroshard-plan-3", {"name": "cpu"})
