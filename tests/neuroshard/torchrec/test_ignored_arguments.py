"""Each field of TorchRec's constraints and each argument of the planner has an effect, or is refused or warned of.

If a new version of TorchRec adds a field or an argument without a case here, a test fails.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, MultiPassPrefetchConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import Stats
from torchrec.distributed.types import BoundsCheckMode, CacheParams, CacheStatistics, KeyValueParams
from torchrec.types import DataType

from neuroshard import Constraints, InfeasibleError, MemoryUse, Table, TableRule, Tier, UserError
from neuroshard.plumbing.messages import Message
from neuroshard.searching.searcher import Verifier
from neuroshard.testing import ONCE
from neuroshard.torchrec import NeuroShardPlanner, save_sharding_plan
from neuroshard.torchrec.resharding import plan_difference
from tests.kit.messages import logged, logged_codes, logged_one, refused
from tests.kit.torchrec_models import AllOnLast, bags, planner, topology
from tests.neuroshard.torchrec.test_torchrec_arguments import Stored

CACHED = "fused_uvm_caching"


class Missed(CacheStatistics):
    """Somebody's statistics of a cache."""

    expected_lookups, cacheability = 10.0, 0.5

    def expected_miss_rate(self, clf):
        return 1 - clf


@dataclass(frozen=True)
class Outcome:
    """The results of constraints of a table: its sharding, the table that the planner counts, and the warnings."""

    sharding: Any
    table: Table
    tier: Tier
    num_shards: int
    warnings: list[Message]


def _outcome(constraint, caplog, model=None, **settings):
    caplog.clear()
    given = {"device": "cuda", "models": "roofline:h100", "searcher": "dim_greedy"} | settings
    ours = planner(constraints={"t": constraint}, **given)
    plan = ours.plan(model or bags("t", dim=64))
    ours_plan = ours.last_plan
    tier = ours_plan.tier_assignments[0].tier
    return Outcome(plan.plan[""]["t"], ours_plan.task.tables[0], tier, len(ours_plan.placements), logged(caplog))


def _passed_on(field: str, value: Any) -> tuple[Any, Callable[[Outcome], bool]]:
    return value, lambda found: getattr(found.sharding, field) == value


def _warned_of(value: Any, named: str, code: str = "constraints-field-unused") -> tuple[Any, Callable[[Outcome], bool]]:
    return value, lambda found: any(one.code == code and named in one.what for one in found.warnings)


# By field of TorchRec's constraints: a value, and a function that returns True if the value is followed, counted or
# warned of; or the code of the error that refuses the value.
OF_CONSTRAINTS: dict[str, tuple[Any, Callable[[Outcome], bool] | str]] = {
    "sharding_types": (["column_wise"], lambda found: found.sharding.sharding_type == "column_wise"),
    "compute_kernels": ([CACHED], lambda found: found.sharding.compute_kernel == CACHED),
    "min_partition": (0, "constraints-min-partition"),
    "pooling_factors": ([7.0], lambda found: found.table.pooling_factor == 7),
    "num_poolings": ([3.0], lambda found: found.table.pooling_factor == 3),
    "batch_sizes": ([8], lambda found: found.table.pooling_factor == 2),
    "is_weighted": _warned_of(True, "is_weighted"),
    "cache_params": _passed_on("cache_params", CacheParams(reserved_memory=1.0)),
    "enforce_hbm": _passed_on("enforce_hbm", True),
    "stochastic_rounding": _passed_on("stochastic_rounding", False),
    "bounds_check_mode": _passed_on("bounds_check_mode", BoundsCheckMode.NONE),
    "feature_names": _warned_of(["other"], "feature_names"),
    "output_dtype": _passed_on("output_dtype", DataType.FP16),
    "device_group": ("cpu", "constraints-device-group"),
    "key_value_params": _passed_on("key_value_params", KeyValueParams(l2_cache_size=1)),
    "use_virtual_table": _warned_of(True, "use_virtual_table"),
}


def _in_cache(field: str, value: Any) -> tuple[Any, Callable[[Outcome], bool]]:
    return value, lambda found: getattr(found.sharding.cache_params, field) == value


