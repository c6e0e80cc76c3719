"""The drop-in planner, in one process and on some of the ranks of a job."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torch import distributed as dist
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import BoundsCheckMode, CacheParams, ShardingPlanner
from torchrec.optim import LAMB, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.types import DataType

from neuroshard import Constraints, CostModels, InfeasibleError, MemoryUse, Simulator, TableRule, UserError
from neuroshard.models.roofline import datasheet_of
from neuroshard.plumbing.errors import MissingPackageError
from neuroshard.testing import linear_models, toy_task
from neuroshard.torchrec import NeuroShardPlanner, load_sharding_plan, save_sharding_plan
from neuroshard.torchrec.kernels import IN_ROWS
from tests.kit.messages import logged_codes, logged_one, refused
from tests.kit.plans import whole
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import AllOnLast, bags, places, planner, shaped_bags, topology

SMALL = bags("t", rows=10, dim=4)
TWO = nn.ModuleDict({"one": shaped_bags({"t0": (100, 16), "t1": (50, 8)}), "other": bags("t0", rows=1000, dim=32)})


def _of_t(**fields):
    """Settings with constraints of one table."""
    return {"constraints": {"t": ParameterConstraints(**fields)}}


def test_planner_covers_all_collections_of_a_model():
    ours = planner(batch_size=128)
    assert isinstance(ours, ShardingPlanner)
    plan = ours.plan(TWO)
    assert {path: sorted(names) for path, names in plan.plan.items()} == {"one": ["t0", "t1"], "other": ["t0"]}
    found = ours.search(TWO)
    assert [table.name for table in found.task.tables] == ["one.t0", "t1", "other.t0"]
    assert found.task.batch_size == 256
    assert found.violations == ()


def test_a_model_without_tables_needs_no_plan():
    assert planner().plan(nn.Linear(2, 2)).plan == {}


def test_gpus_are_numbered_within_their_host():
    plan = planner(4, "cuda", on_host=2, batch_size=64).plan(bags(*"abcd", dim=64))
    found = {str(p.sharding_spec.shards[0].placement) for p in plan.plan[""].values()}
    assert found == {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}


def test_planner_takes_pods_of_the_topology_for_domains_of_fast_links():
    whole = {name: ParameterConstraints(sharding_types=["table_wise"]) for name in "abcdefgh"}
    pods = topology(8, "cuda", on_host=2, pod_size=2)
    ours = planner(topology=pods, models="roofline:b200", batch_size=64, constraints=whole)
    plan = ours.plan(bags(*whole, dim=64))
    assert (ours.last_plan.task.topology.host_size, ours.last_plan.task.topology.domain_size) == (2, 4)
    shards = (shard for sharding in plan.plan[""].values() for shard in sharding.sharding_spec.shards)
    assert {str(shard.placement) for shard in shards} <= {f"rank:{rank}/cuda:{rank % 2}" for rank in range(8)}


@pytest.mark.parametrize(
    ("dtype", "coded", "warned"),
    [(None, True, 1), ("fp16/bf16", True, 0), (None, False, 0)],
)
def test_planner_warns_once_if_exchange_dtype_differs_from_the_qcomm_codecs(dtype, coded, warned, caplog):
    config = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    registry = get_qcomm_codecs_registry(config) if coded else None
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)
    planner(device="cuda", models="roofline:h100", exchange_dtype=dtype).plan(bags("a"), [sharder])
    assert logged_codes(caplog).count("exchange-dtype-differs") == warned
    if warned:
        message = logged_one(caplog, "exchange-dtype-differs", names=["2 bytes", "forward", "4 bytes"])
        assert "exchange_dtype='fp16'" in message.remedy


@pytest.mark.parametrize("asked", ["of a table", "of a sharder"])
@pytest.mark.parametrize(("dtype", "warned"), [(None, 1), ("fp16", 0)])
def test_planner_warns_if_exchange_dtype_differs_from_the_output_dtype(dtype, warned, asked, caplog):
    of_table = {"a": ParameterConstraints(output_dtype=DataType.FP16)} if asked == "of a table" else None
    fused = {"output_dtype": SparseType.FP16} if asked == "of a sharder" else None
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    planner(device="cuda", models="roofline:h100", exchange_dtype=dtype, constraints=of_table).plan(
        bags("a"), [sharder]
    )
    assert logged_codes(caplog).count("exchange-dtype-differs") == warned
    if warned:
        logged_one(caplog, "exchange-dtype-differs", names=["2 bytes", "forward", "4 bytes"])


@pytest.mark.parametrize(
    ("fused", "on_weights", "counted"),
    [
        (None, None, "sgd"),
        ({"optimizer": "exact_sgd"}, None, "sgd"),
        ({"optimizer": "exact_row_wise_adagrad"}, None, "rowwise_adagrad"),
        ({"optimizer": "lamb"}, None, "adam"),
        ({"optimizer": "shampoo"}, None, "adam"),  # the largest stands for those without a name
        ({"optimizer": EmbOptimType.EXACT_ADAGRAD}, None, "adagrad"),
        ({"optimizer": EmbOptimType.PARTIAL_ROWWISE_ADAM}, None, "partial_rowwise_adam"),
        ({}, torch.optim.Adagrad, "adagrad"),
        (None, torch.optim.Adam, "adam"),
    ],
)
def test_optimizer_set_on_weights_overrides_the_sharders_fused_params(fused, on_weights, counted):
    """An optimizer that is set on weights takes precedence over that of the sharder."""
    collection = bags("a")
    if on_weights:
        apply_optimizer_in_backward(on_weights, collection.parameters(), {"lr": 0.1})
    task = planner().search(collection, [EmbeddingBagCollectionSharder(fused_params=fused)]).task
    assert task.memory == MemoryUse(counted, batches_in_flight=1, dense_optimizer="adam")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"storage_reservation": None}, True),
        ({"storage_reservation": None, "device": "cpu"}, False),
        ({"storage_reservation": None, "cap": 1 << 26}, False),
        ({"storage_reservation": FixedPercentageStorageReservation(0.15)}, False),
    ],
)
def test_planner_warns_of_dense_networks_larger_than_the_default_reservation(settings, warned, caplog):
    """The dense network has 1 MiB of parameters: 4 MiB with gradients and Adam's state, of 16 MiB x 0.15."""
    model = nn.ModuleDict({"tables": bags("a"), "dense": nn.Linear(512, 512, bias=False)})
    planner(**{"device": "cuda", "models": "roofline:h100", "cap": 1 << 24} | settings).plan(model)
    assert ("reservation-dense-large" in logged_codes(caplog)) is warned
    if warned:
        names = ["1 MiB", "4 MiB", "2.4 MiB", "HeuristicalStorageReservation(0.15)"]
        logged_one(caplog, "reservation-dense-large", where="storage_reservation", names=names)


