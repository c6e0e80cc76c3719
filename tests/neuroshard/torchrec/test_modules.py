"""Every kind of module with tables: planned by NeuroShard, delegated to TorchRec's planner, or in a given plan."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.keyed_jagged_tensor_pool import KeyedJaggedTensorPoolSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, get_default_sharders, row_wise
from torchrec.distributed.tensor_pool import TensorPoolSharder
from torchrec.distributed.types import (
    CacheParams,
    KeyValueParams,
    ObjectPoolShardingPlan,
    ObjectPoolShardingType,
    ShardingPlan,
    ShardingType,
)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.keyed_jagged_tensor_pool import KeyedJaggedTensorPool
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.modules.tensor_pool import TensorPool
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantEmbeddingCollection
from torchrec.types import DataType

import neuroshard as ns
from neuroshard import Constraints, InfeasibleError, TableRule, UserError
from neuroshard.plumbing.messages import number_of
from neuroshard.testing import toy_task
from neuroshard.torchrec.delegated import without_data_parallel_remarks
from neuroshard.torchrec.modules import EVERYTHING, divide, find_tables
from neuroshard.torchrec.releases import TORCHREC
from neuroshard.words.form import Form
from tests.kit.messages import logged_codes, logged_one, refused
from tests.kit.searches import H100
from tests.kit.torchrec_models import CPU, META, bag, bags, places, planned, planner, sequence, sequences, topology
from tests.kit.training import sharded

ROWS, DIM, CAP = 64, 16, 1 << 20
_bags, _sequences = partial(bags, rows=ROWS, dim=DIM), partial(sequences, rows=ROWS, dim=DIM)


def _weighted(name):
    weighted = EmbeddingBagCollection([bag(name, ROWS, DIM)], device=META, is_weighted=True)
    return FeatureProcessedEmbeddingBagCollection(weighted, {f"f_{name}": PositionWeightedModule(10, device=META)})


def _remapped(name, configs):
    settings = {"eviction_interval": 2, "input_hash_size": 1000, "buckets": 2}
    remaps = MCHManagedCollisionModule(ROWS, CPU, DistanceLFU_EvictionPolicy(), **settings)
    return ManagedCollisionCollection({name: remaps}, configs)


def _collision_bags(name):
    bags = _bags(name, device=CPU)
    return ManagedCollisionEmbeddingBagCollection(bags, _remapped(name, bags.embedding_bag_configs()))


def _collision_sequences(name):
    sequences = _sequences(name, device=CPU)
    return ManagedCollisionEmbeddingCollection(sequences, _remapped(name, sequences.embedding_configs()))


def _fused(name):
    return FusedEmbeddingBagCollection([bag(name, ROWS, DIM)], torch.optim.Adagrad, {"lr": 0.1}, device=CPU)


def _beside(other):
    """A plain collection beside another module."""
    return nn.ModuleDict({"plain": _bags("a", "b"), "other": other, "over": nn.Linear(4, 1)})


def _said(table, **fields):
    """Return constraints of one table, or none if there are no fields."""
    return {table: ParameterConstraints(**fields)} if fields else {}


def _ours(planner):
    """Return the names of the tables that NeuroShard planned."""
    return [table.name for table in planner.last_plan.task.tables]


@pytest.mark.parametrize("make", [bags, sequences, partial(bags, dim=10)])
def test_planner_on_cpus_refuses_tables_of_bf16(make):
    with refused("table-bf16-on-cpu", names=["'t'", "BF16", "data_type", "FP16", "FP32"]):
        planner(models="roofline:h100").plan(make("t", data_type=DataType.BF16))


HELD = ("ManagedCollisionEmbeddingBagCollection", "ManagedCollisionEmbeddingCollection")
INT8 = {"data_type": DataType.INT8}
QUANTISED = ("EmbeddingBagCollection", "EmbeddingCollection")  # TorchRec's quantised ones are called so


@pytest.mark.parametrize(
    ("module", "given", "named"),
    [
        (_bags("c"), {}, None),
        (_weighted("c"), {}, None),
        (_fused("c"), {}, None),
        (_sequences("c"), {}, None),
        (_collision_bags("c"), {}, HELD[0]),
        (_collision_sequences("c"), {}, HELD[1]),
        (QuantEmbeddingBagCollection([bag("c", ROWS, DIM, **INT8)], is_weighted=False, device=CPU), {}, QUANTISED[0]),
        (QuantEmbeddingCollection([sequence("c", ROWS, DIM, **INT8)], device=CPU), {}, QUANTISED[1]),
        (_bags("c", data_type=DataType.FP16), {}, None),
        (_bags("c", data_type=DataType.BF16), {}, None),
        (_bags("c", **INT8), {}, "INT8"),
        (_bags("c", dim=10), {}, None),
        (_sequences("c", dim=10), {}, "10"),
        (_bags("c"), {"sharding_types": ["table_row_wise"]}, "sharding_types=['table_row_wise']"),
        (_bags("c"), {"sharding_types": ["row_wise", "table_wise"]}, None),
        (_bags("c"), {"compute_kernels": ["key_value"]}, "compute_kernels=['key_value']"),
        (_bags("c"), {"compute_kernels": ["fused"]}, None),
        (_sequences("c", data_type=DataType.FP16), {}, None),
        (_sequences("c", enable_embedding_update=True), {}, "enable_embedding_update"),
        (_sequences("c"), {"sharding_types": ["data_parallel"]}, "sharding_types=['data_parallel']"),
        (_sequences("c"), {"sharding_types": ["row_wise", "table_wise"]}, None),
    ],
)
def test_every_table_is_planned_and_only_unsupported_ones_are_delegated(module, given, named, caplog):
    """Managed collision collections are sharded together with the remapping of their ids, row-wise only.

    The warning of a delegated table names the table, and the class, data type or setting that NeuroShard lacks.
    """
    settings = {"device": "cuda", "models": "roofline:h100", "constraints": _said("c", **given)}
    ours, plan = planned(_beside(module), **settings, data_parallel=True)
    assert {path: set(names) for path, names in plan.plan.items()} == {"plain": {"a", "b"}, "other": {"c"}}
    assert _ours(ours) == (["a", "b"] if named else ["a", "b", "c"])
    if named is None:
        assert "tables-delegated" not in logged_codes(caplog)
        return
    logged_one(caplog, "tables-delegated", names=["other.c", named])
    if named in HELD + QUANTISED:
        whole = ROWS * DIM * (1 if named in QUANTISED else 4)
        taken = 2 * CAP - sum(ours.last_plan.task.topology.device_memory)
        assert whole <= taken < 2 * whole + 50_000  # with buffers of a batch; a copy on both at most


@pytest.mark.parametrize(("make", "sharder"), [(_collision_bags, HELD[0]), (_bags, "_Nowhere")])
def test_sharder_without_a_sharding_type_on_cpus_is_refused_with_a_remedy(make, sharder):
    """TorchRec shards no managed collision bags on CPUs."""
    sharders = [_Nowhere()] if sharder == "_Nowhere" else None
    with refused("delegated-sharder-without-types", names=["'other.c'", sharder, "cpu", "sharders="]) as raised:
        planner(models="roofline:h100").plan(nn.ModuleDict({"other": make("c")}), sharders)
    remedy = raised.value.message.remedy
    assert [named in remedy for named in ("row_wise", "cuda", "topology")] == [sharder == HELD[0]] * 3


class _Nowhere(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type):
        return []


class _CopiesOnly(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type):
        return [ShardingType.DATA_PARALLEL.value]


def test_tables_of_sharders_that_cannot_split_are_delegated():
    assert places(planner().plan(_bags("c"), [_CopiesOnly()])) == {"c": ("data_parallel", [0, 1])}


@pytest.mark.parametrize(
    ("settings", "named"),
    [({}, "compute.pooled=[true,false]"), ({"models": "roofline:h100", "searcher": "torchrec"}, "TorchRecSearch")],
    ids=["unknown to the models", "unknown to the search"],
)
def test_planner_delegates_sequence_tables_that_models_do_not_know(settings, named, caplog):
    ours, plan = planned(_beside(_sequences("s")), **settings)
    assert set(plan.plan["other"]) == {"s"}
    assert _ours(ours) == ["a", "b"]
    logged_one(caplog, "tables-delegated", names=["other.s", named])


@pytest.mark.parametrize(
    ("share", "types", "found"),
    [
        (1.5, {"sharding_types": ["table_wise"]}, "table_wise"),
        (1.5, {"sharding_types": ["column_wise"]}, "column_wise"),
        (0.7, {"sharding_types": ["table_wise", "column_wise"]}, "column_wise"),
        (0.4, {"sharding_types": ["table_wise", "column_wise"]}, None),
        (0.4, {}, "row_wise"),
        (0.4, {"sharding_types": ["table_wise", "row_wise"]}, "row_wise"),
    ],
)
def test_sequence_tables_are_halved_or_row_wise_if_devices_are_small(share, types, found):
    """Three devices: the table is on one device, halved on two, or row-wise on all."""
    model, size = _sequences("s", rows=6400), 6400 * DIM * 4
    ours = planner(3, cap=int(size * share), models="roofline:h100", constraints=_said("s", **types))
    if found is None:
        with refused("table-exceeds-device", kind=InfeasibleError, names=["'s'", 8]):  # columns
            ours.plan(model)
        return
    assert ours.plan(model).plan[""]["s"].sharding_type == found
    assert ours.last_plan.violations == ()


@pytest.mark.parametrize(
    ("types", "may", "shards"),
    [
        ({}, ["column_wise", "row_wise"], 2),
        ({"sharding_types": ["table_wise", "column_wise"]}, ["column_wise"], 2),
        ({"sharding_types": ["table_wise", "row_wise"]}, ["column_wise", "row_wise"], 1),
        ({"sharding_types": ["table_wise", "data_parallel"]}, ["column_wise"], 1),
        ({"sharding_types": ["table_wise", "column_wise", "data_parallel"]}, ["column_wise"], 2),
    ],
)
def test_constraints_of_a_sequence_table_limit_its_types_and_shards(types, may, shards):
    ours = planner(models="roofline:h100", constraints=_said("s", **types), data_parallel=True)
    task = ours.search(_beside(_sequences("s", "t"))).task
    limits = [task.constraints.limits(table, 2) for table in task.tables]
    unsaid = [["column_wise", "data_parallel", "row_wise"]] * 2  # of pooled tables
    assert [sorted(each.forms) for each in limits] == [*unsaid, may, ["column_wise", "row_wise"]]
    assert limits[2].max_shards == shards
    assert limits[2].max_blocks >= (2 if "row_wise" in may else shards)


def test_whole_sequence_tables_are_not_column_wise_beside_halves():
    """TorchRec assumes that all column shards are as wide as the first one."""
    model = EmbeddingCollection([sequence("s", ROWS, DIM), sequence("t", 6400, DIM)], device=META)
    rules = Constraints((TableRule("s", max_shards=1),))
    constraints = {name: ParameterConstraints(sharding_types=["column_wise"]) for name in ("s", "t")}
    cap = 6400 * DIM * 4 * 7 // 10
    plan = planner(3, cap=cap, models="roofline:h100", constraints=constraints, rules=rules).plan(model)
    assert {name: kind for name, (kind, _) in places(plan).items()} == {"s": "table_wise", "t": "column_wise"}


def test_sequence_tables_beside_delegated_ones_of_their_collection_stay_whole():
    """Otherwise both planners could split these tables, into different widths. Row-wise is allowed if requested."""
    delegated = _said("t", sharding_types=["data_parallel"])
    rows = _said("s", sharding_types=["table_wise", "column_wise", "row_wise"])
    found = []
    for constraints in ({}, delegated, delegated | rows):
        ours = planner(2, "cuda", models="roofline:h100", constraints=constraints)
        task = ours.search(_sequences("s", "t")).task
        found.append(task.constraints.limits(task.tables[0], 2))
    assert [limits.max_shards for limits in found[:2]] == [2, 1]
    assert found[2].max_blocks > 1


def test_tables_of_one_collection_may_be_partly_delegated(caplog):
    constraints = _said("b", sharding_types=["row_wise"])
    ours, plan = planned(_bags("a", "b", "c"), devices=4, device="cuda", constraints=constraints)
    found = places(plan)
    logged_one(caplog, "tables-delegated", names=["sharding_types=['row_wise']"])
    assert _ours(ours) == ["a", "c"]
    assert {name for name, (kind, _) in found.items() if kind == "row_wise"} == {"b"}
    assert found["b"][1] == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [_bags, _sequences])
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"sharding_types": ["row_wise"]}, ("row_wise", "fused")),
        ({"sharding_types": ["data_parallel"]}, ("data_parallel", "dense")),
        ({"compute_kernels": ["dense"]}, ("data_parallel", "dense")),
        ({"compute_kernels": ["fused_uvm_caching"]}, ("table_wise", "fused_uvm_caching")),
        ({"compute_kernels": ["fused_uvm"]}, ("table_wise", "fused_uvm")),
    ],
)
def test_plans_have_the_types_and_kernels_that_constraints_allow(make, asked, found):
    """Data-parallel sequence tables are delegated to TorchRec; NeuroShard plans all other tables."""
    constraints = _said("b", **asked)
    ours, plan = planned(make("a", "b"), device="cuda", models="roofline:h100", constraints=constraints)
    assert (plan.plan[""]["b"].sharding_type, plan.plan[""]["b"].compute_kernel) == found
    delegated = make is _sequences and found[0] == "data_parallel"
    assert _ours(ours) == (["a"] if delegated else ["a", "b"])


class _Offering(EmbeddingBagCollectionSharder):
    """A sharder that offers other compute kernels than TorchRec's for the sharding types in `of_types`."""

    def __init__(self, fused_params=None, **of_types):
        super().__init__(fused_params)
        self.of_types = of_types

    def compute_kernels(self, sharding_type, compute_device_type):
        default = super().compute_kernels(sharding_type, compute_device_type)
        return self.of_types.get(sharding_type, default)


