"""The framework overhead of TorchRec: its counts by sharding type, and costs that include the overhead."""

import json
from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology, load_tables, search
from neuroshard.cost.loads import LoadSets
from neuroshard.models import Card, load_bundle, save_bundle
from neuroshard.models.parts import CONVERTED, COUNTS, TERMS, Framework, counts_of
from neuroshard.models.trust import Margin, Margins
from neuroshard.targets.target import target_named
from neuroshard.testing import linear_models, toy_task
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import check, refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.random_models import random_form_models

FRAMEWORK = Framework(
    0.5,
    input={"calls except data-parallel": 0.3, "own lookups": 1e-4},
    kernels={"own million data-parallel weights": 2.0, "calls": 0.1, "own shards": 0.01},
    outputs={"mean MB of column-wise outputs": 0.2, "calls except data-parallel x devices": 0.01},
)
TASK = toy_task(4, num_devices=2)
CRITEO = Task(load_tables("criteo", batch_size=65536), Topology(8, "80GB"), 65536)
SEQUENCE = replace(TASK, tables=(replace(TASK.tables[0], pooled=False), *TASK.tables[1:]))
PLAIN = replace(random_form_models(), framework=FRAMEWORK, choice=ModelChoice("toy"))
COUNTED = PLAIN.in_torchrec()


def _mixed():
    return laid_out(TASK, 0, [0, 1], DATA_PARALLEL, 1)


def _counts(plan, device, name):
    ends = plan.device_loads.counts.cumsum()
    own = range(ends[device] - plan.device_loads.counts[device], ends[device])
    return counts_of(plan.device_loads.loads)[list(own), COUNTS.index(name)].sum()


def test_framework_counts_of_a_device_depend_on_sharding_types():
    plan, (_, in_halves, copied, _) = _mixed(), TASK.tables
    assert [_counts(plan, 0, name) for name in ("shards", "data-parallel tables")] == [2, 1]
    assert _counts(plan, 1, "data-parallel lookups") == TASK.batch_size / 2 * copied.pooling_factor
    assert _counts(plan, 0, "million data-parallel weights") == copied.rows * copied.dim / 1e6
    assert _counts(plan, 0, "row-wise bags") == TASK.batch_size
    assert _counts(plan, 0, "MB of row-wise outputs") == TASK.batch_size * in_halves.dim * 4 / 1e6
    assert _counts(plan, 1, "MB of column-wise outputs") == TASK.batch_size * TASK.tables[3].dim * 4 / 1e6


def test_framework_parts_of_a_step_are_sums_of_their_terms():
    plan = _mixed()
    cost, plain = (Simulator(models).cost(TASK, plan) for models in (COUNTED, PLAIN))
    np.testing.assert_allclose(cost.compute, FRAMEWORK.factor * plain.compute)
    for device in range(2):
        lookups = _counts(plan, device, "lookups")
        assert cost.ms("framework.input")[device] == pytest.approx(2 * 0.3 + 1e-4 * lookups)
        copied = TASK.tables[2].rows * TASK.tables[2].dim / 1e6
        assert cost.ms("framework.kernels")[device] == pytest.approx(2 * copied + 3 * 0.1 + 2 * 0.01)
        out = sum(_counts(plan, each, "MB of column-wise outputs") for each in range(2)) / 2
        assert cost.ms("framework.outputs")[device] == pytest.approx(0.2 * out + 2 * 2 * 0.01)
    assert cost.total_ms == pytest.approx(cost.device_ms.max())
    assert cost.device_ms.min() > 1.2


def _outputs_ms(plan, slopes):
    """Return the ms of the outputs part of framework overhead on each device, given its terms."""
    framework = Framework(1.0, {}, {}, slopes)
    models = replace(random_form_models(), framework=framework).in_torchrec()
    return Simulator(models).cost(plan.task, plan).ms("framework.outputs").tolist()


def test_framework_overhead_counts_the_join_of_outputs_of_several_sharding_types():
    """Joining copies all outputs that a device receives for its samples, of any sharding type."""
    out = TASK.batch_size / 2 * sum(table.dim for table in TASK.tables) * 4 / 1e6
    assert _outputs_ms(_mixed(), {"MB of outputs of several sharding types": 2.0}) == pytest.approx([2 * out] * 2)
    sequences = laid_out(SEQUENCE, [0, 1], 1, 0, 1)  # joined to nothing
    for plan in (whole(TASK), laid_out(TASK, *[DATA_PARALLEL] * 4), sequences):
        assert _outputs_ms(plan, {"MB of outputs of several sharding types": 2.0}) == [0.0, 0.0]


