"""What rows and copies are worth beside columns, by prediction alone: which tables get which form, and how near the
best plan of all forms the default search comes.

usage: forms.py [MODEL]    (MODEL: a datasheet, roofline:h100 if none is named)

The first table searches whole tasks with the default search, in columns alone and in all forms; CPU time is of a second
search in the same process. The second one costs every plan of tiny tasks: every way to give a table's slices of 4
columns to 2 devices, rows, and copies.
"""

import sys
import time
from collections import Counter
from itertools import product

import numpy as np

from neuroshard.errors import InfeasibleError
from neuroshard.models import CostModels
from neuroshard.plans.form import Form
from neuroshard.plans.lay_out import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plans.shard import Placement
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables import Table
from neuroshard.tables.criteo import criteo
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task, Topology

_BATCH_SIZE = 65536
_MEMORY = "80GiB"
_HOST = 8
_IN_COLUMNS, _IN_ALL = NeuroShard(forms=("columns",)), NeuroShard()
_TINY_TASKS = 30


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "roofline:h100"
    simulator = Simulator(CostModels.load(model))
    print(f"{model}, devices of {_MEMORY}, {_HOST} a host, batch size {_BATCH_SIZE}; predicted, not measured")
    print("| tables | devices | columns alone, ms | all forms, ms | | tables in columns, rows, copies | CPU time |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, task in _tasks():
        print(_row(name, task, simulator), flush=True)
    print()
    _tiny(simulator)


def _tasks() -> list[tuple[str, Task]]:
    hot = _table("hot", 10_000_000, 8, 200)
    huge = _table("huge", 5_000_000_000, 32, 1)
    training = MemoryUse("rowwise_adagrad", batches_in_flight=1)
    synthetic = dlrm_like(seed=1, batch_size=_BATCH_SIZE)
    return [
        *(("DLRM-DCNv2, 26 tables", _task(criteo(), count)) for count in (8, 64, 128)),
        ("20 of these, and 8 columns looked up 200 times", _task((hot, *criteo()[:20]), 16)),
        ("20 of these, and 5 billion rows x 32; Adagrad", _task((huge, *criteo()[:20]), 16, training)),
        ("60 synthetic tables", _task(synthetic[:60], 8)),
        ("856 synthetic tables", _task(synthetic, 64)),
    ]


def _table(name: str, rows: int, dim: int, lookups: float) -> Table:
    return Table(name, rows, dim, lookups, zipf_reuse(rows, _BATCH_SIZE * lookups, 1.05))


def _task(tables: tuple[Table, ...], num_devices: int, use: MemoryUse | None = None) -> Task:
    return Task(tables, Topology(num_devices, _MEMORY, devices_per_host=_HOST), _BATCH_SIZE, use or MemoryUse())


def _row(name: str, task: Task, simulator: Simulator) -> str:
    plans, seconds = zip(*(_searched(searcher, task, simulator) for searcher in (_IN_COLUMNS, _IN_ALL)), strict=True)
    alone, found = (None if plan is None else simulator.cost(task, plan).total_ms for plan in plans)
    count = Counter(() if plans[1] is None else plans[1].forms)
    forms = ", ".join(str(count[form]) for form in Form)
    gain = f"{found / alone - 1:+.1%}" if alone and found else ""
    times = f"{seconds[0]:.2f} s, {seconds[1]:.2f} s" if alone else f"{seconds[1]:.2f} s"
    return f"| {name} | {task.topology.num_devices} | {_ms(alone)} | {_ms(found)} | {gain} | {forms} | {times} |"


def _ms(cost: float | None) -> str:
    return "no plan" if cost is None else f"{cost:.3f}"


def _searched(searcher: Searcher, task: Task, simulator: Simulator) -> tuple[Plan | None, float]:
    """A plan, if there is one, and the CPU time of finding it, s."""
    try:
        searcher.search(task, simulator)  # compiles
        start = time.process_time()
        plan = searcher.search(task, simulator)
    except InfeasibleError:
        return None, 0.0
    return plan, time.process_time() - start


def _tiny(simulator: Simulator) -> None:
    gaps, gains = [], []
    for seed in range(_TINY_TASKS):
        task = _tiny_task(seed)
        best = min(cost.total_ms for cost in simulator.costs(task, _every_plan(task)))
        alone, found = (simulator.cost(task, s.search(task, simulator)).total_ms for s in (_IN_COLUMNS, _IN_ALL))
        gaps.append(found / best - 1)
        gains.append(1 - best / alone)
    print(f"{_TINY_TASKS} tasks of 4 tables on 2 devices: cost above the best of all plans in all forms")
    print(f"| all forms | mean {np.mean(gaps):+.2%} | worst {np.max(gaps):+.2%} |")
    print(f"| columns alone cost more than that best by | mean {np.mean(gains):.1%} | most {np.max(gains):.1%} |")


def _tiny_task(seed: int) -> Task:
    rng = np.random.default_rng(seed)
    shapes = [(10 ** rng.uniform(1, 7), rng.choice([4, 8, 16]), 10 ** rng.uniform(0, 2)) for _ in range(4)]
    tables = [_table(f"t{i}", int(rows), int(dim), float(lookups)) for i, (rows, dim, lookups) in enumerate(shapes)]
    return Task(tuple(tables), Topology(2, _MEMORY), _BATCH_SIZE)


def _every_plan(task: Task) -> list[Plan]:
    options = [_options(task, table) for table in range(len(task.tables))]
    return [Plan(task, tuple(placed for part in parts for placed in part)) for parts in product(*options)]


def _options(task: Task, table: int) -> list[list[Placement]]:
    devices, width = task.topology.num_devices, task.tables[table].dim // 4
    splits = [split for split in product(range(width + 1), repeat=devices) if sum(split) == width]
    cuts = [[(table, 4 * units, device) for device, units in enumerate(split) if units] for split in splits]
    columns = [in_columns(task, cut) for cut in cuts]
    return [*columns, in_rows(task, table, range(devices)), in_copies(task, table)]


if __name__ == "__main__":
    main()
