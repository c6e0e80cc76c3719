"""What several benchmarks need."""

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
# The three baselines, with one name in every table and picture. The first is EmbeddingShardingPlanner as a job uses
# it; the others are the searchers `torchrec` and `torchrec_all_types`, whose plans the simulator chooses from.
DEFAULT_PLANNER = "TorchRec's default planner"
COLUMN_WISE = "TorchRec, column-wise only, best of eight settings"
COLUMN_WISE_CACHED = "TorchRec, column-wise only, best of 24 settings"  # three cache sizes for each of the eight
ALL_TYPES = "TorchRec, all sharding types, best of eight settings"
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Made:
    """A table for readers: its cells as they are shown, and what is known of its noise, in a sentence.

    Attributes:
        machine: where it was measured; None: here.
    """

    frame: pd.DataFrame
    noise: str
    machine: str | None = None


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as pages have it."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ["---"] * len(columns), *rows))


def with_tables(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Put each of these tables between its markers in the page."""
    return _MARKED.sub(
        lambda found: f"{found[1]}{tables[found[2]]()}{found[3]}" if found[2] in tables else found[0], page
    )


@cache
def simulator_of(models: ModelChoice | str) -> ns.Simulator:
    """Build the simulator of these cost models, chosen by their name alone or with settings."""
    return ns.Simulator(ns.CostModels.of(models if isinstance(models, ModelChoice) else ModelChoice(models)))


def papers_tasks(devices: int, batch_size: int, count: int) -> tuple[ns.Task, ...]:
    """Draw the first of the papers' tasks, of tables that the installed models have never seen."""
    tables = dlrm_like(batch_size=batch_size, seed=1)
    return drawn(tables, ns.Topology(devices, "4GiB"), batch_size, TaskDraw(count=count))


def of_drawn_dims(tables: Sequence[ns.Table], dims: Sequence[int]) -> tuple[ns.Table, ...]:
    """Draw the dim of each table from these."""
    of_each = np.random.default_rng(0).choice(dims, len(tables))
    return tuple(table.with_dim(int(dim)) for table, dim in zip(tables, of_each, strict=True))


def found(
    task: ns.Task, simulator: ns.Simulator, searcher: str | Searcher = "neuroshard", **settings: object
) -> ns.Plan | None:
    """Search a plan; None if none is found."""
    try:
        return ns.search(task, simulator, searcher, **settings)
    except InfeasibleError:
        return None


def total_ms(simulator: ns.Simulator, plan: ns.Plan | None) -> float:
    """Compute what a plan costs; infinitely much without one."""
    return np.inf if plan is None else simulator.cost(plan.task, plan).total_ms


def evaluated(files: Sequence[str], models: str | None, out: Path, measure: Measurer) -> EvaluateResult:
    """Measure plans on this machine, and show the result."""
    result = Evaluate(files, models, CPU, out=str(out), measure=measure).run()
    assert isinstance(result, EvaluateResult)
    result.show(Console(width=200))
    return result
