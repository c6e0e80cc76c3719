import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from refinement import AWAY, CALLS, EXCHANGES, learner
from refinement_hardware import COLUMNS, Machine, compared, from_random, from_refinement

from neuroshard.errors import UserError
from neuroshard.hardware import EmbeddingSettings
from neuroshard.models import CostModels
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Topology
from neuroshard.testing.devices.hardware import MadeUpHardware

SEARCH = NeuroShard(3, 1, 2, GridSettings(points=3), Improvement(shakes=2), forms=("columns",))
TABLES = dlrm_like(num_tables=60, batch_size=4096, seed=0)


@pytest.fixture
def machine():
    hardware = MadeUpHardware(made_up=AWAY["tables"], noise=0.05)
    asked, unseen = (
        drawn(dlrm_like(num_tables=60, batch_size=4096, seed=seed), Topology(2, 4 << 30), 4096, TaskDraw(2, 8, 14))
        for seed in (0, 2)
    )
    refit = learner()
    quick = replace(refit, compute=replace(refit.compute, epochs=2))
    return Machine(CostModels.load("cpu"), "cpu", hardware, asked, unseen, CALLS, EXCHANGES, quick, SEARCH)


@pytest.fixture
def collected(machine, tmp_path):
    data = tmp_path / "data"
    Collect(TABLES, machine.hardware, CALLS, EXCHANGES, 45, 0, 5, (4096,), 0, str(data)).run()
    return data


def test_both_ways_are_compared(machine, collected, tmp_path):
    budgets = (20, 40, 60)
    learned = [*from_random(machine, collected, budgets), *from_refinement(machine, budgets, tmp_path / "out")]
    rows = list(compared(machine, learned, passes=2))
    first = [row.strip("| ").split(" | ")[:2] for row in rows]
    random, refined = ([[str(budget), name] for budget in budgets] for name in ("random", "refined"))
    assert first == [["0", "as they were"], *random[:2], *refined]  # 45 samples are there
    assert all(len(row.strip("| ").split(" | ")) == len(COLUMNS) for row in rows)
    assert rows[0].endswith("| +0.0% ± 0.0% |")
    wrong = float(rows[0].split("|")[3].strip().rstrip("%"))
    assert all(float(row.split("|")[3].strip().rstrip("%")) < wrong for row in rows[1:])


def test_data_of_other_kernels_are_refused(machine, collected):
    other = replace(machine, hardware=replace(machine.hardware, embedding=EmbeddingSettings("rowwise_adagrad")))
    with pytest.raises(UserError, match=r"hardware\.embedding\.optimizer=sgd, not rowwise_adagrad"):
        list(from_random(other, collected, (20,)))
    halves = tuple(replace(task, tables=tuple(map(_in_half_precision, task.tables))) for task in machine.asked)
    with pytest.raises(UserError, match=r"tables\.bytes_per_element=4, not 2"):
        list(from_random(replace(machine, asked=halves), collected, (20,)))


def _in_half_precision(table):
    return replace(table, bytes_per_element=2)