def _offering(*kernels):
    return _Offering(table_wise=kernels, column_wise=kernels)


@pytest.mark.parametrize(
    ("sharder", "asked", "tiers", "types"),
    [
        (EmbeddingBagCollectionSharder(), {}, None, None),
        (_offering("fused_uvm_caching"), {}, ["uvm_caching"], {"column_wise", "data_parallel"}),
        (_offering("fused", "fused_uvm"), {}, ["device", "uvm"], None),
        (_offering("fused", "fused_uvm"), {"compute_kernels": ["fused_uvm", "key_value"]}, ["uvm"], {"column_wise"}),
        (_Offering(table_wise=["fused"]), {}, ["device"], None),
        (_Offering(row_wise=["fused_uvm"]), {}, None, {"column_wise", "data_parallel"}),
        (_Offering(data_parallel=[]), {}, None, {"column_wise", "row_wise"}),
        (_offering("key_value"), {}, None, {"row_wise", "data_parallel"}),
        (_offering("key_value"), {"sharding_types": ["data_parallel"]}, None, {"data_parallel"}),
    ],
)
def test_tables_have_the_kernels_that_sharder_and_constraints_allow(sharder, asked, tiers, types):
    (table,) = find_tables(_bags("a"), [sharder], _said("a", **asked))
    rule = table.tier_rule("a")
    assert [tier.value for tier in rule.tiers or ()] == tiers if rule else tiers is None
    assert {form.value for form in table.forms} == (types or {"column_wise", "row_wise", "data_parallel"})