def _big_and_small(of_big, of_small):
    """A large and a small table, whose optimizers are set on their weights."""
    model = shaped_bags({"big": (10_000, 16), "small": (100, 16)})
    for name, optimizer in (("big", of_big), ("small", of_small)):
        apply_optimizer_in_backward(optimizer, [model.embedding_bags[name].weight], {"lr": 0.1})
    return model


@pytest.mark.parametrize(
    ("of_big", "of_small", "names"),
    [
        (torch.optim.SGD, torch.optim.Adam, ["1 table (small: Adam)", "8 bytes", "2 tables", "MemoryUse('sgd'"]),
        (torch.optim.SGD, LAMB, ["1 table (small: LAMB)", "8 bytes"]),
        (RowWiseAdagrad, torch.optim.Adagrad, ["(small: Adagrad)", "4 bytes", "MemoryUse('rowwise_adagrad'"]),
        (torch.optim.Adam, torch.optim.SGD, None),  # the small table counts hardly more than it needs
        (torch.optim.Adam, torch.optim.Adam, None),
        (torch.optim.SGD, RowWiseAdagrad, None),  # has a state for each row
    ],
)
def test_planner_warns_if_the_state_of_a_small_table_counts_for_a_large_one(of_big, of_small, names, caplog):
    planner().plan(_big_and_small(of_big, of_small))
    if names is None:
        assert "optimizer-states-differ" not in logged_codes(caplog)
        return
    remedy = logged_one(caplog, "optimizer-states-differ", names=names).remedy
    caplog.clear()
    memory = MemoryUse("sgd", batches_in_flight=1)
    planner(memory=memory).plan(_big_and_small(of_big, of_small))
    assert "optimizer-states-differ" not in logged_codes(caplog)
    assert "storage_reservation=" in remedy


