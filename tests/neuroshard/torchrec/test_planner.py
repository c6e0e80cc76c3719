"""The drop-in planner, in one process."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedAbsoluteStorageReservation
from torchrec.distributed.types import BoundsCheckMode, ShardingPlanner

from neuroshard.plans.plan import assemble
from neuroshard.plumbing.errors import InfeasibleError, MissingPackageError, UserError
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models
from neuroshard.torchrec import NeuroShardPlanner
from tests.kit.torchrec_models import META, bag

SHARDERS = [EmbeddingBagCollectionSharder()]


def _collection(*shapes):
    return EmbeddingBagCollection([bag(f"t{i}", *shape) for i, shape in enumerate(shapes)], device=META)


class _TwoCollections(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = _collection((100, 16), (50, 8)), _collection((1000, 32))


def _planner(devices=2, cap=1 << 20, device="cpu", **settings):
    topology = Topology(devices, device, ddr_cap=cap, hbm_cap=cap, local_world_size=2, created_by_factory=True)
    settings = {"models": linear_models(devices), "batch_size": 256 // devices} | settings
    return NeuroShardPlanner(topology=topology, **settings)


def test_it_is_a_planner_and_covers_all_collections():
    planner = _planner()
    assert isinstance(planner, ShardingPlanner)
    plan = planner.plan(_TwoCollections(), SHARDERS)
    assert {path: sorted(names) for path, names in plan.plan.items()} == {"one": ["t0", "t1"], "other": ["t0"]}
    ours = planner.search(_TwoCollections(), SHARDERS)
    assert [table.name for table in ours.task.tables] == ["one.t0", "t1", "other.t0"]
    assert ours.task.batch_size == 256
    assert ours.violations == ()


def test_a_model_without_tables_needs_no_plan():
    assert _planner().plan(nn.Linear(2, 2)).plan == {}


def test_gpus_are_numbered_within_their_host():
    plan = _planner(4, device="cuda").plan(_collection(*[(100, 64)] * 4), SHARDERS)
    places = {str(p.sharding_spec.shards[0].placement) for p in plan.plan[""].values()}
    assert places == {"rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"}


def test_pods_are_domains_of_fast_links():
    topology = Topology(8, "cuda", hbm_cap=1 << 20, local_world_size=2, pod_size=2, created_by_factory=True)
    whole = {f"t{i}": ParameterConstraints(sharding_types=["table_wise"]) for i in range(8)}
    planner = NeuroShardPlanner(topology=topology, models="roofline:b200", batch_size=64, constraints=whole)
    task = planner.search(_collection((100, 16)), SHARDERS).task
    assert (task.topology.host_size, task.topology.domain_size) == (2, 4)
    places = {
        str(shard.placement)
        for one in planner.plan(_collection(*[(100, 64)] * 8), SHARDERS).plan[""].values()
        for shard in one.sharding_spec.shards
    }
    assert places <= {f"rank:{rank}/cuda:{rank % 2}" for rank in range(8)}


@pytest.mark.parametrize(
    ("models", "coded", "warned"),
    [("roofline:h100", True, 1), ("roofline:h100+fp16/bf16", True, 0), ("roofline:h100", False, 0)],
)
def test_other_precisions_of_exchanges_than_the_models_count_are_said_once(models, coded, warned, caplog):
    config = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    registry = get_qcomm_codecs_registry(config) if coded else None
    sharders = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)]
    topology = Topology(2, "cuda", hbm_cap=1 << 20, created_by_factory=True)
    NeuroShardPlanner(topology=topology, models=models, batch_size=64).plan(_collection((100, 16)), sharders)
    assert caplog.text.count("byte(s) of an element forward, and costs count 4; give models=NAME+fp16") == warned
    assert "full precision" not in caplog.text


def test_memory_is_what_the_reservation_leaves():
    task = _planner(device="cuda").search(_collection((10, 4)), SHARDERS).task
    assert task.topology.device_memory == (int(0.85 * (1 << 20)),) * 2
    kept = FixedAbsoluteStorageReservation(1000)
    task = _planner(device="cuda", storage_reservation=kept).search(_collection((10, 4)), SHARDERS).task
    assert task.topology.device_memory == ((1 << 20) - 1000,) * 2


@pytest.mark.parametrize(
    ("fused", "counted"),
    [
        (None, "sgd"),
        ({"optimizer": "exact_sgd"}, "sgd"),
        ({"optimizer": "exact_row_wise_adagrad"}, "rowwise_adagrad"),
        ({"optimizer": "lamb"}, "adam"),
    ],
)
def test_optimizer_state_counts(fused, counted):
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    assert _planner().search(_collection((10, 4)), sharders).task.memory == MemoryUse(counted, batches_in_flight=1)


def test_the_optimizer_on_the_weights_counts_more_than_the_sharders():
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    collection = _collection((10, 4))
    apply_optimizer_in_backward(torch.optim.Adam, collection.parameters(), {"lr": 0.1})
    assert _planner().search(collection, SHARDERS).task.memory.optimizer == "adam"


def test_constraints_of_both_kinds_hold():
    constraints = {
        "t0": ParameterConstraints(min_partition=32, bounds_check_mode=BoundsCheckMode.IGNORE),
        "t1": ParameterConstraints(sharding_types=["table_wise"]),
    }
    rules = Constraints((TableRule("t1", devices=(1,)),))
    planner = _planner(4, constraints=constraints, rules=rules)
    plan = planner.plan(_collection((100, 128), (100, 64)), SHARDERS).plan[""]
    assert plan["t1"].ranks == [1]
    assert plan["t0"].bounds_check_mode == BoundsCheckMode.IGNORE
    assert len(plan["t0"].ranks) > 1
    assert min(shard.shard_sizes[1] for shard in plan["t0"].sharding_spec.shards) >= 32


@pytest.mark.parametrize(
    ("types", "kernels", "found"),
    [
        (["table_wise", "column_wise", "data_parallel"], None, "data_parallel"),
        (["table_wise", "column_wise", "data_parallel"], ["fused"], "columns"),
        (["table_wise", "column_wise"], None, "columns"),
        (None, None, "data_parallel"),
    ],
)
def test_tables_are_copied_only_where_sharding_types_and_kernels_allow_it(types, kernels, found, caplog):
    """Six small tables on eight devices: copies cost least."""
    given = ParameterConstraints(sharding_types=types, compute_kernels=kernels)
    constraints = {f"t{i}": given for i in range(6)} if types else {}
    planner = _planner(8, 1 << 32, "cuda", models="roofline:h100", batch_size=8192, constraints=constraints)
    plan = planner.plan(_collection(*[(1000, 128)] * 6), SHARDERS).plan[""]
    kinds = {parameter.sharding_type for parameter in plan.values()}
    assert kinds == {"data_parallel"} if found == "data_parallel" else kinds <= {"table_wise", "column_wise"}
    assert ("6 table(s) in copies" in caplog.text) is (found == "data_parallel")


def test_mistakes_are_one_line():
    with pytest.raises(InfeasibleError, match="give each"):
        _planner(cap=1000).plan(_collection((1000, 64)), SHARDERS)
    with pytest.raises(UserError, match="no process group"):
        NeuroShardPlanner()
    with pytest.raises(UserError, match="no process group"):
        _planner().collective_plan(_collection((10, 4)), SHARDERS)
    with pytest.raises(UserError, match="no cost models for compute device 'mtia'"):
        NeuroShardPlanner(Topology(2, "mtia", created_by_factory=True))


class _AllOnOne(Searcher):
    """Somebody's own method."""

    def find(self, task, simulator):
        return Found(assemble(task, [(index, table.dim, 1) for index, table in enumerate(task.tables)]))