def test_plans_have_the_kernels_that_the_sharder_offers(caplog):
    settings = {"device": "cuda", "models": "roofline:h100"}
    cached = _offering("fused_uvm_caching")
    _, plan = planned(_bags("a", "b"), [cached], **settings)
    assert {found.compute_kernel for found in plan.plan[""].values()} == {"fused_uvm_caching"}
    too_little = topology(2, "cuda", cap=ROWS * DIM, ddr_cap=1 << 30)
    with refused("device-memory-too-small", kind=InfeasibleError):
        planned(_bags("a"), [_Offering(table_wise=["fused"])], topology=too_little, **settings)
    stored = _Offering(table_wise=["key_value"], column_wise=["key_value"], row_wise=["key_value"])
    ours, plan = planned(_bags("a"), [stored], **settings)
    logged_one(caplog, "tables-delegated", names=["a (", "_Offering"])
    assert ours.last_plan is None
    assert plan.plan[""]["a"].compute_kernel != "dense"


def test_enforce_hbm_with_a_sharder_of_host_memory_is_refused():
    names = ["enforce_hbm", "_Offering", "'fused'"]
    sharder = _Offering({"enforce_hbm": True}, table_wise=["fused_uvm"])
    with refused("constraints-enforce-hbm", where="constraints of table 'a'", names=names):
        planned(_bags("a"), [sharder], device="cuda", models="roofline:h100")


