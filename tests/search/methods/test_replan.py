"""Replan: few moved bytes, no higher cost, and refusals."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import neuroshard as ns
from neuroshard import Constraints, CostModels, Found, Plan, Searcher, Simulator, TableRule, Task, Topology
from neuroshard.plans.moves import moved_between, moved_bytes, table_changes
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.acceptance import Acceptance, choose
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.tables.sources.criteo import criteo
from neuroshard.testing import OpaqueCompute, SearcherConformance, linear_models, random_models, toy_task
from neuroshard.testing.toys import LinearComm, LinearCompute
from neuroshard.words.form import FORMS, Form
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.searches import H100, ms_of, uncertain
from tests.kit.tasks import hot_table

FEW = Improvement(perturbations=5)


class _FromRandom(Searcher):
    """Replans a random plan."""

    def find(self, task, simulator):
        return Replan(Random().find(task, simulator).plan, improvement=FEW).find(task, simulator)


class TestReplan(SearcherConformance):
    def make(self):
        return _FromRandom()


def _started(compute, **settings):
    task, simulator = toy_task(14), Simulator(replace(linear_models(), compute=compute))
    start = Random(0).find(task, simulator).plan
    plan = Replan(start, improvement=FEW, acceptance=None, **settings).find(task, simulator).plan
    return start, plan, ms_of(plan, simulator)


@pytest.mark.parametrize(("compute", "known"), [(LinearCompute(), 0.99), (OpaqueCompute(), 0.94)])
def test_replan_finds_cheaper_plans_if_more_bytes_may_move(compute, known):
    """A sum model in place of an opaque model is fitted at the start plan, and is less accurate for other plans."""
    total, after = toy_task(14).size_bytes, []
    for limit in (0, total // 20, total // 5, None):
        start, plan, cost_ms = _started(compute, max_moved_bytes=limit)
        assert limit is None or moved_between(start, plan).sum() <= limit
        assert limit != 0 or plan == start
        after.append(cost_ms)
    assert after[0] > after[1] > after[3]
    assert after[2] >= after[3] * known


def test_models_that_do_not_know_a_sharding_type_of_the_plan_are_refused():
    task = toy_task(3)
    for where, form in ((range(4), "row_wise"), (DATA_PARALLEL, "data_parallel")):
        with refused("plan-sharding-type-unsupported", where="plan", names=["'toy0'", form, "column_wise"]):
            Replan(laid_out(task, where, 0, 0)).find(task, Simulator(linear_models()))
    with refused("unknown-name", names=["'copy'"]):
        Replan(laid_out(task, DATA_PARALLEL, 0, 0), sharding_types=("copy",))


def test_replan_accepts_a_start_file_of_another_load(tmp_path):
    task, simulator = toy_task(10), Simulator(random_models())
    Random().find(task, simulator).plan.save(tmp_path / "plan.json")
    busier = replace(task, tables=(replace(task.tables[0], pooling_factor=99.0), *task.tables[1:]))
    plan = ns.search(busier, simulator, searcher="replan", start=str(tmp_path / "plan.json"))
    assert plan.task == busier


def test_replan_remark_names_the_cost_and_the_moved_bytes_that_explain_shows():
    """Moved bytes are weights and optimizer state."""
    task, simulator = replace(toy_task(10), memory=ns.MemoryUse("adam")), Simulator(random_models())
    start = Random().find(task, simulator).plan
    found = Replan(start, improvement=FEW).find(task, simulator)
    shown = readable_bytes(sum(move.size_bytes for move in table_changes(start, found.plan)))
    assert shown != readable_bytes(0)
    assert shown in found.remark
    assert f"{ms_of(found.plan, simulator):.2f} ms" in found.remark


def test_replan_refuses_starting_plans_of_other_tables():
    start = Random().find(toy_task(6), Simulator(linear_models())).plan
    with refused("replan-start-other-tables", names=["6 tables", "'toy6'", "searcher=neuroshard"]):
        Replan(start).find(replace(toy_task(6), tables=toy_task(12).tables[6:]), Simulator(linear_models()))


def _where(plan):
    """Return (device, columns) of each shard of each table, by name."""
    found = {table.name: [] for table in plan.task.tables}
    for placed in sorted(plan.placements):
        found[plan.task.tables[placed.shard.table].name].append((placed.device, placed.shard.dim))
    return found


def test_unaffected_tables_stay_if_tables_or_devices_change():
    """Only forced moves are made, because no other move gains enough."""
    task, few = toy_task(8), {"improvement": FEW, "min_gain": 1e9}
    simulator, start = Simulator(linear_models()), Random().find(task, Simulator(linear_models())).plan
    extra = replace(toy_task(9).tables[8], name="new")
    changed = replace(task, tables=(extra, *task.tables[:0:-1]))  # one came, one went, in another order
    searcher = Replan(start, **few)
    found, before = searcher.find(changed, simulator), _where(start)
    assert {name: places for name, places in _where(found.plan).items() if name != "new"} == {
        name: places for name, places in before.items() if name != "toy0"
    }
    assert all(one in found.remark for one in ("(new)", "(toy0)", "0 bytes"))
    two = replace(task, topology=Topology(2, 1 << 30))
    of_two = Simulator(linear_models(2))
    gone = sum(task.tables[p.shard.table].with_dim(p.shard.dim).size_bytes for p in start.placements if p.device > 1)
    found = Replan(start, gone, **few).find(two, of_two)
    stayed = {name: places for name, places in before.items() if places[-1][0] < 2}
    assert 0 < len(stayed) < 8
    assert stayed.items() <= _where(found.plan).items()
    assert "4 -> 2 devices" in found.remark
    _, forced = found.remark.split("; ", 1)
    assert readable_bytes(gone) in forced
    assert f"{ms_of(found.plan, of_two):.2f} ms" in forced
    with refused("replan-moves-exceed-limit", names=["max_moved_bytes", gone - 1, gone]):
        Replan(start, gone - 1, **few).find(two, of_two)


OTHERS = {"rows": {"rows": 300}, "data type": {"bytes_per_element": 2}, "lookups": {"pooling_factor": 50.0}}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_replan_keeps_changed_tables_in_place_and_counts_their_bytes_if_moved(other):
    """Changed tables stay, the remark has the cost of the step with them, and their bytes count if they move."""
    task, simulator = toy_task(8), Simulator(linear_models())
    start = Random().find(task, simulator).plan
    changed = replace(task, tables=(replace(task.tables[0], **other), *task.tables[1:]))
    found = Replan(start, improvement=FEW, min_gain=1.0).find(changed, simulator)
    assert _where(found.plan) == _where(start)
    assert "toy0: " in found.remark
    assert f"{ms_of(found.plan, simulator):.2f} -> {ms_of(found.plan, simulator):.2f} ms" in found.remark
    (device,) = {device for device, _ in _where(start)["toy0"]}
    elsewhere = Constraints((TableRule("toy0", devices=((device + 1) % 4,)),))
    moved = Replan(start, improvement=FEW, min_gain=1.0).find(replace(changed, constraints=elsewhere), simulator)
    as_now = changed.tables[0].bytes_per_element * changed.tables[0].dim
    assert moved_bytes(start, moved.plan) == min(task.tables[0].rows, changed.tables[0].rows) * as_now
    assert readable_bytes(moved_bytes(start, moved.plan)) in moved.remark


def test_replan_with_min_gain_1_returns_the_start_without_searching():
    task, simulator = toy_task(14), Simulator(linear_models())
    start = Random().find(task, simulator).plan
    never = Replan(start, min_gain=1.0, improvement=None, rest=None)
    assert never.find(task, simulator).plan == start


def test_moves_forced_by_limits_ignore_the_gain():
    task, simulator = toy_task(6), Simulator(linear_models())
    start = Random().find(task, simulator).plan
    first = start.placements[0]
    rule = Constraints((TableRule(task.tables[first.shard.table].name, devices=((first.device + 1) % 4,)),))
    tight = replace(task, topology=Topology(4, max(start.device_bytes) - 1))
    for other in (replace(task, constraints=rule), tight):
        assert Plan(other, start.placements).violations
        plan = Replan(start, improvement=FEW, min_gain=1e9).find(other, simulator).plan
        assert plan.violations == ()
        assert 0 < moved_between(start, plan).sum() < task.size_bytes / 2


def test_moves_that_save_less_than_the_min_gain_are_not_made():
    task, simulator = toy_task(14), Simulator(linear_models())
    start = Random().find(task, simulator).plan
    plans = [Replan(start, improvement=FEW, min_gain=0.0).find(task, simulator).plan]
    gain = 1 - ms_of(plans[0], simulator) / ms_of(start, simulator)
    plans += [Replan(start, improvement=FEW, min_gain=gain + off).find(task, simulator).plan for off in (-1e-6, 1e-6)]
    assert plans[0] == plans[1] != start
    assert plans[2] == start
    found = NeuroShard(improvement=FEW).find(task, simulator).plan
    assert Replan(found).find(task, simulator).plan == found
    with refused("value-outside-limits", names=["min_gain", -1]):
        Replan(start, min_gain=-1)


def test_replan_refuses_invalid_max_moved_bytes():
    task, simulator = toy_task(6), Simulator(linear_models())
    start = Random().find(task, simulator).plan
    with refused("value-outside-limits", names=["max_moved_bytes", -1]):
        Replan(start, -1)
    with refused("size-unreadable", names=["max_moved_bytes", "'much'"]):
        Replan(start, "much")
    free, limited = (Replan(start, limit, FEW).find(task, simulator).plan for limit in (None, "1000 PiB"))
    assert free == limited


def test_replan_remark_shows_a_cost_of_0_ms():
    free = CostModels(LinearCompute(0.0, 0.0), LinearComm(4, 0.0), LinearComm(4, 0.0), 256)
    task, simulator = toy_task(4), Simulator(free)
    replan = Replan(Random().find(task, simulator).plan)
    assert "0.00 -> 0.00 ms" in replan.find(task, simulator).remark


BATCH = 65536
KEEP = {"sharding_types": (), "improvement": FEW}


def _criteo(count=16, **fields):
    return Task(criteo()[:count], Topology(4, "80GiB", devices_per_host=2), BATCH, **fields)


def _mixed(task):
    """Two row-wise tables on all devices, one on the first host, four data-parallel; the rest on the last device."""
    others = {0: range(4), 9: range(4), 2: [0, 1]} | dict.fromkeys((4, 5, 7, 8), DATA_PARALLEL)
    return laid_out(task, *(others.get(i, 3) for i in range(len(task.tables))))


def _others(plan):
    return sorted(p for p in plan.placements if plan.forms[p.shard.table] is not Form.COLUMN_WISE)


class _FromForms(Searcher):
    """Replans a plan of all sharding types that the models know, with few bytes to move."""

    def find(self, task, simulator):
        start = NeuroShard(improvement=Improvement(perturbations=0), acceptance=None).find(task, simulator).plan
        return Replan(start, task.size_bytes // 10, FEW).find(task, simulator)


class TestReplanOfForms(SearcherConformance):
    most_tasks = 3

    def make(self):
        return _FromForms()


@pytest.mark.slow
class TestReplanOfFormsInFull(TestReplanOfForms):
    most_tasks = SearcherConformance.most_tasks


@pytest.mark.parametrize("use", [ns.MemoryUse(), ns.MemoryUse("rowwise_adagrad", batches_in_flight=1)])
def test_column_wise_tables_move_while_row_wise_and_data_parallel_tables_stay(use):
    task = _criteo(memory=use)
    start = _mixed(task)
    settings = {**KEEP, "improvement": Improvement(perturbations=20)}
    found = {most: Replan(start, most, **settings).find(task, H100).plan for most in (0, 10**8, 10**10, None)}
    for most, plan in found.items():
        assert plan.forms == start.forms
        assert _others(plan) == _others(start)
        assert plan.violations == ()
        moved = moved_between(start, plan).tolist()
        assert most is None or sum(moved) <= most
        assert {plan.forms[table] for table in np.flatnonzero(moved)} <= {Form.COLUMN_WISE}
        assert sum(move.size_bytes for move in table_changes(start, plan)) == sum(moved)
    costs = [ms_of(plan) for plan in found.values()]
    assert costs[0] == pytest.approx(ms_of(start))
    assert max(costs[1:]) < 0.9 * costs[0]
    assert max(costs[2:]) < 1.01 * costs[1]


def test_replan_moves_column_wise_tables_off_the_host_of_a_hot_row_wise_table():
    """The rows of the hot table load the first host, so column-wise tables are spread over the second host."""
    narrow = (hot_table(f"narrow{i}", 1_000_000, 16, 40) for i in range(12))
    tables = (hot_table("hot", 10_000_000, 64, 300), *narrow)
    task = Task(tables, Topology(4, "80GiB", devices_per_host=2), BATCH)
    start, evenly = (laid_out(task, [0, 1], *devices) for devices in ([2] * 12, [1, 2, 3, 0] * 3))
    plan = Replan(start, **KEEP).find(task, H100).plan
    assert plan.forms == start.forms
    assert ms_of(plan) < ms_of(evenly)
    assert sum(plan.device_dims[2:]) > 3 * sum(plan.device_dims[:2])


def test_tables_change_their_sharding_type_if_that_helps_and_moves_bytes_within_the_limit():
    task = replace(_criteo(), topology=Topology(4, "80GiB"))
    start = NeuroShard(sharding_types=("column_wise",), improvement=FEW).find(task, H100).plan
    best = ms_of(NeuroShard(improvement=FEW).find(task, H100).plan)
    costs = []
    for most in (0, 10**8, None):
        found = Replan(start, most, FEW, acceptance=None).find(task, H100)
        plan = found.plan
        assert plan.violations == ()
        assert most is None or moved_between(start, plan).sum() <= most
        changed = sum(one is not other for one, other in zip(start.forms, plan.forms, strict=True))
        assert (f"{changed} of 16 tables" in found.remark) == (changed > 0)
        costs.append((ms_of(plan), changed))
    assert costs[0] == (pytest.approx(ms_of(start)), 0)
    assert costs[1][1] > 0
    assert costs[1][0] < 0.98 * costs[0][0]
    assert costs[2][0] < 1.02 * best


@pytest.mark.parametrize("relative", [0.001, 0.5])
@pytest.mark.parametrize("types", [(), FORMS])
def test_replan_accepts_the_gains_that_the_default_search_accepts(relative, types):
    """With and without changes of sharding types, replan rejects the gains that the default search rejects."""
    task, simulator = replace(_criteo(), topology=Topology(4, "80GiB")), uncertain(H100, relative)
    start = laid_out(task, *(i % 4 for i in range(16)))
    found = Replan(start, improvement=FEW, sharding_types=types).find(task, simulator)
    taken = Replan(start, improvement=FEW, sharding_types=types, acceptance=None).find(task, simulator).plan
    assert ms_of(taken, simulator) < 0.97 * ms_of(start, simulator)
    acceptance = Acceptance()
    if taken.forms != start.forms:
        acceptance = acceptance.of_forms(simulator.models)
    (chosen, rejected) = choose(acceptance.assess(simulator.costs(task, [start, taken]), task, simulator))
    assert (found.plan, found.rejected) == ((taken, None) if chosen else (start, taken))
    assert (chosen, rejected) == ((1, None) if relative < 0.5 else (0, 1))


def test_tables_keep_their_types_and_numbers_of_shards_if_asked():
    """Without `keep_types`, a warning names the tables whose optimizer state checkpoints lose."""
    task = replace(_criteo(), topology=Topology(4, "80GiB"), memory=ns.MemoryUse("rowwise_adagrad"))
    start = laid_out(task, range(4), {0: 64, 1: 64}, DATA_PARALLEL, *[0] * 13)
    free, held = (Replan(start, improvement=FEW, keep_types=keep).find(task, H100) for keep in (False, True))
    assert free.plan.forms != start.forms
    assert (free.warning.code, free.warning.where) == ("checkpoint-state-lost", "checkpoints")
    assert held.warning is None
    assert held.plan.forms == start.forms
    assert [len(its) for its in held.plan.by_table] == [len(its) for its in start.by_table]
    assert held.plan.task == task
    assert ms_of(held.plan) < ms_of(start)


def test_replan_makes_expensive_data_parallel_tables_column_wise_without_moves():
    task = _criteo(12)
    start = laid_out(task, *[DATA_PARALLEL] * 12)
    plan = Replan(start, 0, FEW).find(task, H100).plan
    assert moved_between(start, plan).sum() == 0
    assert Form.COLUMN_WISE in plan.forms
    assert ms_of(plan) < 0.8 * ms_of(start)
    assert Replan(start, sharding_types=(), improvement=FEW).find(task, H100).plan == start


def test_replan_makes_a_row_wise_table_column_wise_if_moved_bytes_allow():
    task = _criteo(10)
    start = laid_out(task, range(4), *(i % 4 for i in range(1, 10)))
    within = task.tables[0].size_bytes // 2
    plans = [Replan(start, most, FEW, sharding_types=("column_wise",)).find(task, H100).plan for most in (within, None)]
    assert [plan.forms[0] for plan in plans] == [Form.ROW_WISE, Form.COLUMN_WISE]
    assert moved_between(start, plans[0]).sum() <= within


def test_replan_keeps_a_column_wise_table_apart_from_rows_of_a_host():
    task = _criteo(10, constraints=Constraints(apart=(("criteo_1", "criteo_2"),)))
    start = laid_out(task, 3, [0, 1], *[3] * 8)
    assert start.violations == ()
    plan = Replan(start, improvement=FEW).find(task, H100).plan
    assert plan.violations == ()
    assert ms_of(plan) < ms_of(start)
    assert plan.forms[1] is Form.ROW_WISE


@pytest.mark.parametrize(
    ("gain", "costs", "chosen"), [(0.2, (10, 9.2, 7.9), 2), (0.2, (10, 9.2, 8.1), 0), (0.05, (10, 9.2, 9), 1)]
)
def test_replan_takes_the_plan_whose_further_moves_gain_min_gain(gain, costs, chosen):
    task = toy_task(3, num_devices=2)
    found = [Found(laid_out(task, *(int(t < moved) for t in range(3)))) for moved in range(3)]
    start, predicted = found[0].plan, [SimpleNamespace(total_ms=ms) for ms in costs]
    assert Replan(start, min_gain=gain)._worth_it(start, found, predicted) is found[chosen]