# The same by field of the cache's parameters, for a table with a cache.
OF_CACHES: dict[str, tuple[Any, Callable[[Outcome], bool] | str]] = {
    "algorithm": _in_cache("algorithm", CacheAlgorithm.LFU),
    "load_factor": _in_cache("load_factor", 0.3),
    "reserved_memory": _in_cache("reserved_memory", 2.0),
    "precision": _warned_of(DataType.FP16, "cache_params.precision"),
    "prefetch_pipeline": _warned_of(True, "(t)", "prefetching-not-counted"),
    "stats": _warned_of(Missed(), "cache_params.stats"),
    "multipass_prefetch_config": (MultiPassPrefetchConfig(), "cache-multipass-without-prefetch"),
}


def _set(case, make, caplog):
    value, holds_or_code = case
    if isinstance(holds_or_code, str):
        with refused(holds_or_code, where="constraints of table 't'"):
            _outcome(make(value), caplog)
        return
    assert not holds_or_code(_outcome(make(None), caplog))
    assert holds_or_code(_outcome(make(value), caplog))


@pytest.mark.parametrize("field", [field.name for field in fields(ParameterConstraints)])
def test_each_field_of_parameter_constraints_has_an_effect_or_a_warning(field, caplog):
    def make(value):
        return ParameterConstraints() if value is None else ParameterConstraints(**{field: value})

    _set(OF_CONSTRAINTS[field], make, caplog)


@pytest.mark.parametrize("field", [field.name for field in fields(CacheParams)])
def test_cache_parameters_have_an_effect_or_a_warning(field, caplog):
    def make(value):
        cache = None if value is None else CacheParams(**{field: value})
        return ParameterConstraints(compute_kernels=[CACHED], cache_params=cache)

    _set(OF_CACHES[field], make, caplog)


@pytest.mark.parametrize(("kernels", "warned"), [(["fused"], True), ([CACHED], False), (None, False)])
def test_planner_warns_of_cache_size_constraints_without_a_cached_kernel(kernels, warned, caplog):
    asked = ParameterConstraints(compute_kernels=kernels, cache_params=CacheParams(load_factor=0.3))
    _, is_warned = _warned_of(asked, "cache_params.load_factor")
    assert is_warned(_outcome(asked, caplog)) is warned


def test_constraints_equal_to_defaults_cause_no_warning(caplog):
    same = ParameterConstraints(
        feature_names=["f_t"], cache_params=CacheParams(precision=DataType.FP32), pooling_factors=[2.0]
    )
    codes = {one.code for one in _outcome(same, caplog).warnings}
    assert codes.isdisjoint({"constraints-field-unused", "prefetching-not-counted", "statistics-lookups-assumed"})


def test_min_partition_limits_the_number_of_shards(caplog):
    split = {"rules": Constraints((TableRule("t", min_shards=2),)), "devices": 4}
    for least, most in ((16, 4), (32, 2)):
        found = _outcome(ParameterConstraints(min_partition=least), caplog, **split)
        assert 2 <= found.num_shards <= most
    with refused("table-shard-counts", where="constraints", names=["'t'", 64, 2]):
        _outcome(ParameterConstraints(min_partition=64), caplog, **split)


# FBGEMM keeps whole tables in device memory with `enforce_hbm`, whichever kernel looks them up.
@pytest.mark.parametrize("by", ["constraints", "sharder"])
@pytest.mark.parametrize("asked", [False, True])
def test_enforce_hbm_counts_cached_tables_in_device_memory(asked, by):
    """Each device has memory for a quarter of the table."""
    said = {"enforce_hbm": asked} if by == "constraints" else {}
    fused = {} if by == "constraints" else {"enforce_hbm": asked}
    settings = {"constraints": {"t": ParameterConstraints(pooling_factors=[2.0], **said)}, "models": "roofline:h100"}
    where = topology(2, "cuda", cap=1000 * 64 * 4 // 4, ddr_cap=1 << 30)
    ours, sharder = planner(topology=where, **settings), EmbeddingBagCollectionSharder(fused_params=fused)
    if asked:
        with refused("device-memory-too-small", kind=InfeasibleError):
            ours.plan(bags("t", rows=1000, dim=64), [sharder])
        return
    ours.plan(bags("t", rows=1000, dim=64), [sharder])
    assert ours.last_plan.tier_assignments[0].tier is not Tier.DEVICE


def test_enforce_hbm_with_cached_kernels_alone_is_refused(caplog):
    with refused("constraints-enforce-hbm", where="constraints of table 't'", names=["enforce_hbm", CACHED]):
        _outcome(ParameterConstraints(compute_kernels=[CACHED], enforce_hbm=True), caplog)


@pytest.mark.parametrize("setting", ["cache_load_factor", "cache_algorithm"])
def test_planner_warns_of_sharder_settings_that_plans_override(setting, caplog):
    value = {"cache_load_factor": 0.5, "cache_algorithm": CacheAlgorithm.LFU}[setting]
    sharder = EmbeddingBagCollectionSharder(fused_params={setting: value})
    planner(device="cuda", models="roofline:h100").plan(bags("t"), [sharder])
    names = ["EmbeddingBagCollectionSharder", f"{setting}={value}", f"cache_params.{setting.removeprefix('cache_')}"]
    logged_one(caplog, "fused-params-overridden", names=names)


@pytest.mark.parametrize(
    ("constraint", "warned"),
    [
        (ParameterConstraints(sharding_types=["row_wise"]), "sharding_types=['row_wise']"),
        (ParameterConstraints(compute_kernels=["fused_uvm"]), "compute_kernels=['fused_uvm']"),
        (ParameterConstraints(output_dtype=DataType.FP16), "output_dtype="),
        (ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[3.0]), None),
    ],
)
def test_planner_warns_of_constraints_that_a_given_plan_breaks(constraint, warned, caplog):
    whole = ParameterConstraints(sharding_types=["table_wise"])
    given = planner(constraints={"t": whole}).plan(bags("t"))
    assert planner(given=given, constraints={"t": constraint}).plan(bags("t")) == given
    assert ("given-constraints-differ" in logged_codes(caplog)) is (warned is not None)
    if warned is not None:
        logged_one(caplog, "given-constraints-differ", names=["t (", warned])