def test_any_searcher_may_be_handed_over():
    plan = _planner(searcher=_AllOnOne()).search(_TwoCollections(), SHARDERS)
    assert {p.device for p in plan.placements} == {1}
    by_name = _planner(searcher="dim_greedy").search(_TwoCollections(), SHARDERS)
    assert {p.device for p in by_name.placements} == {0, 1}
    assert _planner(max_splits=0, improvement={"shakes": 0}).search(_TwoCollections(), SHARDERS).violations == ()
    with pytest.raises(
        UserError, match="beam_width=2 goes with a searcher's name only; give it to the _AllOnOne itself"
    ):
        _planner(searcher=_AllOnOne(), beam_width=2)
    with pytest.raises(UserError, match="searcher=3 must be the name of a search method, or a Searcher"):
        _planner(searcher=3)


def test_the_process_group_gives_the_topology(group):
    planner = NeuroShardPlanner()
    plan = planner.collective_plan(_collection((100, 16)))
    assert plan.plan[""]["t0"].ranks == [0]
    assert planner.last_plan.task.topology.num_devices == 1
    added = {"framework.input", "framework.kernels", "framework.outputs"}
    assert added <= {part.name for part in planner.last_cost.parts}  # of cpu+torchrec
    refused = {"t0": ParameterConstraints(pooling_factors=[1.0, 2.0])}
    with pytest.raises(UserError, match="need one number for each"):
        NeuroShardPlanner(constraints=refused).collective_plan(_collection((10, 4)))


def test_gpus_without_models_of_their_own_are_warned_about(caplog):
    NeuroShardPlanner(Topology(2, "cuda", created_by_factory=True))
    assert "datasheet (roofline:h100)" in caplog.text


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
        print(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert len(shown.splitlines()) == 2
    assert all("pip install --no-deps torchrec==" in line for line in shown.splitlines())
    assert issubclass(MissingPackageError, UserError)