def test_split_table_makes_torchrec_reorder_all_column_wise_outputs():
    first, second = TASK.tables[:2]
    cut = dict.fromkeys(range(2), first.dim // 2)
    plan = laid_out(TASK, cut, 1, 0, 1)
    out = TASK.batch_size / 2 * sum(table.dim for table in TASK.tables) * 4 / 1e6
    assert _outputs_ms(plan, {"MB of column-wise outputs if some are cut": 3.0}) == pytest.approx([3 * out] * 2)
    assert _outputs_ms(plan, {"own shards of cut tables": 1.0}) == [1.0, 1.0]
    some = laid_out(TASK, cut, DATA_PARALLEL, 0, 1)
    out -= TASK.batch_size / 2 * second.dim * 4 / 1e6
    assert _outputs_ms(some, {"MB of column-wise outputs if some are cut": 3.0}) == pytest.approx([3 * out] * 2)
    assert _outputs_ms(whole(TASK), {"MB of column-wise outputs if some are cut": 3.0}) == [0.0, 0.0]
    assert _outputs_ms(laid_out(SEQUENCE, cut, 1, 0, 1), {"MB of column-wise outputs if some are cut": 3.0}) == [
        0.0,
        0.0,
    ]


def test_if_all_tables_are_data_parallel_nothing_is_exchanged_or_reordered():
    ordered = {
        "step": 0.1,
        "calls": 0.2,
        "own data-parallel tables": 5.0,
        "own data-parallel lookups": 1.0,
        "mean lookups": 1.0,
    }
    framework = Framework(0.5, ordered, {"own data-parallel tables": 5.0}, {"own MB of data-parallel outputs": 9.0})
    models = replace(PLAIN, framework=framework).in_torchrec()
    copied = laid_out(TASK, *[DATA_PARALLEL] * 4)
    cost = Simulator(models, count_input=True).cost(TASK, copied)
    expected = {"input": 0.0, "framework.input": 0.1 + 0.2, "framework.kernels": 4 * 5.0, "framework.outputs": 0.0}
    for name, each_ms in expected.items():
        assert cost.ms(name).tolist() == pytest.approx([each_ms] * 2)
    mixed = Simulator(models, count_input=True).cost(TASK, _mixed())
    assert mixed.ms("framework.input").min() > 5
    assert mixed.ms("framework.outputs").min() > 0 < mixed.ms("input").min()


def test_step_cost_without_framework_overhead_is_unchanged():
    plan = _mixed()
    cost, before = (Simulator(models).cost(TASK, plan) for models in (PLAIN, random_form_models()))
    assert cost.total_ms == before.total_ms
    assert [part.name for part in cost.parts] == [part.name for part in before.parts]


def test_searches_place_shards_by_framework_overhead():
    searched = Simulator(COUNTED).compute_for(TASK)
    loads = _mixed().device_loads.loads
    added = searched.predict(LoadSets.alone(loads)) - COUNTED.compute.predict(LoadSets.alone(loads))
    counts = counts_of(loads)
    lookups, copied, shards = (
        counts[:, COUNTS.index(n)] for n in ("lookups", "million data-parallel weights", "shards")
    )
    np.testing.assert_allclose(added, 1e-4 * lookups + 2 * copied + 0.01 * shards, rtol=1e-4)


@pytest.mark.parametrize(
    "expensive",
    [
        Framework(1.0, {}, {"own shards": 50.0}, {}),
        Framework(1.0, {}, {}, {"MB of column-wise outputs if some are cut": 1000.0}),
    ],
    ids=["each shard", "the first cut"],
)
def test_tables_stay_whole_if_splits_cost_more_than_they_save(expensive):
    task, models = toy_task(6, num_devices=2, seed=2), linear_models(2)
    free, whole = (replace(models, framework=its).in_torchrec() for its in (Framework(1.0, {}, {}, {}), expensive))
    shards = [len(search(task, Simulator(its)).placements) for its in (free, whole)]
    assert shards[1] == len(task.tables) < shards[0]


def _used(models):
    """The sharding types that the search finds for Criteo's tables."""
    return {form.value for form in search(CRITEO, Simulator(models)).forms}


def test_sharding_types_with_a_high_fixed_cost_are_left_out():
    sheet = CostModels.load("roofline:h100")
    of_calls = [replace(sheet, framework=Framework(1.0, {}, {"calls": each_ms}, {})) for each_ms in (0.0, 5.0)]
    assert [_used(models.in_torchrec()) for models in of_calls] == [
        {"column_wise", "row_wise", "data_parallel"},
        {"column_wise"},
    ]


HOST = {"step": 30.0, "calls": 20.0, "own shards": 0.5}
ON_HOSTS = replace(PLAIN, framework=replace(FRAMEWORK, host=HOST)).in_torchrec()


def test_idle_devices_wait_for_their_host_unless_dense_work_hides_it():
    plan, frameworks = whole(TASK), (FRAMEWORK, replace(FRAMEWORK, host=HOST))
    alone, hosted = (replace(linear_models(2), framework=its).in_torchrec() for its in frameworks)
    work, waiting = (Simulator(models).cost(TASK, plan) for models in (alone, hosted.with_dense_ms(0.0)))
    host_ms = HOST["step"] + HOST["calls"] + HOST["own shards"] * plan.device_loads.counts
    assert work.device_ms.max() < host_ms.min()
    np.testing.assert_allclose(waiting.ms("framework.host"), 0.9 * (host_ms - work.device_ms))
    for dense_ms in (2.0, host_ms.max()):
        beside = Simulator(hosted.with_dense_ms(dense_ms)).cost(TASK, plan)
        waited_ms = 0.9 * np.maximum(host_ms - dense_ms - work.device_ms, 0)
        np.testing.assert_allclose(beside.ms("framework.host"), waited_ms)
    assert beside.total_ms == work.total_ms


def test_sharding_types_with_long_host_launches_are_used_if_dense_work_hides_them():
    framework = Framework(1.0, {}, {}, {}, {"calls": 5.0})
    models = replace(CostModels.load("roofline:h100"), framework=framework).in_torchrec()
    assert _used(models.with_dense_ms(0.0)) == {"column_wise"}
    assert _used(models.with_dense_ms(15.0)) == {"column_wise", "row_wise", "data_parallel"}


def test_models_without_framework_overhead_report_that():
    with refused("models-lack-framework", names=["TorchRec", "framework=torchrec", "num_local_samples"]):
        random_form_models().in_torchrec()


def test_datasheet_overhead_equals_that_of_an_h100_scaled_by_memory_bandwidth():
    cut = {4: dict.fromkeys(range(8), 16)}
    plan = laid_out(CRITEO, *(cut.get(table, table % 8) for table in range(26)))
    names = ("h100", "roofline:h100", "roofline:h200")
    loaded = [CostModels.load(name, framework="torchrec", dense_ms=0) for name in names]
    measured, sheet, other = (Simulator(models).cost(CRITEO, plan) for models in loaded)
    np.testing.assert_allclose(sheet.ms("framework.outputs"), measured.ms("framework.outputs"))
    np.testing.assert_allclose(other.ms("framework.outputs"), measured.ms("framework.outputs") * 3.35 / 4.8)
    waits = [cost.ms("framework.host") for cost in (measured, sheet, other)]
    assert min(ms.min() for ms in waits) > 0
    hosts = [cost.device_ms - ms + ms / 0.9 for cost, ms in zip((measured, sheet, other), waits, strict=True)]
    np.testing.assert_allclose(hosts, np.broadcast_to(hosts[0], (3, 8)))  # as fast
    assert CostModels.load("roofline:h100").framework is None


def test_model_choice_records_whether_framework_overhead_is_counted(tmp_path):
    assert COUNTED.choice == ModelChoice("toy", framework="torchrec")
    save_bundle(tmp_path, replace(PLAIN, choice=None), Card())
    loaded = CostModels.load(tmp_path, framework="torchrec")
    assert loaded.choice == ModelChoice(str(tmp_path), framework="torchrec")
    plan = _mixed()
    assert Simulator(loaded).cost(TASK, plan).total_ms == Simulator(COUNTED).cost(TASK, plan).total_ms
    without = CostModels.load(tmp_path, framework="none")
    assert (without.choice, without.of_whole_steps) == (ModelChoice(str(tmp_path), framework="none"), False)


def test_dense_ms_counts_in_whole_steps_and_is_refused_otherwise(tmp_path):
    save_bundle(tmp_path, replace(PLAIN, framework=replace(FRAMEWORK, host=HOST), choice=None), Card())
    in_steps = {"framework": "torchrec", "dense_ms": 2.5}
    loaded, plan = CostModels.load(tmp_path, **in_steps), _mixed()
    assert loaded.choice == ModelChoice(str(tmp_path), **in_steps)
    assert (
        Simulator(loaded).cost(TASK, plan).total_ms == Simulator(ON_HOSTS.with_dense_ms(2.5)).cost(TASK, plan).total_ms
    )
    for name, framework in (("cpu", "torchrec"), ("roofline:h100", None), ("cpu", None), ("h100", "none")):
        with refused("models-ignore-dense-ms", names=[f"'{name}", "dense_ms=8"]):
            CostModels.load(name, framework=framework, dense_ms=8)
    with refused("models-ignore-dense-ms", names=["dense_ms=2.5", "dense_ms=8"]):
        loaded.with_dense_ms(8.0)
    for nonsense in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"dense_ms.*{nonsense}"):
            loaded.with_dense_ms(nonsense)
        with refused("value-outside-limits", names=["dense_ms", nonsense]):
            CostModels.load(tmp_path, framework="torchrec", dense_ms=nonsense)
    narrow = CostModels.load(tmp_path, exchange_dtype="fp16", **in_steps)
    assert narrow.choice == ModelChoice(str(tmp_path), exchange_dtype="fp16", **in_steps)


