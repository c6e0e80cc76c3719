"""Search methods by name, with settings of every kind."""

import pytest

from neuroshard.errors import UserError
from neuroshard.plans.plan import assemble
from neuroshard.searching import searcher_of
from neuroshard.simulator import Simulator
from neuroshard.testing import linear_models, toy_task


def test_a_plan_is_a_setting_like_any_other():
    """Hydra must not make a config of it."""
    task = toy_task(5)
    plan = assemble(task, [(index, table.dim, 0) for index, table in enumerate(task.tables)])
    searcher = searcher_of("replan", start=plan, max_moved_bytes=0, improvement={"shakes": 1})
    assert (searcher.start, searcher.max_moved_bytes, searcher.improvement.shakes) == (plan, 0, 1)
    assert searcher.search(task, Simulator(linear_models())) == plan
    with pytest.raises(UserError, match="max_moved_bytes=-1"):
        searcher_of("replan", start=plan, max_moved_bytes=-1)
    with pytest.raises(UserError, match="start is needed"):
        searcher_of("replan", max_moved_bytes=0)
