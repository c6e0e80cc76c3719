"""What builds say of plans, and their files."""

import numpy as np
import pytest

from neuroshard.hardware.step_samples import PHASES, BuildTimes
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.results.comparison import Evaluated
from neuroshard.stages.search.runs.in_steps import LOOKUPS_ALONE, Build, TaskSteps, builds_in


def _built(*step_ms):
    return BuildTimes(step_ms, (sum(step_ms) / len(step_ms), *(0.0,) * (len(PHASES) - 1)), step_ms[0] / 2)


BUILDS = (
    Build((_built(10.0, 20.0, 10.0), _built(5.0, 30.0, 5.0), _built(11.0, 20.0, 10.0))),
    Build((_built(10.0, 10.0, 10.0), _built(8.0, 8.0, 9.0), _built(9.0, 9.0, 9.0))),
)


def test_plans_are_compared_turn_by_turn_within_each_build():
    entries = tuple(Evaluated(name, 3, None, None, 1.0, None) for name in ("a", "b"))
    times = TaskSteps.of(3, entries, BUILDS)
    assert times.ratios == pytest.approx(np.array([[1.0, 1.0], [0.5, 0.8]]))
    assert times.step_ms == pytest.approx([10.0, 8.0])
    assert times.floor == pytest.approx(((0.0**2 + 0.1**2) / 2 / 2) ** 0.5)
    row = times.phase_rows()[1]
    assert (row["method"], row["task"], row[PHASES[0]], row[PHASES[1]]) == ("b", 3, pytest.approx(65 / 6), 0.0)
    assert row[LOOKUPS_ALONE] == pytest.approx((2.5 + 4.0) / 2)


def test_a_failed_build_leaves_the_others_comparable():
    first, _, third = BUILDS[0].plans
    broken = (Build((first, BuildTimes(error="out of memory"), third)), BUILDS[1])
    times = TaskSteps.of(3, (), broken)
    assert times.errors == (None, "out of memory", None)
    assert np.isnan(times.step_ms).tolist() == [False, True]
    assert np.isfinite(times.floor)


def test_files_come_back_exactly(tmp_path):
    for number, build in enumerate(BUILDS):
        builds_in(tmp_path, 2, 3).keep(number, build)
    assert builds_in(tmp_path, 2, 3).read() == BUILDS
    with pytest.raises(UserError, match=r"build-0000.json is not of 2 plans; delete it"):
        builds_in(tmp_path, 2, 2).read()
