"""Row-wise and data-parallel tables in the default search: when they are chosen, limits, and errors."""

import re
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from neuroshard import CostModels, InfeasibleError, MemoryUse, Plan, Simulator, Table, Task, Topology, search
from neuroshard.layouts import place_column_wise, place_data_parallel, place_row_wise
from neuroshard.models.kernels import KernelModels
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts
from neuroshard.stages.search.methods.acceptance import Acceptance, rejected_remark
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.options.option_table import OptionTable
from neuroshard.stages.search.options.sharding_types import allowed_types
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.sources.criteo import criteo
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.testing import constrained_task, linear_models, sequence_task, toy_task
from neuroshard.torchrec import to_sharding_plan
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, FORMS, Call, Form
from tests.kit.messages import refused
from tests.kit.random_models import random_form_models
from tests.kit.searches import H100, best_ms, found, ms_of, uncertain
from tests.kit.tasks import hot_table, plain_task

COLUMN_WISE, ROW_WISE, DATA_PARALLEL = map(FORMS.index, ("column_wise", "row_wise", "data_parallel"))
BATCH = 65536
QUICKLY = Improvement(perturbations=20)
ALL = NeuroShard(improvement=QUICKLY, acceptance=None)  # datasheets have no margins: many a gain is left otherwise
ALONE = replace(ALL, sharding_types=("column_wise",))
EXACT = replace(ALL, tolerance=0)
HUGE, VIDEOS = hot_table("huge", 5_000_000_000, 32, 1), hot_table("videos", 80_000_000, 128, 20, pooled=False)
ON_HOSTS = Topology(16, "80GiB", devices_per_host=8)


def _criteo(num_devices=8, constraints=None, count=26):
    topology = replace(ON_HOSTS, num_devices=num_devices)
    return Task(criteo()[:count], topology, BATCH, constraints=constraints or Constraints())


def _tiny(seed, memory_share=4.0, devices=2):
    rng = np.random.default_rng(seed)
    tables = tuple(
        hot_table(f"t{i}", int(10 ** rng.uniform(1, 7)), int(rng.choice([4, 8, 12])), 10 ** rng.uniform(0, 2))
        for i in range(3)
    )
    memory = max(1, int(memory_share * sum(table.size_bytes for table in tables)))
    return Task(tables, Topology(devices, memory), BATCH)


def _tiny_on_three(seed):
    return _tiny(seed, devices=3)


def _tiny_sequences(seed):
    """Row-wise, one device would still compute all lookups of the first table."""
    first, *others = (replace(table, pooled=False) for table in _tiny(seed).tables)
    return replace(_tiny(seed), tables=(replace(first, row_lookups=(1.0, 0.0)), *others))


def _tiny_of_two_types(seed):
    tables = (replace(table, bytes_per_element=4 if i else 2) for i, table in enumerate(_tiny(seed).tables))
    return replace(_tiny(seed), tables=tuple(tables))