@pytest.mark.parametrize("asked", [None, CacheParams(algorithm=CacheAlgorithm.LFU)])
def test_caches_have_the_planned_size_and_other_parameters_of_constraints(asked):
    constraints = _said("b", compute_kernels=["fused_uvm_caching"], cache_params=asked)
    ours, plan = planned(_bags("a", "b"), device="cuda", models="roofline:h100", constraints=constraints)
    cache = plan.plan[""]["b"].cache_params
    assert 0 < cache.load_factor == ours.last_plan.tier_assignments[1].cache_load_factor
    assert cache.algorithm is (CacheAlgorithm.LRU if asked is None else CacheAlgorithm.LFU)


@pytest.mark.parametrize("dim", [10, 50])
def test_tables_of_odd_width_are_delegated_as_data_parallel_and_train(dim, group, caplog):
    module = _bags("a", dim=dim, device=CPU)
    model = nn.ModuleDict({"odd": module, "even": _bags("b", device=CPU)})
    ours, plan = planned(model, devices=1, models="roofline:h100")
    odd = plan.plan["odd"]["a"]
    assert (odd.sharding_type, odd.compute_kernel) == ("data_parallel", "dense")
    logged_one(caplog, "tables-delegated", names=["odd.a", dim])
    assert "Sharding spec" not in caplog.text  # TorchRec's words
    assert _ours(ours) == ["b"]
    model = sharded(module, ShardingPlan({"": plan.plan["odd"]}), get_default_sharders())
    lookups = KeyedJaggedTensor.from_lengths_sync(["f_a"], torch.arange(4), torch.ones(4, dtype=torch.int32))
    rows = model(lookups).values()
    assert rows.shape == (4, dim)
    rows.sum().backward()
    (weights,) = model.parameters()
    assert torch.equal(weights.grad.sum(dim=1), torch.tensor([dim] * 4 + [0] * (ROWS - 4), dtype=torch.float32))


def test_search_with_torchrecs_planner_logs_no_warning_on_data_parallel_tables(caplog):
    copied = Constraints((TableRule("*", sharding_types=(Form.DATA_PARALLEL,)),))
    task = replace(toy_task(3, num_devices=2), constraints=copied)
    plan = ns.search(task, H100, "torchrec_all_types")
    assert set(plan.forms) == {Form.DATA_PARALLEL}
    assert "Sharding spec" not in caplog.text


def test_warnings_about_other_things_than_data_parallel_tables_are_kept(caplog):
    with without_data_parallel_remarks():
        logging.warning("Sharding spec not found for %s", "a")
        logging.warning("something else")
    logging.warning("Sharding spec not found for b")
    assert [record.getMessage() for record in caplog.records] == ["something else", "Sharding spec not found for b"]


