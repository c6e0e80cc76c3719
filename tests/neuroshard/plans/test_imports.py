"""Plans are below what uses them: no module of theirs is imported by what it imports, anywhere in a file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "neuroshard"
PLANS = sorted(f"neuroshard.plans.{path.stem}" for path in (CORE / "plans").glob("*.py") if path.stem != "__init__")


def _file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imported(module: str) -> Iterator[str]:
    """Modules of ours that a module names in imports: at its top, inside functions, for type checkers."""
    for node in ast.walk(ast.parse(_file(module).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith("neuroshard.") and _file(name))


def _reached(module: str) -> set[str]:
    reached, left = set(), [module]
    while left:
        for name in set(_imported(left.pop())) - reached:
            reached.add(name)
            left.append(name)
    return reached


@pytest.mark.parametrize("module", PLANS)
def test_no_module_of_plans_is_in_a_circle(module):
    assert module not in _reached(module)


def test_plans_know_nothing_of_torchrec():
    assert not [name for module in PLANS for name in _reached(module) if name.startswith("neuroshard.torchrec")]
