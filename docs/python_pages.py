"""The pages about Python in docs/reference/python/: what `neuroshard` and `neuroshard.torchrec` offer."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from neuroshard.plumbing.settings_files import texts_of

_WIDTH = 110  # characters of a line of code
_MADE_BY = "Generated from docstrings by `make docs`; `help(NAME)` in Python says more."


class Page(NamedTuple):
    """A page: its title, what the reader can look up there, and the names that the page explains, in this order."""

    title: str
    purpose: str
    names: Sequence[str]
    module: str = "neuroshard"


PAGES = {
    "stages": Page(
        "Stages",
        "run the stages and handle errors",
        ("collect", "pretrain", "search", "evaluate", "export_plan", "Exported", "Found", "Searcher", "UserError",
         "InfeasibleError", "NeuroShardWarning"),
    ),
    "tables": Page(
        "Tables",
        "load, count and describe tables",
        ("load_tables", "Table", "tables_from_batches", "MeasuredTables", "Counted", "TableShape", "table_from_trace",
         "zipf_reuse"),
    ),
    "tasks": Page(
        "Tasks",
        "describe devices, memory and constraints",
        ("Task", "Topology", "MemoryUse", "Constraints", "TableRule", "PinnedShard"),
    ),
    "plans": Page(
        "Plans",
        "read, check, save and compare plans",
        ("Plan", "Shard", "Placement", "Tier", "TierAssignment", "Prediction"),
    ),
    "cost_models": Page(
        "Cost models",
        "load cost models and predict the cost of plans",
        ("CostModels", "ModelChoice", "Simulator", "Cost"),
    ),
    "torchrec_planner": Page(
        "Planning TorchRec models",
        "plan a TorchRec model",
        ("NeuroShardPlanner", "Replanned", "profile", "find_tables", "Parameter"),
        "neuroshard.torchrec",
    ),
    "torchrec_training": Page(
        "Training TorchRec models",
        "train on a plan, keep plans, and move a running job to another plan",
        ("data_parallel_optimizer", "DataParallelOptimizer", "data_parallel_parameters", "dense_parameters",
         "save_sharding_plan", "load_sharding_plan", "to_sharding_plan", "from_sharding_plan", "reshard"),
        "neuroshard.torchrec",
    ),
}  # fmt: skip


def python_pages(folder: Path) -> dict[Path, str]:
    """Return the text of every page; without TorchRec, pages about `neuroshard.torchrec` are left out.

    Raises:
        ValueError: a public name has no page.
    """
    names = [name for name in ("neuroshard", "neuroshard.torchrec") if name == "neuroshard" or find_spec("torchrec")]
    modules = {name: import_module(name) for name in names}
    for name, module in modules.items():
        explained = {one for page in PAGES.values() if page.module == name for one in page.names}
        if missing := set(module.__all__) - explained:
            raise ValueError(f"docs/python_pages.py lists no page for: {', '.join(sorted(missing))}")
    return {
        folder / f"{name}.md": page_of(page, modules[page.module])
        for name, page in PAGES.items()
        if page.module in modules
    }


def page_of(page: Page, module: ModuleType) -> str:
    """Return the text of a page about names of a module."""
    prefix, statement = ("ns.", "import neuroshard as ns")
    if page.module != "neuroshard":
        prefix, statement = "", f"from {page.module} import ..."
    parts = [f"# {page.title} in Python", f"Look up here how to {page.purpose}, after `{statement}`. {_MADE_BY}"]
    for name in page.names:
        parts += _entry(f"{prefix}{name}", getattr(module, name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(name: str, thing: Any) -> Iterator[str]:
    """Yield the parts of a page about one name."""
    yield f"## {name}"
    if not callable(thing):  # a constant's docstring would be its type's
        yield _block(f"{name} = {thing!r}")
        return
    yield _block(_call(name, thing))
    yield _summary(thing)
    yield "\n".join(_arguments(thing))
    if inspect.isclass(thing):
        yield "\n".join(_methods(thing))


def _call(name: str, thing: Any) -> str:
    """Return the signature of a function or a constructor: if it is long, without types, on several lines."""
    whole = f"{name}{_signature(thing)}"
    if len(whole) <= _WIDTH:
        return whole
    signature = inspect.signature(thing)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = f"{name}{_shortened(str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)))}"
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_long_words=False))


def _arguments(thing: Any) -> Iterator[str]:
    """Yield a line for each documented argument of a function, or of the constructor of a class."""
    texts = texts_of(thing)
    try:
        parameters: Mapping[str, Any] = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return
    yield from (f"- `{name}`: {texts[name].replace('null', 'None')}." for name in parameters if name in texts)


def _methods(thing: type) -> list[str]:
    """List what a class offers, what it inherits from another of ours included."""
    found = []
    ours = [kind for kind in reversed(thing.__mro__) if kind.__module__.startswith("neuroshard")]
    for name, value in {name: value for kind in ours for name, value in vars(kind).items()}.items():
        method = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        target = getattr(method, "func", method)  # of a cached property
        is_code = inspect.isroutine(target) or isinstance(target, property)
        if name.startswith("_") or not is_code or not inspect.getdoc(target):
            continue
        signature = _signature(method) if inspect.isfunction(method) else ""
        found.append(f"- `.{name}{signature}`: {_summary(target)}")
    return found


def _signature(thing: Any) -> str:
    try:
        return _shortened(str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return ""


def _shortened(text: str) -> str:
    """Return the text of a signature without `self`, paths of modules, and what Python prints of defaults."""
    text = re.sub(r"\(self(, )?", "(", re.sub(r"<factory>", "...", text)).replace("''", '""')
    text = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", text)  # members of enumerations
    text = re.sub(r"(?:typing\.)?Annotated\[([\w\[\], .]+?), msgspec\.Meta\([^)]*\)\]", r"\1", text)
    text = re.sub(
        r"numpy\.ndarray\[tuple\[typing\.Any, \.\.\.\], numpy\.dtype\[numpy\.(\w+?)\d*\]\]", r"\1 array", text
    )
    text = re.sub(r"\btyping\.", "", text)
    return re.sub(r"(neuroshard|typing|collections|torchrec|pathlib|torch)\.[\w.]*\.(?=\w)|'", "", text)


def _summary(thing: Any) -> str:
    """Return the first paragraph of its docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _block(text: str) -> str:
    return f"```python\n{text}\n```"