def test_module_in_two_places_is_planned_once():
    shared = _bags("a")
    model = nn.ModuleDict({"one": shared, "two": nn.Sequential(shared)})
    ours, plan = planned(model)
    assert _ours(ours) == ["a"]
    assert list(plan.plan) == ["one"]


def test_memory_of_delegated_tables_is_subtracted_from_their_devices():
    """A device filled by delegated tables has no memory for other tables."""
    size = ROWS * DIM * 4

    def filled(cap, *names):
        model = nn.ModuleDict({"s": _sequences("s"), "bags": _bags(*names)})
        ours, plan = planned(model, cap=cap, constraints=_said("s", sharding_types=["table_wise"]))
        (full,) = plan.plan["s"]["s"].ranks
        return ours.last_plan.task.topology.device_memory[full], ours.last_plan.task.topology.device_memory[1 - full]

    left, free = filled(2 * size + 4096, "a", "b", "c")
    assert free == 2 * size + 4096
    assert left <= size + 4096
    with refused("tables-exceed-devices", kind=InfeasibleError):
        filled(2 * size, "a", "b", "c", "d")


def test_model_of_delegated_tables_only_is_planned_without_a_search():
    ours = planner()
    assert list(ours.plan(_sequences("s")).plan[""]) == ["s"]
    assert ours.last_plan is None
    with refused("model-no-table-planned", names=["plan()"]):
        ours.search(_sequences("s"))


STORED, WIDE, HOST = 1 << 20, 64, 4 << 30  # rows and columns of a table that is stored, bytes of a host
VIRTUAL = {"use_virtual_table": True, "total_num_buckets": 4}
TRITON = {"compute_kernels": ["fused_triton"], "sharding_types": ["table_wise"]}


def _stored(**fields):
    """A table `v` beside ordinary ones."""
    return nn.ModuleDict({"stored": bags("v", rows=STORED, dim=WIDE, **fields), "bags": _bags("a", "b")})


LEFT_ALONE = nn.ModuleList([_bags("innocent", dim=10), _bags("v")])
BAGS = "EmbeddingBagCollectionSharder"


@pytest.mark.parametrize(
    ("device", "model", "given", "code", "named", "remedies"),
    [
        (
            "cpu",
            _bags("v", dim=10),
            {"sharding_types": ["row_wise"]},
            "delegated-constraints-untrainable",
            ["'v'", "sharding_types", 10, "data_parallel"],
            ["'data_parallel'", 12],
        ),
        (
            "cpu",
            _bags("v", dim=10),
            {"compute_kernels": ["fused"]},
            "delegated-constraints-untrainable",
            ["'v'", "compute_kernels", 10, "data_parallel"],
            ["'dense'", 12],
        ),
        (
            "cpu",
            _sequences("v"),
            {"sharding_types": ["table_row_wise"]},
            "delegated-types-unavailable",
            ["'v'", "sharding_types=['table_row_wise']"],
            ["sharding_types"],
        ),
        (
            "cpu",
            LEFT_ALONE,  # with models that know no rows
            {"sharding_types": ["row_wise"]},
            "delegated-types-unavailable",
            ["'1.v'", "sharding_types=['row_wise']", BAGS, "data_parallel, table_wise, column_wise, table_column_wise"],
            ["sharding_types", "'table_wise'"],
        ),
        (
            "cpu",
            LEFT_ALONE,
            {"compute_kernels": ["key_value"]},
            "delegated-kernels-unavailable",
            ["'1.v'", "compute_kernels=['key_value']", BAGS, "dense, fused", "cpu", "data_parallel"],
            ["compute_kernels"],
        ),
        (
            "cuda",
            _stored(),
            TRITON,
            "delegated-kernels-unavailable",
            ["'stored.v'", "compute_kernels=['fused_triton']", BAGS, "fused_uvm_caching", "table_wise"],
            ["compute_kernels"],
        ),
        (
            "cuda",
            _stored(**VIRTUAL),
            {"sharding_types": ["table_wise"]},
            "delegated-constraints-untrainable",
            ["'stored.v'", "virtual", "['table_wise']"],
            ["'row_wise'"],
        ),
        (
            "cuda",
            _stored(**VIRTUAL | {"total_num_buckets": 6}),
            {},
            "delegated-planner-failed",
            ["stored.v", "num_buckets"],
            ["constraints"],
        ),
    ],
)
def test_errors_of_torchrec_planner_name_only_the_failing_table(device, model, given, code, named, remedies):
    with refused(code, names=named) as raised:
        planner(4, device, 1 << 30, constraints=_said("v", **given)).plan(model)
    assert all(str(remedy) in raised.value.message.remedy for remedy in remedies)
    assert "innocent" not in str(raised.value)


