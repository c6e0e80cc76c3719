"""The core imports no stage, stages import the core only, and the fixed layout stands."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("augment", "pretrain", "search")


def _imports(path):
    """Names of all modules that a file imports at run time, imports under TYPE_CHECKING left out."""
    tree = ast.parse(path.read_text())
    checking = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _stages_imported(path):
    return {
        stage for name in _imports(path) for stage in STAGES if f"{name}.".startswith(f"neuroshard.stages.{stage}.")
    }


def _files(directory):
    return [path for path in (ROOT / directory).rglob("*.py") if not any(p.is_symlink() for p in path.parents)]


@pytest.mark.parametrize("path", _files("neuroshard"), ids=str)
def test_core_imports_no_stage(path):
    assert _stages_imported(path) == set()


@pytest.mark.parametrize("stage", STAGES)
def test_stages_import_the_core_only(stage):
    files = _files(stage)
    assert files
    for path in files:
        assert _stages_imported(path) <= {stage}, path


@pytest.mark.parametrize("name", [*(f"stages/{stage}" for stage in STAGES), "conf"])
def test_stages_are_reached_through_committed_links(name):
    link = ROOT / "neuroshard" / name
    assert link.is_symlink()
    assert (link.parent / link.readlink()).resolve() == ROOT / link.name


def test_importing_imports_nothing_heavy():
    heavy = ("torch", "fbgemm_gpu", "matplotlib", "pandas")
    code = f"import sys, neuroshard; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
