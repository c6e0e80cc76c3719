"""The predicted cost of the plans that each search method finds, and the time and memory of the
searches: tables of `results.py`.
"""

import resource
import time
import warnings
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Made, found, of_drawn_dims, papers_tasks, simulator_of, total_ms

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