def test_error_says_if_torchrec_planner_finds_no_plan():
    with refused("delegated-no-plan", kind=InfeasibleError, names=["(s)", "constraints"]) as raised:
        planner(cap=1000).plan(_sequences("s"))
    assert not raised.value.message.limit.endswith(".")  # as TorchRec's sentence does


def _fails(*_, **__):
    raise RuntimeError("no idea")


def test_error_of_torchrec_planner_names_all_delegated_tables_if_several(monkeypatch):
    monkeypatch.setattr("torchrec.distributed.planner.enumerators.EmbeddingEnumerator.enumerate", _fails)
    with refused("delegated-planner-failed", names=["0.s", "1.t", "no idea"]):
        planner().plan(nn.ModuleList([_sequences("s"), _sequences("t")]))


def test_defect_in_delegation_is_not_reported_as_an_error_of_torchrec(monkeypatch):
    monkeypatch.setattr("neuroshard.torchrec.delegated.EmbeddingShardingPlanner.plan", _fails)
    with pytest.raises(RuntimeError, match="no idea") as raised:
        planner().plan(_sequences("s"))
    assert not isinstance(raised.value, UserError)


def test_rules_narrow_sharding_types_to_row_wise():
    constraints = _said("b", sharding_types=["row_wise", "table_wise"])
    rules = Constraints((TableRule("b", sharding_types=("row_wise",)),))
    plan = planner(models="roofline:h100", constraints=constraints, rules=rules).plan(_bags("a", "b")).plan[""]
    assert plan["b"].sharding_type == "row_wise"


def test_planner_keeps_a_given_plan_and_subtracts_its_memory(caplog):
    model = nn.ModuleDict({"s": _sequences("s"), "bags": _bags("a", "b")})
    first = planner().plan(model)
    rank = 1 - first.plan["bags"]["a"].ranks[0]
    kept = planner(constraints=_said("a", sharding_types=["table_wise"])).plan(_bags("a")).plan[""]["a"]
    kept.ranks = [rank]
    given = ShardingPlan({"bags": type(first.plan["bags"])({"a": kept}), "s": first.plan["s"], "pool": object()})
    ours, plan = planned(model, given=given)
    assert plan.plan["bags"]["a"] is kept
    assert plan.plan["s"]["s"] is first.plan["s"]["s"]
    assert plan.plan["pool"] is given.plan["pool"]
    assert _ours(ours) == ["b"]
    assert ours.last_plan.task.topology.device_memory[rank] <= CAP - ROWS * DIM * 4
    logged_one(caplog, "tables-fixed-by-given", names=["s.s, bags.a"])
    logged_one(caplog, "given-module-not-sharded", where="given", names=["'pool'"])


@pytest.mark.parametrize(
    ("pool", "sharder"),
    [
        (KeyedJaggedTensorPool(10, {"f": 3}, device=META), KeyedJaggedTensorPoolSharder()),
        (TensorPool(10, 8, torch.float32, device=META), TensorPoolSharder()),
    ],
    ids=["kjt pool", "tensor pool"],
)
def test_planner_keeps_given_plans_of_modules_without_tables(pool, sharder, caplog):
    model, sharders = nn.ModuleDict({"pool": pool, "bags": _bags("a")}), [EmbeddingBagCollectionSharder(), sharder]
    given = ShardingPlan({"pool": ObjectPoolShardingPlan(ObjectPoolShardingType.ROW_WISE)})
    _, plan = planned(model, sharders, given=given)
    assert plan.plan["pool"] is given.plan["pool"]
    assert "given-module-not-sharded" not in logged_codes(caplog)
    planned(model, sharders[:1], given=given)
    logged_one(caplog, "given-module-not-sharded", where="given", names=["'pool'"])


def test_memory_counts_the_optimizer_of_a_fused_collection():
    assert planner().search(_fused("c")).task.memory.optimizer == "adagrad"


