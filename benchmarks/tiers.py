"""What tables in host memory cost, and how near searches come: predicted cost against the devices' share of memory.

usage: tiers.py [MODEL]    (MODEL: a datasheet, roofline:h100 if none is named)

Devices have less and less memory for the tables of some tasks: at a share of 1.0 as much as these take, with the same
for hosts. Searched are columns and rows in device memory alone, all memories by the default search, and all memories
by TorchRec's planner with its caching kernels, which has three cache sizes to choose from; its plans are costed by the
same model. In the last column TorchRec's own estimates are the model of both searches, in columns alone: a device's
cost is the sum of what its shards take alone.

The second table costs every plan of tiny tasks: whole tables on 2 devices, in every memory.
"""

import sys
import time
from itertools import product

import numpy as np

import neuroshard as ns
from neuroshard.errors import InfeasibleError
from neuroshard.models import CostModels
from neuroshard.plans.lay_out import in_columns
from neuroshard.plans.plan import Plan
from neuroshard.plans.shard import ON_DEVICE, Home, Tier
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.torchrec import TorchRecSearch
from neuroshard.stages.search.space.homes import rehomed
from neuroshard.tables.criteo import criteo
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tables.table import Table
from neuroshard.tasks.task import Task, Topology

_HEAD = (
    "| tables | devices | their memory, of what the tables take | device memory alone, ms | all memories, ms | tables "
    "on device, cached, on host | CPU time | TorchRec's planner, ms | by its estimates: ours, its own |"
)
_BATCH_SIZE = 65536
_SHARES = (1.05, 0.8, 0.6, 0.4, 0.2)
_TINY_TASKS = 20
_TINY_HOMES = (ON_DEVICE, Home(Tier.CACHED, 0.05), Home(Tier.CACHED, 0.2), Home(Tier.CACHED, 0.6), Home(Tier.HOST))


def main() -> None:
    simulator = Simulator(CostModels.load(sys.argv[1] if len(sys.argv) > 1 else "roofline:h100"))
    print(_HEAD)
    print("| --- " * 9 + "|")
    for name, tables, devices in _tasks():
        for share in _SHARES:
            print(_row(name, _task(tables, devices, share), share, simulator), flush=True)
    print()
    _tiny(simulator)


def _tasks() -> list[tuple[str, tuple[Table, ...], int]]:
    synthetic = tuple(table.with_dim(64) for table in dlrm_like(seed=1, batch_size=_BATCH_SIZE)[:60])
    return [("DLRM-DCNv2, 26 tables", criteo(), 8), ("60 synthetic tables", synthetic, 4)]


def _task(tables: tuple[Table, ...], devices: int, share: float) -> Task:
    total = sum(table.size_bytes for table in tables)
    return Task(tables, Topology(devices, int(total * share / devices), host_memory_bytes=2 * total), _BATCH_SIZE)


def _row(name: str, task: Task, share: float, simulator: Simulator) -> str:
    from torchrec.distributed.planner.types import Topology as TorchRecTopology

    from neuroshard.torchrec.estimators import torchrec_models

    alone = Task(task.tables, Topology(task.topology.num_devices, task.topology.memory_bytes), task.batch_size)
    on_device, _ = _searched(NeuroShard(), alone, simulator)
    found, seconds = _searched(NeuroShard(), task, simulator)
    peer, _ = _searched(TorchRecSearch(), task, simulator)
    theirs = Simulator(torchrec_models(TorchRecTopology(task.topology.num_devices, "cuda")))
    in_columns_only, _ = _searched(NeuroShard(forms=("columns",)), task, theirs)
    own = [_ms(theirs, plan) for plan in (in_columns_only, peer)]
    tiers = [] if found is None else [home.tier for home in found.homes]
    counts = ", ".join(str(tiers.count(tier)) for tier in Tier)
    costs = [_ms(simulator, plan) for plan in (on_device, found, peer)]
    what = f"| {name} | {task.topology.num_devices} | {share:.2f} | {costs[0]} | {costs[1]} | {counts}"
    return f"{what} | {seconds:.1f} s | {costs[2]} | {', '.join(own)} |"


def _ms(simulator: Simulator, plan: Plan | None) -> str:
    return "no plan" if plan is None else f"{simulator.cost(plan.task, plan).total_ms:.3f}"


def _searched(searcher: Searcher, task: Task, simulator: Simulator) -> tuple[Plan | None, float]:
    """A plan, if there is one, and the CPU time of finding it, s."""
    start = time.process_time()
    try:
        plan = searcher.search(task, simulator)
    except InfeasibleError:
        return None, 0.0
    return plan, time.process_time() - start


def _tiny(simulator: Simulator) -> None:
    gaps = []
    for seed in range(_TINY_TASKS):
        task = _tiny_task(seed)
        fitting = [plan for plan in _every_plan(task) if plan.fits]
        best = min(cost.total_ms for cost in simulator.costs(task, fitting))
        gaps.append(simulator.cost(task, ns.search(task, simulator)).total_ms / best - 1)
    print(f"{_TINY_TASKS} tasks of 4 tables on 2 devices: cost above the best of all plans of whole tables")
    print(f"| mean {np.mean(gaps):+.2%} | worst {np.max(gaps):+.2%} | best {np.min(gaps):+.2%} |")


def _tiny_task(seed: int) -> Task:
    rng = np.random.default_rng(seed)
    every = [table for table in dlrm_like(seed=seed, batch_size=4096) if table.rows > 100_000]
    tables = tuple(every[i].with_dim(int(rng.choice([32, 64, 128]))) for i in rng.choice(len(every), 4, replace=False))
    total = sum(table.size_bytes for table in tables)
    return Task(tables, Topology(2, int(total * rng.uniform(0.15, 0.6) / 2), host_memory_bytes=2 * total), 4096)


def _every_plan(task: Task) -> list[Plan]:
    dims = [table.dim for table in task.tables]
    places = [(0, *others) for others in product(range(2), repeat=len(dims) - 1)]
    placed = [in_columns(task, zip(range(len(dims)), dims, devices, strict=True)) for devices in places]
    plans = [Plan(task, tuple(placements)) for placements in placed]
    return [rehomed(plan, task, homes) for plan in plans for homes in product(_TINY_HOMES, repeat=len(dims))]


if __name__ == "__main__":
    main()
