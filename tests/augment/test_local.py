"""Random plans of which training steps are measured."""

import numpy as np
import pytest

from neuroshard.measure.store.splits import split_tables
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.collective import Precision
from neuroshard.words.form import FORMS
from tests.kit.messages import refused

TABLES = tuple(dlrm_like(num_tables=120, batch_size=1024))
SPLIT = split_tables(TABLES, 0)


def _drawn(augmentation, count):
    return [augmentation.draw(SPLIT, np.random.default_rng(seed)) for seed in range(count)]


@pytest.fixture(scope="module")
def drawn():
    return _drawn(PlanAugmentation(), 80)


def test_plan_augmentation_with_the_same_seed_draws_the_same_plans(drawn):
    again = _drawn(PlanAugmentation(), 5)
    assert [(sample.plan, sample.rank, split) for sample, split in again] == [
        (sample.plan, sample.rank, split) for sample, split in drawn[:5]
    ]


def test_plan_augmentation_draws_the_same_plans_whatever_precisions_are_listed(drawn):
    again = _drawn(PlanAugmentation(precisions=("fp32", "fp16")), 20)
    assert [(sample.plan, sample.rank) for sample, _ in again] == [
        (sample.plan, sample.rank) for sample, _ in drawn[:20]
    ]
    assert {sample.precision for sample, _ in drawn} == {Precision.FP32}
    assert {sample.precision for sample, _ in again} == {Precision.FP32, Precision.FP16}


@pytest.mark.parametrize(
    ("name", "code", "names"),
    [
        ("int8", "local-precision-too-narrow", ["local.precisions", "int8", "fp16"]),
        ("fp17", "unknown-name", ["'fp17'", "'fp16'"]),
    ],
)
def test_plan_augmentation_refuses_invalid_precisions(name, code, names):
    with refused(code, names=names):
        PlanAugmentation(precisions=("fp32", name))


def test_narrowest_table_is_drawn_if_no_table_fits():
    assert all(len(sample.plan.task.tables) >= 1 for sample, _ in _drawn(PlanAugmentation(max_copy_bytes=1), 40))


def test_plan_augmentation_refuses_limits_that_allow_no_plan():
    with refused("local-tables-too-large", names=["local.max_bytes", 1, "'like0_79'", "864 bytes", "4 columns"]):
        PlanAugmentation(max_bytes=1).check(SPLIT)
    with refused("max-dim-not-halvable", names=["max_dim", 12]):
        PlanAugmentation(max_dim=12)


def test_drawn_plans_have_all_sharding_types_and_many_sizes(drawn):
    plans = [sample.plan for sample, _ in drawn]
    assert {form for plan in plans for form in plan.forms} == set(FORMS)
    placed = [(plan, its, form) for plan in plans for its, form in zip(plan.by_table, plan.forms, strict=True)]
    assert any(len(set(plan.forms)) == len(FORMS) for plan in plans)
    assert {2, 128} <= {plan.task.topology.num_devices for plan in plans}
    assert {1, 3} <= {table.features for plan in plans for table in plan.task.tables}
    assert {True, False} == {table.pooled for plan in plans for table in plan.task.tables}
    assert any(form == "column_wise" and len(its) == 2 for _, its, form in placed)
    assert any(form == "row_wise" and len(its) < plan.task.topology.num_devices for plan, its, form in placed)


def test_drawn_plans_contain_only_tables_of_the_split_of_the_sample(drawn):
    for sample, split in drawn:
        names = {table.name for table in SPLIT[split]}
        assert {table.name for table in sample.plan.task.tables} <= names


def test_drawn_plans_keep_limits_on_batch_bytes_and_outputs(drawn):
    augmentation = PlanAugmentation()
    for sample, _ in drawn:
        task, plan = sample.plan.task, sample.plan
        each = task.batch_size // task.topology.num_devices
        assert task.batch_size <= augmentation.max_batch_size
        assert all(table.size_bytes <= augmentation.max_bytes for table in task.tables)
        outputs = [4 * each * table.output_columns for table in task.tables]
        assert len(task.tables) == 1 or sum(outputs) <= augmentation.max_output_bytes
        data_parallel = [t for t, form in zip(task.tables, plan.forms, strict=True) if form == "data_parallel"]
        assert all(table.pooled and table.size_bytes <= augmentation.max_copy_bytes for table in data_parallel)
        assert 0 <= sample.rank < task.topology.num_devices