def test_error_without_a_plan_names_the_table_whose_state_counts_for_all(caplog):
    model, tight = _big_and_small(torch.optim.SGD, torch.optim.Adam), 400_000
    with pytest.raises(InfeasibleError) as raised:
        planner(cap=tight).plan(model)
    remedy = raised.value.message.remedy
    assert all(text in remedy for text in ("small: Adam", "MemoryUse('sgd'", "8 bytes"))
    assert planner(cap=tight, memory=MemoryUse("sgd", batches_in_flight=1)).plan(model)
    with pytest.raises(InfeasibleError) as raised:
        planner(cap=1000).plan(_big_and_small(torch.optim.SGD, torch.optim.SGD))
    assert "MemoryUse" not in raised.value.message.remedy


def test_planner_keeps_parameter_constraints_and_rules_together():
    constraints = {
        "t0": ParameterConstraints(min_partition=32, bounds_check_mode=BoundsCheckMode.IGNORE),
        "t1": ParameterConstraints(sharding_types=["table_wise"]),
    }
    rules = Constraints((TableRule("t1", devices=(1,)),))
    ours = planner(4, on_host=2, batch_size=64, constraints=constraints, rules=rules)
    plan = ours.plan(shaped_bags({"t0": (100, 128), "t1": (100, 64)})).plan[""]
    assert plan["t1"].ranks == [1]
    assert plan["t0"].bounds_check_mode == BoundsCheckMode.IGNORE
    assert len(plan["t0"].ranks) > 1
    assert min(shard.shard_sizes[1] for shard in plan["t0"].sharding_spec.shards) >= 32


@pytest.mark.parametrize(
    ("types", "kernels", "found"),
    [
        (["table_wise", "column_wise", "data_parallel"], None, "data_parallel"),
        (["table_wise", "column_wise", "data_parallel"], ["fused"], "column_wise"),
        (["table_wise", "column_wise"], None, "columns"),
        (None, None, "columns"),
    ],
)
def test_tables_are_data_parallel_only_if_sharding_types_and_kernels_allow_it(types, kernels, found, caplog):
    """With six small tables on eight devices, data_parallel costs least."""
    given = ParameterConstraints(sharding_types=types, compute_kernels=kernels)
    constraints = dict.fromkeys("abcdef", given) if types else {}
    settings = {"models": "roofline:h100", "batch_size": 8192, "constraints": constraints}
    plan = planner(8, "cuda", 1 << 32, on_host=2, **settings).plan(bags(*"abcdef", rows=1000, dim=128))
    kinds = {kind for kind, _ in places(plan).values()}
    assert kinds == {"data_parallel"} if found == "data_parallel" else kinds <= {"table_wise", "column_wise"}
    assert ("tables-optimizer-not-applied" in logged_codes(caplog)) is (found == "data_parallel")
    if found == "data_parallel":
        logged_one(caplog, "tables-optimizer-not-applied", names=["6 tables", "(a, b, c, d, e, f)", "data_parallel"])


def test_planner_reports_user_mistakes_in_one_line():
    with refused("device-buffers-too-large", kind=InfeasibleError, names=["topology.memory_bytes"]):
        planner(cap=1000).plan(bags("a", rows=1000, dim=64))
    with refused("planner-topology-unknown", names=["topology=", "init_process_group"]):
        NeuroShardPlanner()
    with refused("planner-collective-no-group", names=["init_process_group"]):
        planner().collective_plan(SMALL)


