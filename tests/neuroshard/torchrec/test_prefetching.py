"""Prefetching pipelines: kernels prefetch if and only if memory counts it, and contradictions are refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, MultiPassPrefetchConfig
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.types import CacheParams, PipelineType

from neuroshard import CostModels, MemoryUse, NeuroShardWarning, Simulator, Tier, TierAssignment
from neuroshard.measure.steps import _step_bench as step_bench
from neuroshard.measure.steps.stand_in import in_pipeline
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.options.tier_changes import reassign_tiers
from neuroshard.targets.target import export_plan
from neuroshard.torchrec import load_sharding_plan, save_sharding_plan, to_sharding_plan
from neuroshard.torchrec.sharding_plan import parameters_in
from tests.kit.messages import check, logged, logged_codes, refused
from tests.kit.torchrec_models import CPU, AllOnLast, bags, planner
from tests.neuroshard.torchrec.test_torchrec_arguments import Stored

CACHED = "fused_uvm_caching"
PIPELINES = [None, "none", "sparse_dist", "semi_sync", "prefetch"]
MODEL = nn.ModuleDict({"ours": bags("a"), "theirs": bags("b"), "given": bags("c"), "device": bags("d")})


def _behind_cache(cache=None, **fields):
    return ParameterConstraints(compute_kernels=[CACHED], cache_params=cache, pooling_factors=[2.0], **fields)


def _constraints(cache=None):
    """A model of three cached tables, the second one delegated to TorchRec, and a table in device memory."""
    on_device = ParameterConstraints(compute_kernels=["fused"], pooling_factors=[2.0])
    its = _behind_cache(cache)
    return {
        "a": its,
        "b": _behind_cache(cache, sharding_types=["table_row_wise"]),
        "c": _behind_cache(),
        "d": on_device,
    }


def _planner(**settings):
    given = {"device": "cuda", "models": "roofline:h100", "searcher": "dim_greedy", "constraints": _constraints()}
    return planner(**given | settings)


def _flags(plan):
    """Return whether each cached table of a plan prefetches, after checking that no other table does."""
    flags = {}
    for _, name, sharding in parameters_in(plan):
        cache = sharding.cache_params
        if sharding.compute_kernel == CACHED:
            flags[name] = cache and cache.prefetch_pipeline
        else:
            assert cache is None or cache.prefetch_pipeline is None
    return flags


def _given(flag=None):
    """Return a given plan for one of the tables."""
    its = _planner().plan(nn.ModuleDict({"given": MODEL["given"]}))
    sharding = its.plan["given"]["c"]
    sharding.cache_params = replace(sharding.cache_params or CacheParams(), prefetch_pipeline=flag)
    return its


@pytest.mark.parametrize("said", ["pipeline", "memory"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_cached_tables_prefetch_exactly_if_the_pipeline_prefetches(pipeline, said):
    """Tables planned by NeuroShard and TorchRec and tables of a given plan; the given plan itself is unchanged."""
    asked = {"pipeline": pipeline} if said == "pipeline" else {"memory": MemoryUse(pipeline=pipeline)}
    given = _given()
    plan = _planner(given=given, **asked).plan(MODEL)
    expected = True if pipeline == "prefetch" else None
    assert _flags(plan) == dict.fromkeys("abc", expected)
    assert _flags(given) == {"c": None}


@pytest.mark.parametrize("cache", [CacheParams(load_factor=0.3), CacheParams(load_factor=0.3, prefetch_pipeline=True)])
def test_cache_parameters_in_constraints_are_kept(cache):
    plan = _planner(constraints=_constraints(cache), pipeline="prefetch").plan(MODEL)
    for name, path in (("a", "ours"), ("b", "theirs")):
        assert plan.plan[path][name].cache_params == CacheParams(load_factor=0.3, prefetch_pipeline=True)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_planner_refuses_cache_constraints_that_contradict_the_pipeline(pipeline, flag, caplog):
    settings = {"constraints": {"a": _behind_cache(CacheParams(prefetch_pipeline=flag))}, "pipeline": pipeline}
    if pipeline is None or flag is (pipeline == "prefetch"):
        plan = _planner(**settings).plan(MODEL["ours"])
        assert _flags(plan) == {"a": flag}
        assert ("prefetching-not-counted" in logged_codes(caplog)) is (pipeline is None and flag)
        return
    names = [f"prefetch_pipeline={flag}", f"pipeline={pipeline!r}"]
    with refused("cache-prefetch-contradicts-pipeline", where="constraints of table 'a'", names=names):
        _planner(**settings)


def test_given_plans_that_contradict_the_pipeline_are_refused_or_warned_of(caplog):
    names = ["prefetch_pipeline=False", "pipeline='prefetch'"]
    with refused("cache-prefetch-contradicts-pipeline", where="given: table 'c'", names=names):
        _planner(given=_given(False), pipeline="prefetch")
    assert _flags(_planner(given=_given(True), pipeline="sparse_dist").plan(MODEL)) == {"a": None, "b": None, "c": True}
    (uncounted,) = (message for message in logged(caplog) if message.code == "prefetching-not-counted")
    check(uncounted, "prefetching-not-counted", names=["(given.c)", "pipeline='sparse_dist'", "pipeline='prefetch'"])


@pytest.mark.parametrize(("pipeline", "warned"), [(None, True), ("sparse_dist", True), ("prefetch", False)])
def test_planner_warns_of_a_prefetching_sharder_without_a_prefetching_pipeline(pipeline, warned, caplog):
    sharder = EmbeddingBagCollectionSharder(fused_params={"prefetch_pipeline": True})
    _planner(pipeline=pipeline).plan(MODEL["ours"], [sharder])
    uncounted = [message for message in logged(caplog) if message.code == "prefetching-not-counted"]
    assert len(uncounted) == warned
    for message in uncounted:
        check(message, "prefetching-not-counted", names=["(a)", f"pipeline={pipeline!r}", "pipeline='prefetch'"])


def test_planner_with_two_different_pipelines_is_refused():
    with refused("pipeline-named-twice", names=["pipeline='none'", "memory.pipeline='prefetch'"]):
        _planner(pipeline="none", memory=MemoryUse(pipeline="prefetch"))


LFU = ("cache-algorithm-without-prefetch", "algorithm=LFU")
MULTIPASS = ("cache-multipass-without-prefetch", "multipass_prefetch_config")


@pytest.mark.parametrize("asked", [{"pipeline": "none"}, {"memory": MemoryUse(pipeline="none")}])
def test_input_dist_counts_whether_pipeline_or_memory_names_the_pipeline(asked):
    ours = _planner(**asked)
    ours.plan(MODEL["ours"])
    assert "input" in {part.name for part in ours.last_cost.parts if part.counts}


@pytest.mark.parametrize(
    ("cache", "pipeline", "code", "setting"),
    [
        (CacheParams(algorithm=CacheAlgorithm.LFU), "prefetch", *LFU),
        (CacheParams(algorithm=CacheAlgorithm.LFU, prefetch_pipeline=True), None, *LFU),
        (CacheParams(multipass_prefetch_config=MultiPassPrefetchConfig()), None, *MULTIPASS),
        (CacheParams(multipass_prefetch_config=MultiPassPrefetchConfig()), "sparse_dist", *MULTIPASS),
    ],
)
def test_planner_refuses_caches_with_which_fbgemm_would_fail(cache, pipeline, code, setting):
    with refused(code, where="constraints of table 'a'", names=[setting]):
        _planner(constraints={"a": _behind_cache(cache)}, pipeline=pipeline)


def test_loaded_plan_is_set_to_prefetch(caplog):
    found = []
    first = _planner(callbacks=[lambda options: found.extend(options) or options])
    first.plan(MODEL["ours"])
    stored = Stored({option.storage_hash(): option for option in found}, None)
    cache = CacheParams(load_factor=found[0].cache_params.load_factor)
    again = _planner(constraints={"a": _behind_cache(cache)}, plan_loader=stored, pipeline="prefetch")
    assert _flags(again.plan(MODEL["ours"])) == {"a": True}


def test_callbacks_that_move_tables_behind_caches_leave_them_prefetching():
    def behind_caches(options):
        for option in options:
            option.compute_kernel, option.cache_params = CACHED, None
        return options

    plan = _planner(pipeline="prefetch", callbacks=[behind_caches]).plan(MODEL)
    assert _flags(plan) == dict.fromkeys("abcd", True)


@pytest.mark.parametrize("model", [MODEL, MODEL["theirs"]])
def test_kept_plans_and_plan_files_store_the_prefetching_pipeline(model, path, tmp_path, caplog):
    first, never = AllOnLast(), AllOnLast()
    plan = _planner(keep=path, pipeline="prefetch", searcher=first).plan(model)
    again = _planner(keep=path, pipeline="prefetch", searcher=never).plan(model)
    assert again == plan
    assert set(_flags(plan).values()) == {True}
    assert "kept-plan-outdated" not in logged_codes(caplog)
    save_sharding_plan(plan, tmp_path / "sharding.json")
    assert load_sharding_plan(tmp_path / "sharding.json") == plan
    other = _planner(keep=path, pipeline="semi_sync", searcher=first).plan(model)
    assert ("kept-plan-outdated" in logged_codes(caplog)) is (model is MODEL)  # in the other there is nothing to search
    assert set(_flags(other).values()) == {None}
    assert never.asked == 0


def _cached_plan(pipeline):
    plan = _planner(models="roofline:h100").search(bags("a", "b"))
    task = replace(plan.task, memory=MemoryUse(pipeline=pipeline))
    return reassign_tiers(plan, task, (TierAssignment(Tier.UVM_CACHING, 0.25), TierAssignment(Tier.UVM)))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_exports_follow_the_pipeline_that_memory_counts(pipeline):
    plan = _cached_plan(pipeline)
    cache = export_plan(plan, "torchrec").content["modules"][""]["a"]["cache"]
    assert cache["prefetch_pipeline"] is (True if pipeline == "prefetch" else None)
    for flag in (False, True):
        agrees = pipeline is None or flag is (pipeline == "prefetch")
        if agrees:
            its = to_sharding_plan(plan, cache=CacheParams(prefetch_pipeline=flag)).plan[""]["a"]
            assert its.cache_params.prefetch_pipeline is flag
        else:
            names = [f"prefetch_pipeline={flag}", f"pipeline={pipeline!r}"]
            with refused("cache-prefetch-contradicts-pipeline", where="cache", names=names):
                to_sharding_plan(plan, cache=CacheParams(prefetch_pipeline=flag))


@pytest.mark.parametrize("measured", ["none", "sparse_dist"])
@pytest.mark.parametrize("counted", PIPELINES)
def test_measured_steps_use_the_measured_pipeline_and_remark_on_another_planned_one(counted, measured):
    plan = _cached_plan(counted)
    assert _flags(to_sharding_plan(in_pipeline(plan, measured))) == {"a": None}
    remarks = StepProtocol(pipeline=measured).remarks([plan.task])
    assert len(remarks) == (counted not in (None, measured))
    for remark in remarks:
        check(remark, "steps-pipeline-differs", names=[f"pipeline={measured}"])
        assert counted in remark.limit


def test_step_bench_builds_the_plan_for_the_measured_pipeline(monkeypatch):
    class Told(Exception):
        """Raised with the pipeline of the plan that is converted for TorchRec."""

    def told(plan, *_args, **_settings):
        raise Told(plan.task.memory.pipeline)

    monkeypatch.setattr(step_bench, "to_sharding_plan", told)
    device = SimpleNamespace(torch_device=CPU)
    with pytest.raises(Told) as raised:
        step_bench.Trained(_cached_plan("prefetch"), StepProtocol(pipeline="sparse_dist"), None, device, (), None, 0)
    assert raised.value.args == ("sparse_dist",)


@pytest.mark.parametrize("means", [StepMeasurer, MirroredMeasurer])
@pytest.mark.parametrize("counted", ["sparse_dist", "prefetch"])
def test_measurers_warn_if_the_planned_pipeline_is_not_the_measured_one(means, counted, recwarn):
    hardware = SimpleNamespace(check_hosts=lambda _: None)
    means(StepProtocol(pipeline="sparse_dist")).check([_cached_plan(counted).task], (), hardware)
    warnings = [one.message for one in recwarn if isinstance(one.message, NeuroShardWarning)]
    messages = [message for warning in warnings for message in warning.messages]
    assert len(messages) == (counted == "prefetch")
    for message in messages:
        check(message, "steps-pipeline-differs", names=["pipeline=sparse_dist"])
        assert "prefetch" in message.limit


@pytest.mark.parametrize("count_input", [False, True])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_costs_that_count_another_exchange_of_indices_than_the_pipeline_are_warned_of(pipeline, count_input):
    simulator = Simulator(CostModels.load("roofline:h100"), count_input)
    warnings = simulator.warnings(_cached_plan(pipeline))
    differing = [message for message in warnings if message.code == "costs-differ-from-pipeline"]
    assert len(differing) == (pipeline is not None and count_input is not (pipeline == "none"))
    remedy = f"count_input={str(not count_input).lower()}"
    for message in differing:
        check(message, "costs-differ-from-pipeline", names=[f"memory.pipeline={pipeline}", remedy])


@pytest.mark.parametrize(
    ("pipeline", "theirs"),
    [
        (None, PipelineType.NONE),
        ("none", PipelineType.TRAIN_BASE),
        ("sparse_dist", PipelineType.TRAIN_SPARSE_DIST),
        ("prefetch", PipelineType.TRAIN_PREFETCH_SPARSE_DIST),
    ],
)
def test_memory_of_delegated_tables_counts_the_pipeline_too(pipeline, theirs, monkeypatch):
    """In TorchRec's planner, and in the memory left to NeuroShard's tables."""
    told = []
    estimate = EmbeddingStorageEstimator.estimate
    monkeypatch.setattr(
        EmbeddingStorageEstimator,
        "estimate",
        lambda self, *args, **by_name: told.append(self._pipeline_type) or estimate(self, *args, **by_name),
    )
    _planner(pipeline=pipeline).plan(MODEL["theirs"])
    assert len(told) > 1
    assert set(told) == {theirs}
