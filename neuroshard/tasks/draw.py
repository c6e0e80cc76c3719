"""Sources of tasks: one task with all tables, random tasks with some of the tables, or a file with tasks.
A task has a set of tables to shard over devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import MAX_TASKS, Dim, Seed, TableCount, of_format, parse
from neuroshard.tables import Table, halvings
from neuroshard.tasks.constraints import Constraints
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.words.topology import Topology

_FORMAT = "neuroshard-tasks-2"


def whole(
    tables: tuple[Table, ...], topology: Topology, batch_size: int, memory: MemoryUse, constraints: Constraints
) -> tuple[Task, ...]:
    """Return one task for the search, as a tuple of length 1. The task has all `tables`, unchanged.

    Args:
        tables: tables of the task.
        topology: number of devices, and memory of each.
        batch_size: global batch size (samples per step over all devices).
        memory: optimizer states and buffers that count as memory in addition to the weights.
        constraints: rules for tables.
    """
    return (Task(tables, topology, batch_size, memory, constraints),)


@dataclass(frozen=True)
@checked
class TaskDraw:
    """Settings for the drawing of random tasks, as in section 4.1 of the NeuroShard paper.

    Attributes:
        count: number of random tasks to draw; each task is a set of tables to shard.
        min_tables: minimum number of tables in a task. All numbers from min_tables to max_tables are equally likely,
            and a task has no table twice.
        max_tables: maximum number of tables in a task.
        max_dim: maximum number of columns of a table, a power of two and at least 4; each table gets max_dim halved a
            random number of times, down to 4. All of these widths are equally likely.
        seed: seed of the random tasks; another seed gives other tasks.
    """

    count: Annotated[int, Meta(ge=1, le=MAX_TASKS)] = 100
    min_tables: TableCount = 10
    max_tables: TableCount = 59
    max_dim: Dim = 128
    seed: Seed = 0

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        if self.min_tables > self.max_tables:
            raise UserError(
                "draw-min-tables-above-max",
                f"min_tables is {self.min_tables}, but max_tables is {self.max_tables}",
                where="tasks",
                limit="min_tables must not be above max_tables",
                remedy=f"Set tasks.draw.min_tables to {self.max_tables} or less, or raise tasks.draw.max_tables",
            )


def drawn(
    tables: tuple[Table, ...],
    topology: Topology,
    batch_size: int,
    draw: TaskDraw,
    memory: MemoryUse | None = None,
    constraints: Constraints | None = None,
) -> tuple[Task, ...]:
    """Return random tasks, each with a random subset of the tables and with a random number of columns for each table.

    Each task has the constraints that concern its tables.

    Args:
        tables: tables to draw from.
        topology: number of devices, and memory of each.
        batch_size: global batch size (samples per step over all devices).
        draw: number and size of the random tasks.
        memory: optimizer states and buffers that count as memory in addition to the weights; None counts only the
            weights.
        constraints: rules for tables; None sets no rules.

    Raises:
        UserError: there are fewer tables than the maximum of a task.
    """
    if len(tables) < draw.max_tables:
        raise UserError(
            "draw-too-few-tables",
            f"max_tables is {draw.max_tables}",
            where="tasks",
            limit=f"there {'is' if len(tables) == 1 else 'are'} only {number_of(len(tables), 'table')} to draw from",
            remedy=f"Set tasks.draw.max_tables to {len(tables)} or less, or give more tables",
        )
    rng = np.random.default_rng(draw.seed)
    memory, rules = memory or MemoryUse(), constraints or Constraints()
    chosen = (_draw_tables(tables, draw, rng) for _ in range(draw.count))
    return tuple(Task(some, topology, batch_size, memory, rules.of(some)) for some in chosen)


def _draw_tables(tables: tuple[Table, ...], draw: TaskDraw, rng: np.random.Generator) -> tuple[Table, ...]:
    count = int(rng.integers(draw.min_tables, draw.max_tables + 1))
    chosen = rng.choice(len(tables), size=count, replace=False)
    dims = rng.choice(halvings(draw.max_dim), size=count)
    return tuple(tables[i].with_dim(int(dim)) for i, dim in zip(chosen, dims, strict=True))


@checked
def from_file(path: str) -> tuple[Task, ...]:
    """Return the tasks in a file that `save_tasks` wrote.

    Args:
        path: path of the tasks.json that an earlier run wrote; tasks=FILE.json is short for tasks.path=FILE.json.

    Raises:
        UserError: the file is missing or malformed, or has no task.
    """
    content = of_format(read_json(Path(path), "task file"), _FORMAT, path)
    tasks = parse(content, _TaskFile, path).tasks
    if not tasks:
        raise UserError(
            "task-file-empty", "the file has no tasks", where=path, remedy="Give the tasks.json of another run"
        )
    return tasks


@dataclass(frozen=True)
class _TaskFile:
    tasks: tuple[Task, ...]


def save_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks to a JSON file, which `from_file` can read."""
    write_json(path, {"format": _FORMAT, "tasks": [task.to_json() for task in tasks]})
