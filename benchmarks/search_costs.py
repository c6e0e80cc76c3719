"""The predicted cost of the plans that each search method finds, and the time and memory of the
searches: tables of `results.py`.
"""

import resource
import time
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
from shared import CPU_DATA, Made, found, of_drawn_dims, papers_tasks, simulator_of, total_ms

import neuroshard as ns
from neuroshard.tables import halvings
from neuroshard.tables.sources.dlrm_like import dlrm_like

BATCH_SIZE = 4096
METHODS = (
    *("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy", "dreamshard", "autoshard"),
    *("torchrec", "torchrec_simulated", "neuroshard_published", "neuroshard"),
)
SCALES = ((100, 4), (1000, 4), (2000, 4), (1000, 16), (1000, 128), (2000, 128), (5000, 512))


def methods(_work: Path, small: bool) -> Made:
    """Return a table of all search methods on tasks of the papers: the predicted costs of the plans by the installed
    models, and the search times.
    """
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    simulator, tasks, timed = simulator_of("cpu"), papers_tasks(4, BATCH_SIZE, 2 if small else 12), {}
    for name in METHODS:
        _timed(tasks[0], simulator, name)  # compiles
        timed[name] = np.array([_timed(task, simulator, name) for task in tasks])
    every = np.all([np.isfinite(its[:, 0]) for its in timed.values()], axis=0)
    ours = timed["neuroshard"][every, 0]
    rows = [
        {
            "method": f"`{name}`",
            "tasks solved": f"{np.isfinite(its[:, 0]).sum()} of {len(tasks)}",
            "predicted cost, ms": f"{its[every, 0].mean():.2f}",
            "relative to the default": f"{(its[every, 0] / ours).mean():.3f}",
            "search, s, median": f"{np.median(its[:, 1]):.3f}",
            "longest": f"{its[:, 1].max():.3f}",
        }
        for name, its in timed.items()
    ]
    return Made(pd.DataFrame(rows), f"Costs are means over the {every.sum()} tasks that all solve, and repeat exactly.")


def _timed(task: ns.Task, simulator: ns.Simulator, searcher: str) -> tuple[float, float]:
    """Search a plan; return the predicted cost in ms (infinite if no plan was found) and the
    seconds that the search took.
    """
    start = time.perf_counter()
    plan, seconds = found(task, simulator, searcher), time.perf_counter() - start
    return total_ms(simulator, plan), seconds


def two_plans(_work: Path, _small: bool) -> Made:
    """Return a table of the costs of each device in two plans for the same task: the plan of the best heuristic and
    the default search's plan.
    """
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    simulator, (task,), rows = simulator_of("cpu"), papers_tasks(4, BATCH_SIZE, 1), []
    for name, searcher in (("size-lookup greedy", "size_lookup_greedy"), ("NeuroShard", "neuroshard")):
        plan = ns.search(task, simulator, searcher)
        cost = simulator.cost(task, plan)
        rows += [
            {
                "plan by": name,
                "device": f"{device}",
                "backward, ms": f"{cost.backward[device]:.2f}",
                "compute, ms": f"{cost.compute[device]:.2f}",
                "forward, with the wait for the straggler, ms": f"{cost.forward[device]:.2f}",
                "shards": f"{len(plan.device_tables[device])}",
                "memory, GiB": f"{plan.device_bytes[device] / 2**30:.2f}",
            }
            for device in range(task.topology.num_devices)
        ]
    return Made(pd.DataFrame(rows), f"Predicted; {len(task.tables)} tables.")


def scaling(_work: Path, small: bool) -> Made:
    """Return a table of search times and memory by number of tables and devices; each search runs in a new process."""
    scales = [(*scale, name) for scale in (SCALES[:1] if small else SCALES) for name in _SCALED]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(_scaled, scales, chunksize=1)
    return Made(pd.DataFrame(rows), "Median, and least to most, of three searches after one that compiles.")


_SCALED = "neuroshard_published", "neuroshard"
PAPERS_SCALES, LARGE_SCALES = ((30, 4), (59, 4), (60, 8)), ((1000, 128), (5000, 512))


