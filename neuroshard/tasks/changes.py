"""Differences between two tasks: added, removed and changed tables, and a changed number of devices."""

from collections.abc import Iterator
from dataclasses import dataclass

from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import readable_list
from neuroshard.tables import Table
from neuroshard.tasks.task import Task

_SHOWN = 3  # maximum number of tables that a line names
_STATISTICS = ("pooling_factor", "reuse", "row_lookups")


@dataclass(frozen=True)
class TaskChanges:
    """Differences between an earlier and a later task; tables are matched by name.

    Attributes:
        added, removed: names of tables that only the later, or only the earlier, task has.
        changed: tables that both tasks have and that differ, as (before, after).
        devices: number of devices (before, after).
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[Table, Table], ...]
    devices: tuple[int, int]

    @classmethod
    def between(cls, before: Task, after: Task) -> "TaskChanges":
        """Return the differences between an earlier task, `before`, and a later task, `after`."""
        old, new = ({table.name: table for table in task.tables} for task in (before, after))
        return cls(
            tuple(name for name in new if name not in old),
            tuple(name for name in old if name not in new),
            tuple((old[name], table) for name, table in new.items() if name in old and old[name] != table),
            (before.topology.num_devices, after.topology.num_devices),
        )

    @property
    def of_devices(self) -> bool:
        """True if the earlier and the later task have different numbers of devices."""
        return self.devices[0] != self.devices[1]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed) or self.of_devices

    def __str__(self) -> str:
        return ", ".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield a short text for each kind of difference between the two tasks, such as "1 table added (user)"."""
        for names, what in ((self.added, "added"), (self.removed, "removed")):
            if names:
                yield f"{number_of(len(names), 'table')} {what} ({readable_list(names, _SHOWN)})"
        shapes = [text for pair in self.changed for text in _of_shape(*pair)]
        if shapes:
            yield readable_list(shapes, _SHOWN)
        if statistics := [text for pair in self.changed for text in _of_statistics(*pair)]:
            count = number_of(len(statistics), "table")
            yield f"other statistics of {count} ({readable_list(statistics, _SHOWN)})"
        if self.of_devices:
            yield f"{self.devices[0]:,} -> {number_of(self.devices[1], 'device')}"


def _of_shape(before: Table, after: Table) -> Iterator[str]:
    """Yield one text if the size or the features of a table have changed, such as "user: rows 100 -> 200".
    The text lists all changes in size and features. Yield nothing if there are no changes.
    """
    pairs = {
        "rows": (f"{before.rows:,}", f"{after.rows:,}"),
        "dim": (str(before.dim), str(after.dim)),
        "bytes per element": (str(before.bytes_per_element), str(after.bytes_per_element)),
        "features": (str(before.features), str(after.features)),
        "lookups": tuple("pooled" if table.pooled else "not pooled" for table in (before, after)),
    }
    differing = (f"{what} {old} -> {new}" for what, (old, new) in pairs.items() if old != new)
    if text := " and ".join(differing):
        yield f"{before.name}: {text}"


def _of_statistics(before: Table, after: Table) -> Iterator[str]:
    """Yield one text if any statistic of a table has changed, and nothing otherwise.
    If the pooling factor has changed, the text is like "user: pooling factor 10 -> 12". If only other statistics have
    changed, the text is the name of the table, such as "user".
    """
    if all(getattr(before, name) == getattr(after, name) for name in _STATISTICS):
        return
    old, new = (f"{table.pooling_factor:.4g}" for table in (before, after))
    yield f"{before.name}: pooling factor {old} -> {new}" if old != new else before.name
