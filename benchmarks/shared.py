"""Functions and names that several benchmarks share: baselines, tasks, plans and tables in Markdown."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

import neuroshard as ns
from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.evaluate.measurer import EvaluateResult, Measurer
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.words.model_choice import ModelChoice

CPU = Hardware(DeviceSpec("cpu"))
CPU_DATA = Path(__file__).parent / "data" / "cpu"  # the measurements that the installed CPU models were fitted to
# The three baselines, with one name in every table and picture. The first is EmbeddingShardingPlanner as a job uses
# it; the others are the searchers `torchrec` and `torchrec_all_types`, whose plans the simulator chooses from.
DEFAULT_PLANNER = "TorchRec's default planner"
COLUMN_WISE = "TorchRec, column-wise only, best of eight settings"
COLUMN_WISE_CACHED = "TorchRec, column-wise only, best of 24 settings"  # three cache sizes for each of the eight
ALL_TYPES = "TorchRec, all sharding types, best of eight settings"
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Made:
    """A table for people: the cells as text, and a sentence on the noise of the figures.

    Attributes:
        machine: where it was measured; None: here.
    """

    frame: pd.DataFrame
    noise: str
    machine: str | None = None


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with these column headers and rows as Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ["---"] * len(columns), *rows))


def with_tables(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return the text of a page after each table in `tables` is put between the markers with its name."""
    return _MARKED.sub(
        lambda found: f"{found[1]}{tables[found[2]]()}{found[3]}" if found[2] in tables else found[0], page
    )


@cache
def simulator_of(models: ModelChoice | str) -> ns.Simulator:
    """Return a simulator with these cost models, which are given by name alone or by name with settings."""
    return ns.Simulator(ns.CostModels.of(models if isinstance(models, ModelChoice) else ModelChoice(models)))


def papers_tasks(devices: int, batch_size: int, count: int, **settings: int) -> tuple[ns.Task, ...]:
    """Return `count` tasks drawn as in the papers, from tables that the installed models were not fitted to. `settings`
    are other settings of `TaskDraw`, such as the largest number of columns.
    """
    tables = dlrm_like(batch_size=batch_size, seed=1)
    return drawn(tables, ns.Topology(devices, "4GiB"), batch_size, TaskDraw(count=count, **settings))


def facts(path: Path) -> dict[str, str]:
    """Return the facts in the comment lines at the top of a table's file: date, machine, models and noise, by name."""
    lines = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    return dict(line.split(": ", 1) for line in lines)


def of_drawn_dims(tables: Sequence[ns.Table], dims: Sequence[int]) -> tuple[ns.Table, ...]:
    """Return the tables after each table gets a number of columns drawn from `dims`."""
    of_each = np.random.default_rng(0).choice(dims, len(tables))
    return tuple(table.with_dim(int(dim)) for table, dim in zip(tables, of_each, strict=True))


def found(
    task: ns.Task, simulator: ns.Simulator, searcher: str | Searcher = "neuroshard", **settings: object
) -> ns.Plan | None:
    """Return the plan that a searcher finds for a task; None if it finds no plan."""
    try:
        return ns.search(task, simulator, searcher, **settings)
    except InfeasibleError:
        return None


def total_ms(simulator: ns.Simulator, plan: ns.Plan | None) -> float:
    """Return the predicted cost of a plan in ms; infinity if `plan` is None."""
    return np.inf if plan is None else simulator.cost(plan.task, plan).total_ms


def evaluated(files: Sequence[str], models: str | None, out: Path, measure: Measurer) -> EvaluateResult:
    """Measure the plans in `files` on this machine, print the result, and return the result."""
    result = Evaluate(files, models, CPU, out=str(out), measure=measure).run()
    assert isinstance(result, EvaluateResult)
    result.show(Console(width=200))
    return result
