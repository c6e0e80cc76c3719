"""Run the searcher of a run on one task, and measure the search time."""

import time

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.evaluate.candidate_plan_files import Searched
from neuroshard.tasks.task import Task


def search_task(searcher: Searcher, task: Task, simulator: Simulator, candidate_plans: int = 0) -> Searched:
    """Search for a plan of a task, and for up to `candidate_plans` candidate plans. Return the plans with the search
    time. If no plan is found, the result contains the InfeasibleError in place of plans, and no error is raised.
    """
    start = time.perf_counter()
    try:
        found = find_plan(searcher, task, simulator)
    except InfeasibleError as error:
        return Searched(error, time.perf_counter() - start)
    count = candidate_plans
    plans = searcher.candidate_plans(found.plan, simulator, count) if count > 1 else (found.plan,) * count
    return Searched(found, time.perf_counter() - start, tuple(map(simulator.predicted, plans)))
