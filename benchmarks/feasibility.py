"""Whether plans of tiny tasks with every kind of constraint are found just where there are any, beside all plans.

usage: feasibility.py [COUNT]    (10,000)
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.testing import linear_models
from tests.kit.exhaustive import TinyTask, tiny_task


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with blas_threads(1):
        for searcher in (BeamSearch(max_splits=2), NeuroShard(max_splits=2, improvement=Improvement(shakes=2))):
            outcomes = Counter(_outcome(searcher, tiny_task(seed)) for seed in range(count))
            listed = "; ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
            print(f"{type(searcher).__name__}, {count} tiny tasks: {listed}")


def _outcome(searcher: Searcher, tiny: TinyTask) -> str:
    """What a searcher says of a tiny task, and whether that is right."""
    try:
        task = tiny.task()
        plan = searcher.find(task, Simulator(linear_models(task.topology.num_devices))).plan
    except UserError as error:
        said = "not found within the budget" if "budget" in str(error) else "called impossible"
        return f"{said}, {'WRONGLY' if tiny.has_plan() else 'rightly'}"
    return "found" if not plan.violations and tiny.has_plan() else "BROKEN"


if __name__ == "__main__":
    main()
