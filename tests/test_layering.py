"""The core imports no stage, stages import the core only, no room imports one below it, and the fixed layout stands."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("augment", "pretrain", "search")
PIPELINE = ROOT / "neuroshard" / "app" / "pipeline.py"  # the stages as functions of Python: it calls them all
# Folders of the core and of the search, in order: each may import those before it, as CONTRIBUTING.md shows them.
CORE_ROOMS = (
    *("plumbing", "words", "tables", "cost", "layouts", "tasks", "plans", "bundles", "models", "searching"),
    *("torchrec", "targets", "measure", "testing", "app"),
)
SEARCH_ROOMS = (
    "published",
    "space",
    "kernels",
    "local",
    "options",
    "rl",
    "methods",
    "results",
    "report",
    "evaluate",
    "runs",
)


@cache
def _imported_names(path, for_types=False):
    """(module, name) of everything that a file imports at run time, wherever it does; None for a whole module.

    With `for_types`, also of what it imports under TYPE_CHECKING.
    """
    found, nodes = [], [ast.parse(path.read_text())]
    for node in nodes:
        if for_types or not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
    return found


def _stages_imported(path):
    names = [f"{name}." for name, _ in _imported_names(path)]
    return {stage for stage in STAGES if any(name.startswith(f"neuroshard.stages.{stage}.") for name in names)}


def _files(directory):
    return [path for path in (ROOT / directory).rglob("*.py") if not any(p.is_symlink() for p in path.parents)]


@pytest.mark.parametrize(("folder", "its_own"), [("neuroshard", set()), *((stage, {stage}) for stage in STAGES)])
def test_the_core_imports_no_stage_and_stages_no_other(folder, its_own):
    files = _files(folder)
    assert files
    for path in files:
        assert _stages_imported(path) <= (set(STAGES) if path == PIPELINE else its_own), path


@pytest.mark.parametrize("folder", ["neuroshard", *STAGES, "examples"])
def test_nothing_that_users_run_imports_tests(folder):
    files = _files(folder)
    assert files
    for path in files:
        assert not [name for name, _ in _imported_names(path) if name.split(".")[0] == "tests"], path


@pytest.mark.parametrize("name", [*(f"stages/{stage}" for stage in STAGES), "conf"])
def test_stages_are_reached_through_committed_links(name):
    link = ROOT / "neuroshard" / name
    assert link.is_symlink()
    assert (link.parent / link.readlink()).resolve() == ROOT / link.name


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        ("neuroshard", ("torch", "fbgemm_gpu", "matplotlib", "pandas")),
        ("neuroshard.stages.search.runs.search", ("torch", "fbgemm_gpu", "matplotlib", "scipy", "sklearn")),
    ],
)
def test_importing_imports_nothing_heavy(imported, heavy):
    code = f"import sys, {imported}; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def _module(path):
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "neuroshard" else ("neuroshard", "stages", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph(for_types=False):
    """Which modules each module imports; a package is its `__init__.py`."""
    files = {_module(path): path for folder in ("neuroshard", *STAGES) for path in _files(folder)}
    graph = {}
    for module, path in files.items():
        named = (
            (base if name is None or f"{base}.{name}" not in files else f"{base}.{name}")
            for base, name in _imported_names(path, for_types)
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
    assert "neuroshard.stages.search.published.grid" in graph["neuroshard.stages.search.published.beam"]
    assert _cycle(graph) == []
    graph["neuroshard.plans.plan"].add("neuroshard.models.simulator")
    assert _cycle(graph) != []


def test_plans_import_nothing_in_a_circle_for_types_either():
    graph = _graph(for_types=True)
    assert "neuroshard.layouts" in graph["neuroshard.plans.plan"]
    for module in graph:
        assert not module.startswith("neuroshard.plans.") or module not in _reached(graph, module), module


def _reached(graph, module):
    """All that a module imports, and what that imports."""
    reached, new = set(), set(graph[module])
    while new:
        reached |= new
        new = set().union(*(graph[one] for one in new)) - reached
    return reached


def _rooms(house, graph):
    """Which rooms each room of a package imports: folders of it. Modules beside them are in none."""
    rooms = {}
    for module, imported in graph.items():
        names = {name.removeprefix(f"{house}.").split(".")[0] for name in (module, *imported) if name.startswith(house)}
        room = module.removeprefix(f"{house}.").split(".")[0]
        if module.startswith(f"{house}."):
            rooms.setdefault(room, set()).update(names - {room})
    folders = {path.name for path in (ROOT / house.removeprefix("neuroshard.stages.")).iterdir() if path.is_dir()}
    return {room: its & folders - {"stages"} for room, its in rooms.items() if room in folders - {"stages"}}


HOUSES = {"neuroshard": CORE_ROOMS, "neuroshard.stages.search": SEARCH_ROOMS}


@pytest.mark.parametrize("house", HOUSES)
def test_every_room_imports_rooms_above_it_only(house):
    order, rooms = HOUSES[house], _rooms(house, _graph(for_types=True))
    assert set(rooms) == set(order)
    for room, imported in rooms.items():
        assert imported <= set(order[: order.index(room)]), room
    assert _cycle(rooms) == []
    rooms[order[0]].add(order[-1])
    assert _cycle(rooms) != []


def test_no_module_of_the_core_is_beside_the_packages():
    assert {path.name for path in (ROOT / "neuroshard").glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("house", HOUSES)
def test_contributing_lists_the_rooms_in_order(house):
    folder = house.removeprefix("neuroshard.stages.")
    listed = re.findall(rf"^\| `{folder}/(\w+)/`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert tuple(listed) == HOUSES[house]


PUBLISHED = "neuroshard.stages.search.published"
# Rooms that say what a table, a task or a plan is: the published search gets arrays in their place.
ABOUT_TASKS = {"words", "tables", "cost", "layouts", "tasks", "plans", "models", "searching"}


def test_the_published_search_can_be_read_alone():
    """It works on arrays, so a reader who has only the paper need not open what the arrays are made of."""
    graph = _graph(for_types=True)
    files = {_module(path): path for folder in ("neuroshard", *STAGES) for path in _files(folder)}
    own = {module for module in graph if module.startswith(PUBLISHED)}
    needed = own.union(*(_reached(graph, module) for module in own))
    with_packages = {name for module in needed for name in _and_packages(module)} & files.keys()
    lines = {module: len(files[module].read_text().splitlines()) for module in with_packages}
    assert {f"{PUBLISHED}.{name}" for name in ("beam", "grid", "greedy", "shard_table")} <= own
    assert sum(lines[module] for module in own) <= 900
    assert len(with_packages) <= 20
    assert sum(lines.values()) <= 3000
    rooms = {module.split(".")[1] for module in with_packages if module.count(".")}
    assert not rooms & ABOUT_TASKS


def _and_packages(module):
    """A module, and the packages around it, which Python imports first."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