def _layouts(task):
    """Yield all layouts of each table: row-wise; if pooled, data-parallel and any column split, else equal splits."""
    devices = task.topology.num_devices
    for index, table in enumerate(task.tables):
        splits = product(range(table.dim // 4 + 1), repeat=devices)
        cuts = [[(index, 4 * units, d) for d, units in enumerate(split) if units] for split in splits]
        whole = [cut for cut in cuts if sum(dim for _, dim, _ in cut) == table.dim]
        columns = [
            place_column_wise(task, cut) for cut in whole if table.pooled or len({dim for _, dim, _ in cut}) == 1
        ]
        yield [
            *columns,
            place_row_wise(task, index, range(devices)),
            *([place_data_parallel(task, index)] if table.pooled else []),
        ]


@pytest.mark.parametrize(
    ("task_of", "seeds", "forms"),
    [
        (_tiny, (*range(5), 74), {*Form}),  # all row-wise there, which estimates pass over
        pytest.param(_tiny, (*range(12), 74), {*Form}, marks=pytest.mark.slow),
        (_tiny_on_three, range(3), {*Form}),
        pytest.param(_tiny_on_three, range(6), {*Form}, marks=pytest.mark.slow),
        (_tiny_sequences, range(11), {Form.COLUMN_WISE, Form.ROW_WISE}),
        pytest.param(_tiny_of_two_types, range(8), {*Form}, marks=pytest.mark.slow),
    ],
)
def test_plans_of_tiny_tasks_are_the_best_of_all_sharding_types(task_of, seeds, forms):
    gaps, gains, seen = [], [], set()
    for task in map(task_of, seeds):
        plan = found(EXACT, task)
        gaps.append(ms_of(plan) / best_ms(task, _layouts(task)) - 1)
        gains.append(1 - ms_of(plan) / ms_of(found(ALONE, task)))
        seen |= set(plan.forms)
    assert max(gaps) < 1e-4  # searched in single precision
    assert min(gains) >= 0
    assert max(gains) > 0.1
    assert seen == forms


def test_search_places_one_data_type_per_device_if_kernel_calls_are_expensive():
    tables = tuple(replace(hot_table(f"t{i}", 1000, 16, 1), bytes_per_element=4 - 2 * (i % 2)) for i in range(12))
    task = Task(tables, Topology(2, 1 << 30), BATCH)
    plan = found(ALONE, task)
    for device in range(2):
        assert len({tables[p.shard.table].bytes_per_element for p in plan.placements if p.device == device}) == 1
    mixed = Plan(task, tuple(place_column_wise(task, [(i, 16, i // 2 % 2) for i in range(12)])))
    assert ms_of(plan) < 0.8 * ms_of(mixed)


@pytest.mark.parametrize("share", [0.52, pytest.param(0.7, marks=pytest.mark.slow)])
def test_search_finds_a_plan_in_tight_memory_if_any_sharding_type_has_one(share):
    """The two devices have hardly more memory than all tables need; a plan is found if any sharding types have one."""
    best_found = 0
    for seed in range(8):
        task = _tiny(seed, share)
        least_ms = best_ms(task, _layouts(task))
        if np.isinf(least_ms):
            with pytest.raises(InfeasibleError):
                ALL.find(task, H100)
        else:
            best_found += ms_of(found(ALL, task)) < least_ms * (1 + 1e-4)
    assert best_found >= 6


def test_small_tables_of_the_mlperf_workload_are_data_parallel():
    task = _criteo(8)
    plan, alone = found(ALL, task), found(ALONE, task)
    assert ms_of(plan) < 0.92 * ms_of(alone)
    copied = [table.rows for table, form in zip(task.tables, plan.forms, strict=True) if form is Form.DATA_PARALLEL]
    assert len(copied) >= 5
    assert max(copied) < 50_000
    assert set(alone.forms) == {Form.COLUMN_WISE}


def test_search_makes_a_narrow_hot_table_row_wise():
    """A table of 8 columns can be split over 2 devices, its rows over all."""
    task = Task((hot_table("hot", 10_000_000, 8, 200), *criteo()[:8]), ON_HOSTS, BATCH)
    plan = ALL.find(task, H100).plan
    assert plan.forms[0] is Form.ROW_WISE
    assert ms_of(plan) < 0.7 * ms_of(ALONE.find(task, H100).plan)


def test_row_wise_saves_less_if_one_block_has_all_lookups():
    """If one block has all lookups, its device has as many as with a column-wise table: only exchanges are cheaper."""
    spread = hot_table("hot", 10_000_000, 8, 200)
    hot = [replace(spread, row_lookups=tuple(np.eye(16)[block])) for block in (0, 15)]
    tasks = [Task((table, *criteo()[:8]), Topology(16, "80GiB"), BATCH) for table in (spread, *hot)]
    plans = [found(ALL, task) for task in tasks]
    assert {plan.forms[0] for plan in plans} == {Form.ROW_WISE}
    saved = [1 - ms_of(plan) / ms_of(found(ALONE, task)) for task, plan in zip(tasks, plans, strict=True)]
    assert saved[0] > 0.4
    assert saved[1:] == pytest.approx([0.147, 0.147], abs=0.02)


@pytest.mark.parametrize(
    ("table", "topology", "memory", "names"),
    [
        (HUGE, ON_HOSTS, MemoryUse("rowwise_adagrad", 1), ["'huge'", "93.1 GiB", "4 columns"]),
        (VIDEOS, Topology(8, "16GiB"), MemoryUse(), ["'videos'", "19.1 GiB", "64 columns"]),
    ],
    ids=["pooled", "sequence"],
)
def test_a_table_that_fits_with_no_column_split_is_row_wise(table, topology, memory, names):
    """Column shards exceed a device because of optimizer state, or because a sequence table can only be halved."""
    task = Task((table, *criteo()[:3]), topology, BATCH, memory)
    with refused("table-exceeds-device", names=names, kind=InfeasibleError):
        ALONE.find(task, H100)
    plan = found(ALL, task)
    assert plan.forms[0] is Form.ROW_WISE
    exported = to_sharding_plan(plan, "ebc").plan["ebc"][table.name]
    assert exported.sharding_type == "row_wise"
    assert exported.ranks == list(range(topology.num_devices))


def test_tables_that_do_not_pack_column_wise_are_row_wise():
    """Three tables of 4 columns on two devices with memory for 1.5 tables each."""
    tables = tuple(hot_table(f"t{i}", 1_000_000, 4, 1) for i in range(3))
    task = Task(tables, Topology(2, int(tables[0].size_bytes * 1.5)), BATCH)
    with refused("plan-not-found", kind=InfeasibleError):
        ALONE.find(task, H100)
    assert Form.ROW_WISE in found(ALL, task).forms


def _forms(task):
    return dict(zip((table.name for table in task.tables), found(ALL, task).forms, strict=True))


def test_constraints_of_every_kind_are_kept():
    kept = 0
    for seed in range(12):
        with suppress(InfeasibleError):
            found(ALL, constrained_task(seed))
            kept += 1
    assert kept > 6


TOGETHER = Constraints(together=(("criteo_8", "criteo_12"),))


@pytest.mark.parametrize(
    ("constraints", "forms"),
    [
        (
            Constraints(),
            dict.fromkeys(("criteo_5", "criteo_7", "criteo_13", "criteo_15", "criteo_16"), Form.DATA_PARALLEL),
        ),
        (Constraints((TableRule("criteo_5", devices=(1, 2)),)), {"criteo_5": Form.COLUMN_WISE}),
        (Constraints((TableRule("criteo_16", min_shards=2),)), {"criteo_16": Form.COLUMN_WISE}),
        (Constraints(pinned=(PinnedShard("criteo_7", 64, (3,)),)), {"criteo_7": Form.COLUMN_WISE}),
        (Constraints(apart=(("criteo_15", "criteo_13"),)), dict.fromkeys(("criteo_13", "criteo_15"), Form.COLUMN_WISE)),
        (TOGETHER, dict.fromkeys(("criteo_8", "criteo_12"), Form.DATA_PARALLEL)),
        *((Constraints((TableRule("criteo_1", sharding_types=(form,)),)), {"criteo_1": form}) for form in Form),
    ],
)
def test_constraints_limit_the_sharding_types_of_tables(constraints, forms):
    """Small tables are data-parallel if no rule forbids it."""
    chosen = _forms(_criteo(constraints=constraints))
    assert {name: chosen[name] for name in forms} == forms
    assert Form.DATA_PARALLEL in chosen.values()


def test_tables_kept_together_are_column_wise_if_one_of_them_must_be():
    rules = replace(TOGETHER, rules=(TableRule("criteo_8", sharding_types=("column_wise",)),))
    chosen = _forms(_criteo(constraints=rules))
    assert (chosen["criteo_8"], chosen["criteo_12"]) == (Form.COLUMN_WISE, Form.COLUMN_WISE)


def _tight(memory_bytes, num_devices, shapes, together=()):
    """Make a task with hardly more memory than tables need; tables are (rows, columns, lookups)."""
    tables = tuple(hot_table(f"t{i}", *shape, batch_size=4096) for i, shape in enumerate(shapes))
    return Task(tables, Topology(num_devices, memory_bytes), 4096, constraints=Constraints(together=together))


@pytest.mark.parametrize(
    "task",
    [
        _tight(9_170_988, 3, [(138, 8, 10.4), (469_289, 8, 3.9), (241, 4, 1.2), (381_720, 8, 3.7)]),
        _tight(1_736_583, 2, [(48, 12, 2.5), (240, 4, 11.8), (85_916, 4, 6.9), (37_013, 12, 8.7)]),
        _tight(5_864_809, 2, [(86_603, 8, 4.1), (741, 4, 24.7), (139, 4, 4.3), (194_919, 8, 2.5)]),
        _tight(50_000, 2, [(60, 8, 3.0), (90, 12, 25.0)], (("t0", "t1"),)),
    ],
)
def test_search_is_near_the_best_plan_if_estimates_underrate_column_wise_costs(task):
    """Estimates underrate column-wise tables, which do not fit or cost more, so other plans must be tried too."""
    simulator = Simulator(CostModels.load("cpu"))
    plan = found(replace(ALL, acceptance=None), task, simulator)
    assert ms_of(plan, simulator) < best_ms(task, _layouts(task), simulator) * 1.03


@pytest.mark.parametrize("form", Form)
def test_rules_on_sharding_types_hold_for_all_tables(form):
    everything = Constraints((TableRule("*", sharding_types=(form,)),))
    assert set(_forms(_criteo(count=2, constraints=everything)).values()) == {form}


def test_search_refuses_a_sharding_type_that_a_table_cannot_have():
    """Three rows don't make eight blocks."""
    task = _criteo(constraints=Constraints((TableRule("criteo_5", sharding_types=("row_wise",)),)))
    with refused("constraints-no-sharding-type", where="constraints", names=["'criteo_5'", "row_wise"]):
        ALL.find(task, H100)


class _Asked:
    """Records the number of tables in each call."""

    def __init__(self, start):
        self.start, self.asked = start, []

    def first_widths(self, space):
        self.asked.append(len(space.fixed.column_wise))
        return self.start.first_widths(space)


class _Recorded:
    """Records the tasks that it searches, and the number of column-wise tables that it places."""

    def __init__(self, searcher):
        self.searcher, self.asked = searcher, []

    def find(self, task, simulator):
        return self.found(FixedLoad.empty(task), simulator)

    def found(self, base, simulator):
        self.asked.append((base.task, len(base.column_wise)))
        return self.searcher.found(base, simulator)


def _searched_by(monkeypatch, columns, quick=None):
    """Replace the column-wise search of every default search."""
    monkeypatch.setattr(NeuroShard, "column_search", columns)
    monkeypatch.setattr(NeuroShard, "column_search_around_fixed", columns)
    monkeypatch.setattr(NeuroShard, "quick", quick or EvenLayouts())


def test_search_with_column_wise_models_runs_the_column_search_once(monkeypatch):
    task, simulator = toy_task(12), Simulator(linear_models())
    columns, quick = _Recorded(ALL.column_search), _Asked(EvenLayouts())
    expected = ALL.column_search.find(task, simulator).plan
    _searched_by(monkeypatch, columns, quick)
    assert EXACT.find(task, simulator).plan == expected
    assert len(columns.asked) == 1
    assert columns.asked[0][0] is task
    assert quick.asked == []


def test_sharding_type_trials_limit_the_number_of_placed_choices(monkeypatch):
    task, columns = _criteo(), ALL.column_search
    for tries in (0, 1, 3, 6):
        quick = _Asked(EvenLayouts())
        _searched_by(monkeypatch, columns, quick)
        replace(ALL, sharding_type_trials=tries).find(task, H100)
        assert len(quick.asked) <= tries
        assert all(0 < count <= 26 for count in quick.asked)
    assert len(quick.asked) > 2


@pytest.mark.parametrize(
    ("task", "models", "rel"),
    [
        (_criteo(16), H100.models, 2e-4),
        (sequence_task(10), H100.models, 2e-3),
        (sequence_task(10), random_form_models(), 2e-3),
    ],
    ids=["pooled", "sequences, sum", "sequences, by call"],
)
def test_choices_are_ranked_by_the_cost_of_their_plans(task, models, rel):
    """The quick cost of a choice equals the cost of a plan with the same placements."""
    start, simulator, count = EvenLayouts(), Simulator(models), len(task.tables)
    choices = OptionTable(task, simulator, allowed_types(task, CALLS), start, task)
    rng, in_rows_too = np.random.default_rng(0), 0
    for share in (0.0, 0.3, 0.7, 1.0):
        forms = np.where(rng.uniform(size=count) < share, rng.integers(1, 3, size=count), COLUMN_WISE)
        forms = np.where(choices.allowed[np.arange(count), forms], forms, COLUMN_WISE)
        in_rows_too += (forms[::2] == ROW_WISE).sum()  # of sequence tables, where there are any
        columns = ImprovedSearch((start,), Improvement(perturbations=0), max_moved_bytes=0)
        plan = columns.found(choices.fixed_load(forms), simulator).plan
        assert choices.quick_ms(forms) == pytest.approx(ms_of(plan, simulator), rel=rel)
    assert in_rows_too


def test_choices_that_exceed_memory_have_infinite_cost():
    tables = tuple(hot_table(f"t{i}", 1_000_000, 16, 1) for i in range(4))
    task = Task(tables, Topology(2, int(tables[0].size_bytes * 2.5)), BATCH)
    choices = OptionTable(task, H100, allowed_types(task, CALLS), EvenLayouts(), task)
    finite = [
        np.isfinite(choices.quick_ms(np.array(forms)))
        for forms in ([DATA_PARALLEL] * 4, [DATA_PARALLEL] * 2 + [COLUMN_WISE] * 2)
    ]
    assert finite == [False, False]
    assert np.isfinite(choices.quick_ms(np.array([ROW_WISE, ROW_WISE, COLUMN_WISE, COLUMN_WISE])))


def test_search_rejects_other_sharding_types_that_gain_less_than_the_margins():
    """Without margins every gain is accepted. With margins of half the cost, no possible gain is large enough, and the
    search tries no other types.
    """
    task = replace(_criteo(), topology=Topology(4, "80GiB"))
    for relative, forms in ((0.5, {Form.COLUMN_WISE}), (0.2, {Form.COLUMN_WISE}), (0.0, {*Form})):
        its = replace(ALL, acceptance=Acceptance()).find(task, uncertain(H100, relative))
        assert set(its.plan.forms) == forms
        assert (its.rejected is not None) == (relative == 0.2)
        assert its.rejected is None or its.rejected.task == task
        assert ("no other sharding types" in (its.remark or "")) == (relative == 0.5)


def test_without_trials_tables_are_column_wise_if_they_fit():
    task = _criteo()
    assert replace(ALL, sharding_type_trials=0).find(task, H100).plan == ALONE.find(task, H100).plan


def test_sharding_types_are_chosen_by_a_setting():
    task = _tiny(5)
    for forms in (["column_wise"], ["column_wise", "row_wise"], ["column_wise", "data_parallel"]):
        plan = search(task, H100, sharding_types=forms, improvement={"perturbations": 5})
        assert set(plan.forms) <= {Form(form) for form in forms}
    with refused("searcher-types-not-column-wise", where="searcher", names=["['row_wise']"]):
        NeuroShard(sharding_types=("row_wise",))
    with refused("unknown-name", names=["'copy'"]):
        NeuroShard(sharding_types=("column_wise", "copy"))


def test_sequence_tables_stay_column_wise_if_models_do_not_know_row_wise_ones():
    compute = random_form_models().compute
    known = {
        call: compute.by_call[call] for call in (COLUMN_WISE_CALL, Call(Form.ROW_WISE), Call(Form.COLUMN_WISE, False))
    }
    simulator = Simulator(replace(random_form_models(), compute=KernelModels(known)))
    for seed in range(4):
        plan = ALL.find(sequence_task(6, 2, seed), simulator).plan
        of_sequences = {form for form, table in zip(plan.forms, plan.task.tables, strict=True) if not table.pooled}
        assert of_sequences == {Form.COLUMN_WISE}


@pytest.mark.parametrize("searcher", ["neuroshard", "torchrec_all_types"])
@pytest.mark.parametrize(
    ("rows", "devices", "rule", "numbers"),
    [
        (5, 4, {}, [5, 4]),
        (900, 4, {"devices": (0, 1)}, [2, 4]),
        (900, 1, {}, []),
        (900, 4, {"min_blocks": 9}, [9, 4, 4]),
        (900, 4, {"max_shards": 2}, [2, 4, 4]),
    ],
)
def test_error_names_the_table_without_an_allowed_sharding_type(searcher, rows, devices, rule, numbers):
    """The error has the reason: the rows or shards of the table, and the number of devices."""
    rules = Constraints((TableRule("t0", sharding_types=("row_wise",), **rule),))
    task = plain_task([32, 64], [rows, 100], devices=devices, constraints=rules)
    with refused("constraints-no-sharding-type", where="constraints", names=["'t0'"]) as caught:
        search(task, H100, searcher)
    assert caught.value.message.limit.startswith("row_wise: ")
    assert list(map(int, re.findall(r"\d+", caught.value.message.limit))) == numbers


@pytest.mark.parametrize(
    ("searcher", "simulator", "forms"),
    [
        ("neuroshard", H100, ["column_wise", "data_parallel"]),
        ("torchrec_all_types", H100, ["column_wise", "data_parallel"]),
        ("torchrec", H100, ["column_wise"]),
        ("neuroshard", Simulator(linear_models(4)), FORMS),
    ],
)
def test_the_setting_that_leaves_out_the_only_sharding_type_of_a_table_is_named(searcher, simulator, forms):
    """The setting is named unless the models are the cause."""
    task = plain_task([32, 64], devices=4, constraints=Constraints((TableRule("t0", sharding_types=("row_wise",)),)))
    with refused("constraints-no-sharding-type", where="constraints", names=["'t0'"]) as caught:
        search(task, simulator, searcher, sharding_types=forms)
    assert caught.value.message.limit.startswith("row_wise: ")
    assert ("searcher.sharding_types" in caught.value.message.limit) == (simulator is H100)


@pytest.mark.parametrize(
    ("asked", "named"), [("table_row_wise", "table_row_wise"), ("grid_shard", "table_row_wise or grid_shard")]
)
def test_error_names_the_table_and_the_sharding_type_it_cannot_have(asked, named):
    rules = Constraints((TableRule("t0", sharding_types=(asked,)),))
    task = replace(
        plain_task([32, 64], devices=4, constraints=rules), topology=Topology(4, "80GiB", devices_per_host=2)
    )
    with refused("constraints-no-sharding-type", names=["'t0'"]) as caught:
        search(task, H100, "neuroshard")
    reason = caught.value.message.limit
    assert named in caught.value.message.what
    assert reason.startswith(f"{named}: ")
    assert {"searcher=neuroshard", "table_row_wise", "searcher.sharding_types"} <= set(reason.split())


@pytest.mark.parametrize("types", [("table_wise",), ("column_wise", "table_row_wise")])
def test_error_names_searched_sharding_types_that_contradict_a_rule(types):
    rules = Constraints((TableRule("t0", sharding_types=("data_parallel",)),))
    task = plain_task([32, 64], devices=4, constraints=rules)
    with refused("table-no-sharding-type", names=["'t0'", f"searcher.sharding_types=[{','.join(sorted(types))}]"]):
        search(task, H100, "neuroshard", sharding_types=types)


def test_search_reports_the_cheapest_rejected_plan():
    """Other column-wise plans save less than 1%, and row-wise plans 6%."""
    shapes = (("t0", 14_521, 16, 5.0, 3), ("t1", 24, 4, 60.0, 1))
    tables = tuple(
        Table(name, rows, dim, pooling, zipf_reuse(rows, 1024 * pooling), features=features)
        for name, rows, dim, pooling, features in shapes
    )
    task, simulator = Task(tables, Topology(8, 582_080), 1024), Simulator(CostModels.load("h100"))
    found = NeuroShard().find(task, simulator)
    assert Form.ROW_WISE in found.rejected.forms
    assert rejected_remark(found.plan, found.rejected, simulator).code == "search-cheaper-plan-rejected"


@pytest.mark.parametrize("forms", [("row_wise",), FORMS])
@pytest.mark.parametrize("host_memory_bytes", [0, 1 << 30])
def test_buffers_that_leave_no_memory_are_named_for_all_sharding_types_and_tiers(forms, host_memory_bytes):
    rules = Constraints((TableRule("t0", sharding_types=forms),))
    task = plain_task([16, 16], memory_bytes=10_000, memory=MemoryUse("sgd", 1), constraints=rules)
    task = replace(task, topology=replace(task.topology, host_memory_bytes=host_memory_bytes))
    with refused("device-buffers-too-large", names=["22.2 KiB", "topology.memory_bytes"], kind=InfeasibleError):
        ALL.find(task, H100)


def test_sharding_types_are_changed_from_a_fitting_choice_if_estimates_lead_to_none():
    """In so little memory, only the plan with all tables row-wise fits; local searches end at other choices."""
    shapes = ((4_354, 128, 1.0, 4), (4_562, 12, 1.0, 4), (15_825, 8, 0.1, 2), (601_718, 32, 3.7, 4), (145, 20, 20.0, 4))
    tables = tuple(
        replace(hot_table(f"t{i}", rows, dim, lookups, 1024), pooled=i > 0, bytes_per_element=element)
        for i, (rows, dim, lookups, element) in enumerate(shapes)
    )
    task = Task(tables, Topology(8, 10_166_948), 1024)
    allowed = allowed_types(task, CALLS)
    choices = OptionTable(task, H100, allowed, EvenLayouts(), task)
    every = (np.array(forms) for forms in product(range(3), repeat=5) if allowed[range(5), forms].all())
    assert min(tried.quick_ms for tried in choices.likely(8)) < 1.02 * min(map(choices.quick_ms, every))