def test_planner_accepts_a_searcher_object_name_or_settings():
    plan = planner(searcher=AllOnLast()).search(TWO)
    assert {p.device for p in plan.placements} == {1}
    by_name = planner(searcher="dim_greedy").search(TWO)
    assert {p.device for p in by_name.placements} == {0, 1}
    assert planner(max_splits=0, improvement={"perturbations": 0}).search(TWO).violations == ()


def test_planner_takes_the_topology_from_the_process_group(group):
    ours = NeuroShardPlanner()
    assert ours.collective_plan(bags("a")).plan[""]["a"].ranks == [0]
    assert ours.last_plan.task.topology.num_devices == 1
    added = {"framework.input", "framework.kernels", "framework.outputs"}
    assert added <= {part.name for part in ours.last_cost.parts}  # of the models "cpu" for steps of TorchRec
    with refused("constraints-numbers-per-feature", where="constraints of table 't'", names=["pooling_factors", 1]):
        NeuroShardPlanner(**_of_t(pooling_factors=[1.0, 2.0])).collective_plan(SMALL)


def _in_a_part_of_the_job(rank):
    part = dist.new_group([1, 2])
    if rank == 0:
        return

    def fails(options):
        """Fail as a user's callback may."""
        raise KeyError("t")

    found = planner(**_of_t(sharding_types=["table_wise"])).collective_plan(bags("t"), pg=part)
    assert found.plan[""]["t"].ranks == [0]
    with refused("constraints-min-partition", where="constraints of table 't'", names=["min_partition", 0]):
        planner(**_of_t(min_partition=0)).collective_plan(SMALL, pg=part)
    with pytest.raises(KeyError if rank == 1 else RuntimeError, match="'t'"):
        planner(callbacks=[fails]).collective_plan(bags("t"), pg=part)


def test_ranks_of_a_process_group_within_the_job_plan_and_fail_together():
    on_gloo(3, _in_a_part_of_the_job)


def test_planner_warns_of_default_models_and_unknown_dense_time_on_gpus(caplog):
    NeuroShardPlanner(topology(device="cuda"))
    logged_one(caplog, "planner-models-default", names=["models='h100'"])
    logged_one(caplog, "planner-dense-time-unknown", names=["dense_ms=8"])
    caplog.clear()
    NeuroShardPlanner(topology(device="cuda"), dense_ms=8)
    assert logged_codes(caplog) == ["planner-models-default"]


def _models_of(**given):
    return planner(device="cuda", **given)._finder.simulator.models


def _choice_and_cost(models):
    plan = whole(replace(toy_task(2), batch_size=65536))
    return models.choice, Simulator(models).cost(plan.task, plan).total_ms


@pytest.mark.parametrize(
    ("given", "loaded"),
    [
        ({}, {"framework": "torchrec"}),
        ({"framework": "none"}, {"framework": "none"}),
        ({"dense_ms": 8}, {"framework": "torchrec", "dense_ms": 8}),
        ({"exchange_dtype": "fp16/bf16"}, {"framework": "torchrec", "exchange_dtype": "fp16/bf16"}),
    ],
)
def test_planner_applies_model_settings_to_the_loaded_models(given, loaded):
    assert _choice_and_cost(_models_of(models="h100", **given)) == _choice_and_cost(CostModels.load("h100", **loaded))


def test_the_overhead_of_torchrec_counts_if_models_know_it():
    assert _models_of(models=CostModels.load("h100")).of_whole_steps
    assert not _models_of(models=CostModels.load("h100", framework="none")).of_whole_steps
    assert not _models_of(models="roofline:h100").of_whole_steps
    assert _models_of(models="roofline:h100", framework="torchrec").of_whole_steps


