"""The result of an evaluation: its files, and its presentation for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.plumbing.files import write_atomically
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import print_lines
from neuroshard.stages.search.evaluate.comparison import Evaluated
from neuroshard.stages.search.evaluate.plan_comparison import Comparison

Drawn = tuple[str, Callable[[], bytes]]  # the name of the file, and the function that draws the picture


@dataclass(frozen=True)
class EvaluateResult:
    """The measurements of plans, their files, and their presentation for people.

    Attributes:
        path: directory of the run.
        entries: the plans.
        frames: rows of the written files, by the files' names.
        told: tables and lines for people.
        tasks: the comparison of each task's plans, if training steps were measured.
        picture: a picture of the results; None if there is none.
    """

    path: Path
    entries: tuple[Evaluated, ...] = field(repr=False)
    frames: Mapping[str, list[dict[str, Any]]] = field(repr=False)
    told: Sequence[Grid | str] = field(repr=False)
    tasks: tuple[Comparison, ...] = field(default=(), repr=False)
    picture: Drawn | None = None

    def save(self, facts: Mapping[str, object]) -> None:
        """Write the frames, `run.json` with the facts, and the picture."""
        for name, rows in self.frames.items():
            write_frame(self.path / f"{name}.parquet", pd.DataFrame(rows))
        RunDirectory(self.path).finish("evaluate", facts)
        if self.picture is not None:
            name, draw = self.picture
            write_atomically(self.path / name, draw())

    def show(self, console: Console) -> None:
        """Print the tables and lines, and the paths of the files."""
        files = [f"results: {self.path}"]
        files += [] if self.picture is None else [f"picture: {self.path / self.picture[0]}"]
        for table_or_line in (*self.told, *files):
            if isinstance(table_or_line, str):
                print_lines(console, [table_or_line])
            else:
                console.print(table_or_line)