def test_margin_of_a_wait_for_the_host_hides_the_margin_of_the_device():
    """If all devices wait for hosts, errors of devices hardly count; if hardly any waits, errors of hosts may count."""
    alone = Margins(Margin(0.1, 1.0), Margin(0.0, 0.0), Margin(0.0, 0.0), {"framework.host": Margin(0.2, 1.0)})
    framework = Framework(1.0, {}, {}, {}, {"step": 100.0})
    models = replace(linear_models(2), framework=framework, margins=alone).in_torchrec()
    plan = whole(TASK)
    ready = Simulator(replace(models, more=())).cost(TASK, plan)
    waiting = Simulator(models.with_dense_ms(0.0)).cost(TASK, plan)
    assert waiting.margin_ms == pytest.approx(np.hypot(0.1 * ready.margin_ms, 0.9 * 0.2 * 100.0))
    nearly = Simulator(models.with_dense_ms(110.0 - ready.total_ms)).cost(TASK, plan)
    assert nearly.total_ms == pytest.approx(ready.total_ms)
    assert nearly.margin_ms == pytest.approx(np.hypot(ready.margin_ms, 0.9 * (0.2 * 100.0 - 10.0)))


def test_bundles_store_framework_overhead_and_old_bundles_still_load(tmp_path):
    save_bundle(tmp_path, PLAIN, Card())
    assert load_bundle(tmp_path)[0].framework == FRAMEWORK
    content = json.loads((tmp_path / "bundle.json").read_text())
    del content["models"]["framework"]["settings"]["host"]
    (tmp_path / "bundle.json").write_text(json.dumps(content))
    assert load_bundle(tmp_path)[0].framework == FRAMEWORK
    converting = replace(FRAMEWORK, outputs=FRAMEWORK.outputs | {CONVERTED: 1 / 3}, host=HOST)
    save_bundle(tmp_path, replace(PLAIN, framework=converting), Card())
    assert load_bundle(tmp_path)[0].framework == converting