def _on_hosts(model, sharders=None, **said):
    """Plan a model on four GPUs of two hosts; return the plan, and the bytes taken from each device and from a host."""
    gpus = topology(4, "cuda", 1 << 30, on_host=2, ddr_cap=HOST // 2)
    ours, plan = planned(model, sharders, topology=gpus, constraints=_said("v", **said))
    left = ours.last_plan.task.topology
    return plan, [(1 << 30) - free for free in left.device_memory], HOST - left.host_memory_bytes


@pytest.mark.parametrize("kernel", ["ssd_virtual_table", "dram_virtual_table", "dram_ssd_virtual_table"])
def test_virtual_tables_are_delegated_with_their_caches(kernel, caplog):
    caches = KeyValueParams(max_l1_cache_size=100, l2_cache_size=1)
    given = {"compute_kernels": [kernel], "key_value_params": caches, "use_virtual_table": True}
    plan, taken, of_host = _on_hosts(_stored(**VIRTUAL), **given)
    table = plan.plan["stored"]["v"]
    assert (table.sharding_type, table.compute_kernel, table.ranks) == ("row_wise", kernel, [0, 1, 2, 3])
    logged_one(caplog, "tables-delegated", names=["stored.v", "virtual"])
    cached = STORED // 5 * WIDE * 4  # TorchRec's share of the rows; less than max_l1_cache_size
    assert taken == pytest.approx([cached] * 4, rel=1e-3)
    assert of_host == 2 * (1 << 30)


def test_virtual_tables_are_row_wise():
    plan, _, _ = _on_hosts(_stored(**VIRTUAL))
    assert plan.plan["stored"]["v"].sharding_type == "row_wise"


def test_tables_on_ssd_are_delegated_with_their_caches(caplog):
    caches = KeyValueParams(max_l1_cache_size=10, l2_cache_size=1)
    plan, taken, of_host = _on_hosts(_stored(), compute_kernels=["key_value"], key_value_params=caches)
    held = set(plan.plan["stored"]["v"].ranks)
    logged_one(caplog, "tables-delegated", names=["stored.v", "compute_kernels=['key_value']"])
    assert {rank for rank, its in enumerate(taken) if its >= 10 << 20} == held
    assert of_host == max(len(held & {0, 1}), len(held & {2, 3})) * (1 << 30)


def test_delegated_uvm_tables_are_subtracted_from_host_memory():
    _, _, of_host = _on_hosts(_stored(), sharding_types=["table_row_wise"], compute_kernels=["fused_uvm"])
    assert of_host == STORED * WIDE * 4


class _Triton(EmbeddingBagCollectionSharder):
    """A sharder whose tables may use Triton kernels."""

    def compute_kernels(self, sharding_type, compute_device_type):
        return [*super().compute_kernels(sharding_type, compute_device_type), "fused_triton"]


def test_tables_with_triton_kernels_are_delegated_to_sharders_that_have_them(caplog):
    plan, taken, _ = _on_hosts(_stored(), [_Triton()], **TRITON)
    table = plan.plan["stored"]["v"]
    assert table.compute_kernel == "fused_triton"
    logged_one(caplog, "tables-delegated", names=["stored.v", "compute_kernels=['fused_triton']"])
    assert taken[table.ranks[0]] >= STORED * WIDE * 4


def test_device_memory_counts_the_ids_of_managed_collision():
    tables = bags("z", rows=1000, dim=16)  # narrow, so that the ids are a good part of all
    remapped = HashZchManagedCollisionModule(1000, CPU, total_num_buckets=4)
    held = sum(buffer.numel() * buffer.element_size() for buffer in remapped.buffers())
    collection = ManagedCollisionCollection({"z": remapped}, tables.embedding_bag_configs())
    model = nn.ModuleDict({"z": ManagedCollisionEmbeddingBagCollection(tables, collection), "bags": _bags("a")})
    plan, taken, _ = _on_hosts(model)
    assert plan.plan["z"]["z"].sharding_type == "row_wise"
    assert held > 0
    assert all(its >= (1000 * 16 * 4 + held) // 4 for its in taken)


ROWS_TOO = ParameterConstraints(sharding_types=["row_wise"])


def _beside_mean_pooling():
    mean = bag("mean", ROWS, DIM, pooling=PoolingType.MEAN)
    return EmbeddingBagCollection([mean, bag("sum", ROWS, DIM)], device=META)


@pytest.mark.parametrize(
    ("model", "table", "code", "named"),
    [
        (_beside_mean_pooling(), "mean", "mean-pooled-tables-row-wise", "(sum"),
        (
            nn.ModuleDict({"one": _weighted("processed"), "two": _bags("plain")}),
            "processed",
            "processed-tables-row-wise",
            "one.processed",
        ),
    ],
    ids=["mean-pooled", "processed features"],
)
def test_tables_with_wrong_row_wise_outputs_are_row_wise_only_if_named_and_warned_of(model, table, code, named, caplog):
    sharders = [*get_default_sharders(), FeatureProcessedEmbeddingBagCollectionSharder()]
    parameter = next(its for its in find_tables(model, sharders) if its.name == table)
    assert Form.ROW_WISE not in parameter.forms
    assert Form.ROW_WISE in replace(parameter, constraints=ROWS_TOO).forms
    columns = ParameterConstraints(sharding_types=["table_wise"])
    others = {its.name: columns for its in find_tables(model, sharders)}
    on = {"device": "cuda", "models": "roofline:h100"}
    planner(constraints=others, **on).plan(model, sharders)
    assert code not in logged_codes(caplog)
    planner(constraints=others | {table: ROWS_TOO}, **on).plan(model, sharders)
    logged_one(caplog, code, names=[named])


@pytest.mark.parametrize(("features", "warned"), [(["f_mean"], True), (["f_sum"], False)])
def test_planner_warns_of_mean_pooled_row_wise_tables_that_share_features(features, warned, caplog):
    mean, total = bag("mean", ROWS, DIM, pooling=PoolingType.MEAN), bag("sum", ROWS, DIM, features)
    model = EmbeddingBagCollection([mean, total], device=META)
    rows = {"mean": ROWS_TOO, "sum": ROWS_TOO}
    planner(2, "cuda", models="roofline:h100", constraints=rows).plan(model)
    assert ("mean-pooled-tables-row-wise" in logged_codes(caplog)) == warned


def test_error_on_a_mean_pooled_table_without_room_suggests_row_wise():
    with refused("device-memory-too-small", kind=InfeasibleError) as raised:
        planner(2, "cuda", cap=ROWS * DIM, models="roofline:h100").plan(_beside_mean_pooling())
    assert all(named in raised.value.message.remedy for named in ("sharding_types=['row_wise']", " mean "))


def test_fused_collections_are_data_parallel_only_if_constraints_name_it():
    (parameter,) = find_tables(_fused("t"))
    assert set(parameter.forms) == {Form.COLUMN_WISE, Form.ROW_WISE}
    named = ParameterConstraints(sharding_types=["data_parallel"])
    assert replace(parameter, constraints=named).forms == (Form.DATA_PARALLEL,)


@pytest.mark.parametrize(
    ("module", "limits", "remedy"),
    [
        (_sequences("t"), {"compute_kernels": ["dense"]}, "constraints"),
        (_sequences("t"), {"sharding_types": ["data_parallel", "grid_shard"]}, "constraints"),
        (_sequences("t"), {"sharding_types": ["data_parallel"]}, "constraints"),
        (_sequences("t", dim=6), {}, "8"),
        (_fused("t"), {"compute_kernels": ["dense"]}, "constraints"),
        (_fused("t"), {"sharding_types": ["data_parallel"]}, "constraints"),
    ],
)
def test_data_parallel_tables_that_fail_on_cpus_are_refused_however_they_are_requested(module, limits, remedy):
    said = _said("t", **limits)
    with refused("table-types-fail-on-cpu", names=["'t'", "data_parallel", TORCHREC]) as raised:
        planner(constraints=said).plan(module)
    assert remedy in raised.value.message.remedy
    planner(2, "cuda", constraints=said).plan(module)


@pytest.mark.parametrize(("rows", "devices"), [(1, 2), (4, 3)])
def test_row_wise_table_with_fewer_rows_than_devices_is_refused_on_cpus(rows, devices):
    names, model = ["'t'", "row_wise", number_of(rows, "row"), devices, "given="], sequences("t", rows=rows)
    constraints = _said("t", sharding_types=["row_wise"])
    with refused("table-types-fail-on-cpu", names=names):
        planner(devices, constraints=constraints).plan(model)
    sharder = EmbeddingCollectionSharder()
    asked = construct_module_sharding_plan(model, {"t": row_wise()}, sharder, devices, devices, "cpu")
    plan = planner(devices, constraints=constraints, given=ShardingPlan({"": asked})).plan(model)
    assert plan.plan[""]["t"] is asked["t"]


@pytest.mark.parametrize(("module", "fails"), [(_fused("t"), "data_parallel"), (sequences("t", rows=1), "row_wise")])
def test_sharding_types_that_fail_on_cpus_are_left_out_if_constraints_name_others(module, fails):
    said, on_cpus = _said("t", sharding_types=[fails, "table_wise"]), replace(EVERYTHING, num_devices=2, device="cpu")
    (parameter,) = divide(module, get_default_sharders(), said, served=on_cpus).planned
    assert parameter.user_constraints.sharding_types == ["table_wise"]


def test_delegated_mean_pooled_tables_are_not_row_wise():
    mean = EmbeddingBagCollection(
        [bag("t", 4000, 64, pooling=PoolingType.MEAN, data_type=DataType.INT8), bag("u", ROWS, DIM)], device=META
    )
    plan = planner(4, "cuda", cap=1 << 19, models="roofline:h100").plan(mean)
    assert places(plan)["t"][0] not in ("row_wise", "table_row_wise", "grid_shard")


@pytest.mark.parametrize(
    ("narrow", "columns", "said"),
    [
        (["a"], ["a", "b"], True),
        (["a"], ["a"], True),
        (["a", "b"], ["a", "b"], False),
        ([], ["a"], False),
    ],
)
def test_planner_warns_of_mixed_output_precisions_that_ranks_cannot_exchange(narrow, columns, said, caplog):
    limits = {
        name: ParameterConstraints(
            sharding_types=["table_wise" if name in columns else "row_wise"],
            output_dtype=DataType.FP16 if name in narrow else None,
        )
        for name in "ab"
    }
    plan = planner(2, "cuda", models="roofline:h100", constraints=limits).plan(_bags("a", "b"))
    assert len({rank for name in columns for rank in places(plan)[name][1]}) == len(columns)
    assert ("outputs-precision-mixed" in logged_codes(caplog)) is said
    if said:
        logged_one(caplog, "outputs-precision-mixed", names=["2 bytes", 4, TORCHREC])