def speed(work: Path, small: bool) -> Made:
    """Return a table of the default search's time relative to the time of the published search.

    The two search the same tasks alternately. Models of the papers' tasks are the papers' networks; models of the
    large tasks are `roofline:h100`.
    """
    warnings.simplefilter("ignore", ns.NeuroShardWarning)
    count, rows = 2 if small else 12, list[dict[str, str]]()
    for num_tables, devices in PAPERS_SCALES:
        tasks = papers_tasks(devices, BATCH_SIZE, count, min_tables=num_tables, max_tables=num_tables)
        rows.append(_speeds(tasks * 3, _papers_networks(work / f"{devices}", devices), "the papers' networks"))
    for num_tables, devices in LARGE_SCALES[: 1 if small else 2]:
        tasks = (_large_task(num_tables, devices),) * (1 if small else 5)
        rows.append(_speeds(tasks, simulator_of("roofline:h100"), "`roofline:h100`"))
    return Made(
        pd.DataFrame(rows), f"{count} tasks, 3 times each, or 5 searches of a large task, after one that compiles."
    )


def _speeds(tasks: Sequence[ns.Task], simulator: ns.Simulator, models: str) -> dict[str, str]:
    """Return the row of tasks of the same size: search times of both searches, their ratio and the ratio of costs."""
    for searcher in _SCALED:
        _timed(tasks[0], simulator, searcher)  # compiles
    timed = np.array([[_timed(task, simulator, searcher) for searcher in _SCALED] for task in tasks])
    (costs, seconds), topology = np.moveaxis(timed, -1, 0), tasks[0].topology
    ratios = np.sort(seconds[:, 1] / seconds[:, 0])
    return {
        "tables x devices": f"{len(tasks[0].tables)} x {topology.num_devices}",
        "models": models,
        "published search, s, median": f"{np.median(seconds[:, 0]):.3f}",
        "default search, s, median": f"{np.median(seconds[:, 1]):.3f}",
        "default / published, median": f"{np.median(ratios):.1f}",
        "lowest to highest": f"{ratios[0]:.1f} to {ratios[-1]:.1f}",
        "costs, default / published": f"{(costs[:, 1] / costs[:, 0]).mean():.3f}",
    }


def _large_task(num_tables: int, devices: int) -> ns.Task:
    """Return a task of tables of many sizes on hosts of eight devices, with lookups of the same skewness."""
    rng, reuse = np.random.default_rng(3), ns.zipf_reuse(100_000, 65_536)

    def table(number: int) -> ns.Table:
        rows, dim = int(10 ** rng.uniform(2, 6.7)), int(rng.choice([16, 32, 64, 128]))
        return ns.Table(f"t{number}", rows, dim, float(np.clip(rng.lognormal(1.5, 1.2), 0.1, 200)), reuse, 4)

    return ns.Task(tuple(map(table, range(num_tables))), ns.Topology(devices, "80GiB", devices_per_host=8), 65_536)


def _papers_networks(work: Path, devices: int) -> ns.Simulator:
    """Fit the papers' networks to the measurements of this repository that the papers would have made: column-wise
    tables, all-to-alls of this number of devices, and one batch size.
    """
    data = work / "data"
    if not data.exists():
        copytree(CPU_DATA, data)
        for path in data.glob("*/*.parquet"):
            rows = pd.read_parquet(path)
            if "collective" in rows:
                kept = (rows["collective"] == "all_to_all") & (rows["size_bytes"].map(len) == devices)
            else:
                kept = (rows["sharding_type"] == "column_wise") & rows["pooled"]
            path.chmod(0o644)
            rows[kept & (rows["batch_size"] == BATCH_SIZE)].to_parquet(path, index=False)
    models = work / "models"
    if not models.exists():
        ns.pretrain(data, models, compute_model="paper", comm_model="paper")
    return ns.Simulator(ns.CostModels.load(models))


def _scaled(num_tables: int, num_devices: int, searcher: str) -> dict[str, str]:
    simulator, tables = simulator_of("roofline:h100"), of_drawn_dims(dlrm_like(num_tables, seed=3), halvings(128))
    task = ns.Task(tables, ns.Topology(num_devices, "80GiB"), 65536)
    least, median, most = sorted([_timed(task, simulator, searcher)[1] for _ in range(4)][1:])
    return {
        "tables": f"{num_tables}",
        "devices": f"{num_devices}",
        "searcher": f"`{searcher}`",
        "search, s": f"{median:.2f} ({least:.2f} to {most:.2f})",
        "memory of the process, GiB": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}",
    }