LOST = {
    "cache_params": CacheParams(precision=DataType.FP16, stats=Missed()),
    "output_dtype": DataType.FP16,
    "enforce_hbm": False,
}


@pytest.mark.parametrize("field", LOST)
def test_warning_names_fields_that_files_cannot_store(field, path, caplog):
    plan = planner().plan(bags("t"))
    setattr(plan.plan[""]["t"], field, LOST[field])
    save_sharding_plan(plan, path)
    names = [f"{field}.precision", f"{field}.stats"] if field == "cache_params" else [field]
    logged_one(caplog, "sharding-plan-fields-lost", names=[path, "table 't'", *names])


def test_plan_difference_warns_of_cache_settings_that_a_running_job_keeps(caplog):
    before, after = (planner(constraints={"t": ParameterConstraints()}).plan(bags("t")) for _ in range(2))
    assert plan_difference(before, after) == {}
    assert "reshard-settings-kept" not in logged_codes(caplog)
    its = after.plan[""]["t"]
    its.cache_params = CacheParams(prefetch_pipeline=True)
    assert plan_difference(before, after) == {}
    logged_one(caplog, "reshard-settings-kept", names=["cache_params", "'t'"])
    its.ranks = [1 - its.ranks[0]]
    assert plan_difference(before, after)[""]["t"].cache_params is None


class Recorded(Stats):
    """A report that records the arguments of its calls."""

    def __init__(self):
        self.told = []

    def log(self, **told):
        self.told.append(told["debug"])


class Chosen(Verifier):
    """A verifier that takes the found plan, with a remark."""

    def decided(self, searcher, task, simulator):
        return replace(searcher.find(task, simulator), remark="measured", warning="measured")


WHOLE = {"t": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[2.0])}
RECORDED = Recorded()
DEFAULT: dict[str, Any] = {"devices": 4, "models": "roofline:h100", "constraints": WHOLE}

