"""NeuroShard: beam search over column-wise splits, greedy grid search over table-wise placement."""

from dataclasses import dataclass, field

from neuroshard.errors import InfeasibleError, UserError
from neuroshard.plan import Plan
from neuroshard.search.base import Searcher
from neuroshard.search.grid import GridSearch, GridSettings, Placed
from neuroshard.search.layout import Layout
from neuroshard.search.memory import check_total, gib
from neuroshard.simulator import Simulator
from neuroshard.task import Task


@dataclass(frozen=True)
class NeuroShard(Searcher):
    """The published search (Zha et al. 2023, section 3.3) with its published settings as defaults.

    Attributes:
        num_candidates: shards tried for a split: so many by size, and so many by predicted compute cost.
        beam_width: layouts kept after every split.
        max_splits: splits in a layout at most; 0 leaves every table whole.
        grid: caps of the greedy grid search.
    """

    num_candidates: int = 10
    beam_width: int = 3
    max_splits: int = 10
    grid: GridSettings = field(default_factory=GridSettings)

    def __post_init__(self) -> None:
        for name, least in (("num_candidates", 1), ("beam_width", 1), ("max_splits", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UserError(f"neuroshard: {name}={value!r} must be a whole number of at least {least}")

    def search(self, task: Task, simulator: Simulator) -> Plan:
        """The cheapest plan seen on the way; the earliest one among equals."""
        check_total(task)
        grid = GridSearch(task, simulator, self.grid)
        beam = grid.place([Layout.unsplit(grid.catalog)])
        best = beam[0]
        for _ in range(self.max_splits):
            layouts = self._one_more_split(beam, grid)
            if not layouts:
                break
            beam = sorted(grid.place(layouts), key=lambda placed: self._rank(placed, grid))[: self.beam_width]
            best = min(best, beam[0], key=lambda placed: placed.cost_ms)
        if best.cost_ms == float("inf"):
            raise self._nothing_fits(task)
        return best.plan(task)

    def _one_more_split(self, beam: list[Placed], grid: GridSearch) -> list[Layout]:
        """Every layout that splits one candidate of one layout of the beam, without repeats."""
        layouts = [
            placed.layout.split(shard)
            for placed in beam
            for shard in placed.layout.candidates(grid.catalog, self.num_candidates)
        ]
        return list(dict.fromkeys(layouts))

    def _rank(self, placed: Placed, grid: GridSearch) -> tuple[float, int]:
        """By cost; among layouts that don't fit, the one whose largest shard is smallest is nearest to fitting."""
        return placed.cost_ms, placed.layout.largest_bytes(grid.catalog) if placed.cost_ms == float("inf") else 0

    def _nothing_fits(self, task: Task) -> InfeasibleError:
        largest = max(task.tables, key=lambda table: table.size_bytes)
        return InfeasibleError(
            f"neuroshard: no plan with at most {self.max_splits} column splits fits {gib(task.size_bytes)} of tables "
            f"on {task.topology.num_devices} devices of {gib(task.topology.memory_bytes)}; the largest table, "
            f"{largest.name!r}, takes {gib(largest.size_bytes)}; raise searcher.max_splits or topology.memory_bytes"
        )
