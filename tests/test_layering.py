"""The core imports no stage, stages import only the core, and packages import only packages above them."""

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
CORE_PACKAGES = (
    *("plumbing", "words", "tables", "cost", "layouts", "tasks", "plans", "bundles", "models", "searching"),
    *("torchrec", "targets", "measure", "testing", "app"),
)
SEARCH_PACKAGES = (
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
    """Return (module, name) of all imports of a file at run time, at any place; the name is None for a whole module.

    With `for_types`, also return the imports under TYPE_CHECKING.
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
def test_core_imports_no_stage_and_stages_import_only_allowed_stages(folder, its_own):
    files = _files(folder)
    assert files
    for path in files:
        assert _stages_imported(path) <= (set(STAGES) if path == PIPELINE else its_own), path


@pytest.mark.parametrize("folder", ["neuroshard", *STAGES, "examples"])
def test_code_that_users_run_does_not_import_tests(folder):
    files = _files(folder)
    assert files
    for path in files:
        assert not [name for name, _ in _imported_names(path) if name.split(".")[0] == "tests"], path


@pytest.mark.parametrize("name", [*(f"stages/{stage}" for stage in STAGES), "conf"])
def test_stages_in_the_package_are_committed_links_to_their_folders(name):
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
def test_importing_a_module_loads_no_heavy_package(imported, heavy):
    code = f"import sys, {imported}; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def _module(path):
    """Return the name of the module of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "neuroshard" else ("neuroshard", "stages", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph(for_types=False):
    """Return the modules that each module imports; a package stands for its `__init__.py`."""
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


def test_imports_between_modules_have_no_cycle():
    graph = _graph()
    assert {"neuroshard.models", "neuroshard.plans.plan"} <= graph["neuroshard.models.simulator"]
    assert "neuroshard.stages.search.published.grid" in graph["neuroshard.stages.search.published.beam"]
    assert _cycle(graph) == []
    graph["neuroshard.plans.plan"].add("neuroshard.models.simulator")
    assert _cycle(graph) != []


def test_plans_package_has_no_import_cycle_even_for_types():
    graph = _graph(for_types=True)
    assert "neuroshard.layouts" in graph["neuroshard.plans.plan"]
    for module in graph:
        assert not module.startswith("neuroshard.plans.") or module not in _reached(graph, module), module


def _reached(graph, module):
    """Return all modules that a module imports, directly or indirectly."""
    reached, new = set(), set(graph[module])
    while new:
        reached |= new
        new = set().union(*(graph[one] for one in new)) - reached
    return reached


def _packages(parent, graph):
    """Return the packages inside `parent` that each package inside `parent` imports, as sets by name."""
    packages = {}
    for module, imported in graph.items():
        names = {
            name.removeprefix(f"{parent}.").split(".")[0] for name in (module, *imported) if name.startswith(parent)
        }
        package = module.removeprefix(f"{parent}.").split(".")[0]
        if module.startswith(f"{parent}."):
            packages.setdefault(package, set()).update(names - {package})
    folders = {path.name for path in (ROOT / parent.removeprefix("neuroshard.stages.")).iterdir() if path.is_dir()}
    inside = folders - {"stages"}
    return {package: names & inside for package, names in packages.items() if package in inside}


PARENTS = {"neuroshard": CORE_PACKAGES, "neuroshard.stages.search": SEARCH_PACKAGES}


@pytest.mark.parametrize("parent", PARENTS)
def test_every_package_imports_only_packages_above_it(parent):
    order, packages = PARENTS[parent], _packages(parent, _graph(for_types=True))
    assert set(packages) == set(order)
    for package, imported in packages.items():
        assert imported <= set(order[: order.index(package)]), package
    assert _cycle(packages) == []
    packages[order[0]].add(order[-1])
    assert _cycle(packages) != []


def test_core_has_no_modules_outside_its_packages():
    assert {path.name for path in (ROOT / "neuroshard").glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("parent", PARENTS)
def test_contributing_lists_the_packages_in_order(parent):
    folder = parent.removeprefix("neuroshard.stages.")
    listed = re.findall(rf"^\| `{folder}/(\w+)/`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert tuple(listed) == PARENTS[parent]


PUBLISHED = "neuroshard.stages.search.published"
# Packages that say what a table, a task or a plan is: the published search gets arrays in their place.
ABOUT_TASKS = {"words", "tables", "cost", "layouts", "tasks", "plans", "models", "searching"}


def test_published_search_imports_few_other_modules():
    """The published search works on arrays, so that readers of the paper need few other modules."""
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
    packages = {module.split(".")[1] for module in with_packages if module.count(".")}
    assert not packages & ABOUT_TASKS


def _and_packages(module):
    """Return a module and the packages around it, which Python imports first."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