def test_planner_passes_model_optimizer_to_datasheet_models():
    assert datasheet_of(_models_of(models="roofline:h100", model_optimizer="adam").compute).optimizer == "adam"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"framework": "torchrec"}, "framework=torchrec"),
        ({"dense_ms": 8.0}, "dense_ms=8"),
        ({"exchange_dtype": "fp16"}, "exchange_dtype=fp16"),
        ({"model_optimizer": "adam"}, "optimizer=adam"),
    ],
)
def test_planner_refuses_model_settings_for_loaded_models(given, named):
    with refused("planner-models-loaded-already", names=[named, "CostModels.load"]):
        planner(models=CostModels.load("roofline:h100"), **given)


ROWS, DIM, LOOKUPS, BATCH_SIZE = 1000, 64, 50.0, 128


def _in_pipeline(pipeline, cap=1 << 24, **settings):
    """The planner of a job with a pipeline, and our plan for its one table."""
    given = {"models": "roofline:h100", "batch_size": BATCH_SIZE, "storage_reservation": None}
    given |= _of_t(sharding_types=["column_wise"], pooling_factors=[LOOKUPS])
    gpus = topology(device="cuda", cap=cap, ddr_cap=1)
    ours = planner(topology=gpus, pipeline=pipeline, **given | settings)
    return ours, ours.search(bags("t", rows=ROWS, dim=DIM))


@pytest.mark.parametrize("pipeline", [None, "none", "sparse_dist", "prefetch", "semi_sync"])
def test_planner_counts_the_input_dist_only_without_a_pipeline(pipeline):
    cost = _in_pipeline(pipeline)[0].last_cost
    assert cost.ms("input").max() > 0
    assert ("input" in {part.name for part in cost.parts if part.counts}) is (pipeline == "none")


def test_planner_warns_if_models_do_not_know_the_input_exchange(caplog):
    _, plan = _in_pipeline("none", models=linear_models(2))
    logged_one(caplog, "models-input-dist-missing", names=["pipeline='none'"])
    assert plan.task.memory.pipeline == "none"


def test_planner_counts_memory_of_the_pipeline_instead_of_one_batch():
    def use(pipeline, memory=None):
        return _in_pipeline(pipeline, memory=memory)[1].task.memory

    assert use(None) == MemoryUse("sgd", 1, dense_optimizer="adam")
    assert use("prefetch").in_flight == MemoryUse(pipeline="prefetch").in_flight
    assert use("sparse_dist") == MemoryUse("sgd", 1, "sparse_dist", "adam")
    assert use("sparse_dist", MemoryUse("adam", 1)) == MemoryUse("adam", 1, "sparse_dist")


def test_planner_refuses_a_plan_that_exceeds_memory_in_the_pipeline():
    """Each device has half of 256 KB of weights, and 104 KB of indices and lengths per permuted batch."""
    weights, outputs, batch = ROWS * DIM * 4 // 2, 2 * 4 * 2 * BATCH_SIZE * DIM, 8 * 2 * BATCH_SIZE * (LOOKUPS + 1)
    room, more = (int((weights + outputs + batches * batch) / 0.85) for batches in (2, 6))
    assert _in_pipeline(None, cap=room)[1].fits
    with refused("device-memory-too-small", kind=InfeasibleError):
        _in_pipeline("sparse_dist", cap=room)
    assert _in_pipeline("sparse_dist", cap=more)[1].fits


