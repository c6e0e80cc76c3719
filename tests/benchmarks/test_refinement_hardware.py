import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from refinement import AWAY, CALLS, EXCHANGES, learner
from refinement_hardware import COLUMNS, Judged, Machine, Measured, _contents_of, compared, from_random, from_refinement

from neuroshard.errors import UserError
from neuroshard.hardware import EmbeddingSettings
from neuroshard.hardware.plan_samples import kernel_calls
from neuroshard.models import CostModels
from neuroshard.records.asked import loads_of
from neuroshard.refine.choose import content_key
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Topology
from neuroshard.testing.devices.hardware import MadeUpHardware, SlowerBy
from neuroshard.timing import TimingProtocol

SEARCH = NeuroShard(3, 1, 2, GridSettings(points=3), Improvement(shakes=2), forms=("columns",))
TABLES = dlrm_like(num_tables=60, batch_size=4096, seed=0)


@pytest.fixture
def machine():
    hardware = MadeUpHardware(made_up=AWAY["tables"], noise=0.05)
    asked, other = (
        drawn(dlrm_like(num_tables=60, batch_size=4096, seed=seed), Topology(2, 4 << 30), 4096, TaskDraw(2, 8, 14))
        for seed in (0, 2)
    )
    refit = learner()
    quick = replace(refit, compute=replace(refit.compute, epochs=2))
    return Machine(CostModels.load("cpu"), "cpu", hardware, asked, other, CALLS, EXCHANGES, quick, SEARCH)


@pytest.fixture
def collected(machine, tmp_path):
    data = tmp_path / "data"
    Collect(TABLES, machine.hardware, CALLS, EXCHANGES, 45, 0, 5, (4096,), 0, str(data)).run()
    return data


def test_both_ways_are_compared(machine, collected, tmp_path):
    budgets = (20, 40, 60)
    learned = [*from_random(machine, collected, budgets), *from_refinement(machine, budgets, tmp_path / "out")]
    rows = [row.strip("| ").split(" | ") for row in compared(machine, learned, passes=2, known=set())]
    random, refined = ([[str(budget), name] for budget in budgets] for name in ("random", "refined"))
    models = [["0", "as they were"], *random[:2], *refined]  # 45 samples are there
    assert [row[:3] for row in rows] == [[*one, group] for group in ("asked", "other") for one in models]
    assert all(len(row) == len(COLUMNS) for row in rows)
    for group in (rows[: len(models)], rows[len(models) :]):
        assert len({row[3] for row in group}) == 1  # all are judged by the same contents
        assert group[0][-1] == "+0.0% ± 0.0%"
        wrong, *errors = (float(row[4].rstrip("%")) for row in group)
        assert max(errors) < wrong


def test_contents_that_refinement_measured_do_not_judge(machine):
    plans = Judged.of(machine, machine.start, machine.asked).plans
    known = {content_key(call) for plan in plans for (call,) in kernel_calls(plan)}
    refused = compared(machine, [], 2, known)
    with pytest.raises(UserError, match="refinement measured everything that plans for the asked tasks hold"):
        next(refused)
    rows = [row.split(" | ") for row in compared(machine, [], 2, set(list(known)[:1]))]
    assert [int(row[3]) for row in rows] == [len(known) - 1, 4]


def test_batches_are_brought_to_one_speed(machine):
    contents = _contents_of([Judged.of(machine, machine.start, machine.asked + machine.other)])
    factor = iter([1.0, 1.4, 1.2, 0.9, 1.1, 1.3])  # of every batch

    class Moody(MadeUpHardware):
        def compute_meter(self, warn):
            return SlowerBy(super().compute_meter(warn), factor)

    hardware = Moody(made_up=AWAY["tables"], noise=1e-3, compute_timing=TimingProtocol(live=12))
    measured = Measured.of(hardware, contents, 3)
    assert np.ptp(np.log(measured.raw), axis=0).min() > 0.1
    assert np.ptp(np.log(measured.level), axis=0).max() < 0.02
    true = hardware.made_up.truth.compute.predict(loads_of(contents))
    assert np.ptp(np.log(measured.level / true)) < 0.02


def test_data_of_other_kernels_are_refused(machine, collected):
    other = replace(machine, hardware=replace(machine.hardware, embedding=EmbeddingSettings("rowwise_adagrad")))
    with pytest.raises(UserError, match=r"hardware\.embedding\.optimizer=sgd, not rowwise_adagrad"):
        list(from_random(other, collected, (20,)))
    halves = tuple(replace(task, tables=tuple(map(_in_half_precision, task.tables))) for task in machine.asked)
    with pytest.raises(UserError, match=r"tables\.bytes_per_element=4, not 2"):
        list(from_random(replace(machine, asked=halves), collected, (20,)))


def _in_half_precision(table):
    return replace(table, bytes_per_element=2)
