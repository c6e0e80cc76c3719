"""The core imports no stage, stages import the core only, and the fixed layout stands."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("augment", "pretrain", "search")
ROOMS = ("space", "kernels", "placement", "local", "rl", "methods", "results", "report", "runs")


def _imports(path):
    """Names of all modules that a file imports at run time, imports under TYPE_CHECKING left out."""
    return (module for module, _ in _imported_names(path))


def _imported_names(path):
    """(module, name) of everything that a file imports at run time, wherever it does; None for a whole module."""
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
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


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


def _module(path):
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "neuroshard" else ("neuroshard", "stages", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph():
    """Which modules each module imports; a package is its `__init__.py`."""
    files = {_module(path): path for folder in ("neuroshard", *STAGES) for path in _files(folder)}
    graph = {}
    for module, path in files.items():
        named = (
            (base if name is None or f"{base}.{name}" not in files else f"{base}.{name}")
            for base, name in _imported_names(path)
        )
        graph[module] = {other for other in named if other in files}
    return graph


def _cycle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_import_goes_in_a_circle():
    graph = _graph()
    assert {"neuroshard.models", "neuroshard.plans.plan"} <= graph["neuroshard.models.simulator"]
    assert "neuroshard.stages.search.space.items" in graph["neuroshard.stages.search.space.sizes"]
    assert _cycle(graph) == []
    graph["neuroshard.plans.plan"].add("neuroshard.models.simulator")
    assert _cycle(graph) != []


def test_every_room_of_search_imports_rooms_above_it_only():
    for path in _files("search"):
        room = path.relative_to(ROOT / "search").parts[0]
        for name in _imports(path):
            if name.startswith("neuroshard.stages.search."):
                assert ROOMS.index(name.split(".")[3]) <= ROOMS.index(room), f"{path} imports {name}"