def test_framework_refuses_unknown_terms_of_overhead():
    with refused("unknown-name", names=["'own moons'"]):
        Framework(1.0, {"own moons": 1.0}, {}, {})
    with refused("unknown-name", names=[f"'{CONVERTED}'"]):
        Framework(1.0, {}, {CONVERTED: 1.0}, {})
    assert len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize(("target", "counts"), [("torchrec", True), ("hugectr", False), ("sok", False), (None, False)])
def test_framework_overhead_counts_only_for_targets_that_train_with_torchrec(target, counts):
    assert (target_named(target).costed(PLAIN) is not PLAIN) == counts
    assert target_named(target).costed(random_form_models()).framework is None


def test_torchrec_target_adds_no_overhead_to_models_loaded_without_it():
    torchrec, without = target_named("torchrec"), replace(PLAIN, choice=ModelChoice("toy", framework="none"))
    assert torchrec.costed(without) is without
    assert torchrec.cost_warnings(without) == ()


@pytest.mark.parametrize("name", ["sok", "hugectr"])
def test_other_targets_warn_of_unknown_overhead_and_refuse_torchrecs(name):
    target = target_named(name)
    (warning,) = target.cost_warnings(PLAIN)
    check(warning, "costs-lack-framework", names=[target.title])
    with refused("target-other-framework", names=[target.title, "framework=torchrec"]):
        target.costed(COUNTED)


def test_torchrec_target_warns_if_models_do_not_know_the_framework_overhead():
    torchrec, plain = target_named("torchrec"), target_named(None)
    assert torchrec.cost_warnings(torchrec.costed(PLAIN)) == plain.cost_warnings(PLAIN) == ()
    (warning,) = torchrec.cost_warnings(random_form_models())
    check(warning, "costs-lack-framework", names=["TorchRec", "framework=torchrec"])
    assert plain.costed(COUNTED) is COUNTED


def test_scaled_overhead_is_multiplied_by_the_factor():
    twice = replace(PLAIN, framework=FRAMEWORK.scaled(2)).in_torchrec()
    plan, names = _mixed(), [part.name for part in FRAMEWORK.parts]
    costs = [Simulator(models).cost(TASK, plan) for models in (COUNTED, twice)]
    for name in names:
        np.testing.assert_allclose(costs[1].ms(name), 2 * costs[0].ms(name))
    np.testing.assert_allclose(costs[1].compute, costs[0].compute)