def test_without_torchrec_everything_else_works_and_the_error_says_what_to_install():
    code = """
import sys
sys.modules["torchrec"] = None
import neuroshard as ns
from neuroshard.testing import linear_models, toy_task
task, simulator = toy_task(), ns.Simulator(linear_models())
ns.search(task, simulator)
for use in (lambda: __import__("neuroshard.torchrec"), lambda: ns.search(task, simulator, "torchrec")):
    try:
        use()
    except ns.UserError as error:
        assert isinstance(error, ImportError)
        print(error.code, error.message.remedy)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [line.partition(" ")[0] for line in shown.splitlines()] == ["torchrec-not-installed"] * 2
    assert all("pip install --no-deps torchrec==" in line for line in shown.splitlines())
    assert issubclass(MissingPackageError, UserError)


@pytest.mark.parametrize("kind", ["row_wise", "data_parallel"])
def test_tables_with_multi_device_types_are_delegated_on_one_device(kind, caplog):
    ours = planner(1, "cuda", models="roofline:h100", batch_size=64, **_of_t(sharding_types=[kind]))
    assert ours.plan(bags("t", rows=1000, dim=64)).plan[""]["t"].sharding_type == kind
    logged_one(caplog, "tables-delegated", names=[f"sharding_types=['{kind}']", "table-wise"])


def test_row_wise_tables_with_too_few_rows_are_delegated():
    few = ParameterConstraints(sharding_types=["row_wise"])
    ours = planner(8, "cuda", batch_size=64, constraints={"few": few})
    plan = ours.plan(shaped_bags({"few": (9, 16), "many": (1000, 16)})).plan[""]
    assert plan["few"].sharding_type == "row_wise"
    assert [table.name for table in ours.last_plan.task.tables] == ["many"]


@pytest.mark.parametrize(
    ("devices", "code", "named"),
    [
        (2, "given-rank-outside", ["'t'", "rank 3", "2 ranks"]),
        (8, "given-ranks-missing", ["'t'", "'row_wise'", 4, "8 ranks"]),
    ],
)
def test_given_plan_for_another_number_of_ranks_is_refused(devices, code, named):
    model = bags("t", rows=1000, dim=64)
    given = planner(4, "cuda", batch_size=64, **_of_t(sharding_types=["row_wise"])).plan(model)
    assert places(planner(4, "cuda", batch_size=64, given=given).plan(model)) == places(given)
    with refused(code, where="given", names=named):
        planner(devices, "cuda", batch_size=64, given=given).plan(model)


def test_constraints_of_a_table_do_not_apply_to_a_table_of_the_same_name():
    """Tables of ten columns become data-parallel; INT8 tables are delegated, and would not fit if data-parallel."""
    odd, large = bags("t", rows=1000, dim=10), bags("t", rows=200_000, dim=16, data_type=DataType.INT8)
    plan = planner(2, "cuda", batch_size=64, cap=4 << 20).plan(nn.ModuleDict({"odd": odd, "large": large}))
    types = {path: its["t"].sharding_type for path, its in plan.plan.items()}
    assert types["odd"] == "data_parallel"
    assert types["large"] in IN_ROWS


@pytest.mark.parametrize("number", [np.int64(128), np.uint8(128), torch.tensor(128)])
def test_batch_sizes_may_be_whole_numbers_of_any_type(number):
    task = planner(batch_size=number).search(SMALL).task
    assert task == planner(batch_size=128).search(SMALL).task
    assert type(task.batch_size) is int


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"batch_size": "64"}, "planner-batch-size-invalid", ["batch_size", "'64'", 1]),
        ({"batch_size": -5}, "planner-batch-size-invalid", ["batch_size", -5, 1]),
        ({"batch_size": 0}, "planner-batch-size-invalid", ["batch_size", 0, 1]),
        ({"models": 3}, "planner-argument-type", ["models", 3, "CostModels or str"]),
        ({"storage_reservation": 0.1}, "planner-argument-type", ["storage_reservation", 0.1, "StorageReservation"]),
        ({"rules": {}}, "planner-argument-type", ["rules", {}, "Constraints"]),
        ({"memory": "training"}, "planner-argument-type", ["memory", "'training'", "MemoryUse"]),
        ({"stats": True}, "planner-argument-type", ["stats", True, "Stats or Sequence"]),
        ({"callbacks": print}, "planner-argument-type", ["callbacks", print, "Sequence"]),
        ({"plan_loader": "x"}, "planner-argument-type", ["plan_loader", "'x'", "PlanLoader"]),
        ({"keep": "plan.json", "plan_loader": object()}, "planner-keep-with-loader", ["keep=", "plan_loader="]),
        ({"sync_steps": "10"}, "planner-argument-type", ["sync_steps", "'10'", "int"]),
        *(
            ({"sync_steps": 0, "num_groups": number}, "groups-sync-steps-low", ["sync_steps", 0, 1])
            for number in (2, "auto")
        ),
        *(
            ({"num_groups": number}, "groups-number-type", ["num_groups", repr(number), "'auto'"])
            for number in ("2", "foo", 2.0, None, True)
        ),
        ({"given": "p.json"}, "planner-given-type", ["given", "'p.json'", "ShardingPlan", "load_sharding_plan"]),
        ({"timeout_seconds": "3"}, "planner-timeout-not-positive", ["timeout_seconds", "'3'", 0]),
        ({"timeout_seconds": 0}, "planner-timeout-not-positive", ["timeout_seconds", 0]),
        ({"pipeline": "fast"}, "unknown-name", ["pipeline", "'fast'"]),
        ({"searcher": AllOnLast(), "beam_width": 2}, "searcher-setting-twice", ["beam_width=2", "AllOnLast"]),
        ({"searcher": 3}, "searcher-not-method", ["searcher", 3, "'neuroshard'"]),
        ({"verify": "mirored", "models": "cpu"}, "unknown-name", ["verify", "'mirored'", "'mirrored'"]),
        ({"verify": "mirrored"}, "planner-verify-loaded-models", ["'mirrored'", "models="]),
        ({"verify": "mirrored", "models": "cpu", "passes": 1}, "value-outside-limits", ["passes", 1, 2]),
        (
            {"verify": "mirrored", "models": "cpu", "candidate_plans": 0},
            "value-outside-limits",
            ["candidate_plans", 0, 1],
        ),
        ({"constraints": ["t"]}, "constraints-not-mapping", ["constraints", ["t"], "ParameterConstraints"]),
        *(
            ({"batch_size": number}, "planner-batch-size-invalid", ["batch_size", repr(number), 1])
            for number in (True, np.True_, 64.0, np.float64(64), np.array([64, 64]), torch.tensor([64, 64]))
        ),
    ],
)
def test_meaningless_arguments_are_refused_in_one_line(settings, code, named):
    with refused(code, where="", names=named):
        planner(**settings).plan(SMALL)


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"constraints": {"t": "row_wise"}}, "constraints-entry-type", ["'row_wise'", "ParameterConstraints"]),
        (_of_t(device_group="cuda"), "constraints-device-group", ["device_group", "'cuda'", "'cpu'"]),
        (_of_t(min_partition=0), "constraints-min-partition", ["min_partition", 0, 1]),
        (_of_t(cache_params=CacheParams(load_factor=1.5)), "constraints-load-factor", ["load_factor", 1.5, 0, 1]),
        *(
            (_of_t(**{field: [number]}), "constraints-numbers-not-positive", [field, [number], 0])
            for field, number in (("pooling_factors", -1.0), ("pooling_factors", float("nan")), ("batch_sizes", 0))
        ),
    ],
)
def test_meaningless_constraints_are_refused_with_the_table_name(settings, code, named):
    with refused(code, where="constraints of table 't'", names=named):
        planner(**settings).plan(SMALL)


@pytest.mark.parametrize("rows", [20, 4000])
def test_planner_refuses_given_plans_of_tables_of_another_shape(rows, tmp_path):
    given = planner().plan(bags("t", rows=40, dim=8))
    shapes = ["'t'", f"{rows} x 8", "40 x 8"]
    with refused("planned-table-shape-differs", names=shapes):
        planner(given=given).plan(bags("t", rows=rows, dim=8))
    save_sharding_plan(given, tmp_path / "plan.json")
    with refused("planned-table-shape-differs", names=shapes):
        load_sharding_plan(tmp_path / "plan.json", bags("t", rows=rows, dim=8))
    assert load_sharding_plan(tmp_path / "plan.json", bags("t", rows=40, dim=8)).plan.keys() == given.plan.keys()