# By the planner's argument: settings in which it differs from the default, or from the settings that come second.
OF_PLANNER: dict[str, tuple[dict[str, Any], ...]] = {
    "topology": ({"topology": topology(2)},),
    "batch_size": ({"batch_size": 8},),
    "models": ({"models": "roofline:b200"},),
    "constraints": ({"constraints": {"t": replace(WHOLE["t"], pooling_factors=[3.0])}},),
    "data_parallel": ({"data_parallel": True, "constraints": {}}, {"constraints": {}}),
    "storage_reservation": (
        {"device": "cuda", "storage_reservation": FixedPercentageStorageReservation(0.5)},
        {"device": "cuda"},
    ),
    "rules": ({"rules": Constraints((TableRule("t", devices=(3,)),))},),
    "memory": ({"memory": MemoryUse("adam", 2)},),
    "searcher": ({"searcher": AllOnLast()},),
    "given": ({"given": "a plan"},),
    "tables": ({"tables": [Table("t", 100, 64, 9.0, ONCE)]},),
    "keep": ({"keep": "a file"},),
    "keep_types": [{"keep_types": True}],
    "stats": ({"stats": RECORDED},),
    "callbacks": ({"callbacks": [lambda options: RECORDED.told.append("callback") or options]},),
    "debug": ({"stats": RECORDED, "debug": False}, {"stats": RECORDED}),
    "pipeline": ({"pipeline": "none"},),
    "timeout_seconds": ({"timeout_seconds": 1e-9},),
    "plan_loader": ({"plan_loader": Stored({}, "another job")},),
    "num_groups": ({"num_groups": 2},),
    "sync_steps": ({"sync_steps": 2},),
    "use_inter_host_allreduce": ({"use_inter_host_allreduce": True},),
    "verify": ({"verify": Chosen()},),
    "candidate_plans": ({"candidate_plans": 3},),
    "passes": ({"passes": 3},),
    "framework": ({"framework": "torchrec"},),
    "dense_ms": ({"framework": "torchrec", "dense_ms": 2.0}, {"framework": "torchrec"}),
    "exchange_dtype": ({"exchange_dtype": "fp16"},),
    "model_optimizer": ({"model_optimizer": "adam"},),
    "settings": ({"max_splits": -1},),
}


def _seen(settings, path, caplog):
    """Return all visible results of a planner: counted tables, plan, cost, messages, reports, kept file or error."""
    caplog.clear()
    RECORDED.told.clear()
    settings = DEFAULT | settings
    if "given" in settings:
        settings["given"] = planner(**DEFAULT).plan(bags("t", dim=64))
    if "keep" in settings:
        settings["keep"] = path
    try:
        ours = planner(**settings)
        ours.plan(bags("t", dim=64))
    except UserError as error:
        return str(error)
    plan, cost = ours.last_plan, ours.last_cost
    found = plan and (plan.task.to_json(), plan.placements, cost.total_ms, [part.counts for part in cost.parts])
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("neuroshard")]
    return found, warned, list(RECORDED.told), path.exists()


@pytest.mark.parametrize("argument", list(inspect.signature(NeuroShardPlanner).parameters))
def test_each_planner_argument_has_an_effect_or_a_warning(argument, path, tmp_path, caplog):
    changed, *default = OF_PLANNER[argument]
    assert _seen(changed, path, caplog) != _seen(default[0] if default else {}, tmp_path / "none.json", caplog)


def test_planners_with_equal_arguments_give_equal_results(path, caplog):
    assert _seen({}, path, caplog) == _seen({}, path, caplog)


UNUSED = {
    "planner-groups-arguments-unused",
    "planner-keep-types-unused",
    "planner-verifier-argument-unused",
    "planner-verify-argument-unused",
}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"sync_steps": 2}, "planner-groups-arguments-unused"),
        ({"keep_types": True}, "planner-keep-types-unused"),
        ({"verify": Chosen(), "passes": 3}, "planner-verifier-argument-unused"),
        ({"passes": 3}, "planner-verify-argument-unused"),
    ],
)
def test_planner_warns_of_arguments_without_effect(settings, code, path, caplog):
    _seen(settings, path, caplog)
    assert UNUSED.intersection(logged_codes(caplog)) == {code}


@pytest.mark.parametrize("settings", [{"num_groups": 2, "sync_steps": 2}, {"verify": Chosen()}, {}])
def test_planner_does_not_warn_of_arguments_with_effect(settings, path, caplog):
    _seen(settings, path, caplog)
    assert UNUSED.isdisjoint(logged_codes(caplog))


@pytest.mark.parametrize("searcher", ["neuroshard", "dim_greedy"])
@pytest.mark.parametrize("asked", [False, True])
def test_planner_warns_if_data_parallel_is_requested_from_a_searcher_without_it(searcher, asked, caplog):
    planner(**DEFAULT, searcher=searcher, data_parallel=asked).plan(bags("t", dim=64))
    assert ("data-parallel-not-searched" in logged_codes(caplog)) is (asked and searcher != "neuroshard")


def test_replan_neither_reads_the_plan_loader_nor_measures(caplog):
    previous = planner(**DEFAULT).search(bags("t", dim=64))
    for settings in ({}, {"verify": Chosen()}, {"plan_loader": Stored({}, None)}):
        caplog.clear()
        planner(**DEFAULT, **settings).replan(bags("t", dim=64), previous=previous)
        assert ("replan-arguments-unused" in logged_codes(caplog)) is bool(settings)
