"""Every kind of module that holds tables: planned here, delegated to TorchRec's planner, or given."""

from functools import partial

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingType
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantEmbeddingCollection
from torchrec.types import DataType

from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.torchrec.modules import divide
from tests.kit.torchrec_models import META, bag, bags, planner, sequences

CPU = torch.device("cpu")
ROWS, DIM = 64, 16
_bags, _sequences = partial(bags, rows=ROWS, dim=DIM), partial(sequences, rows=ROWS, dim=DIM)


def _configs(*names, **fields):
    return [bag(name, ROWS, DIM, **fields) for name in names]


def _weighted(*names):
    processors = {f"f_{name}": PositionWeightedModule(10, device=META) for name in names}
    weighted = EmbeddingBagCollection(_configs(*names), device=META, is_weighted=True)
    return FeatureProcessedEmbeddingBagCollection(weighted, processors)


def _remapped(configs):
    policy = DistanceLFU_EvictionPolicy()
    modules = {
        config.name: MCHManagedCollisionModule(ROWS, CPU, policy, eviction_interval=2, input_hash_size=1000, buckets=2)
        for config in configs
    }
    return ManagedCollisionCollection(modules, configs)


def _collision_bags(*names):
    bags = _bags(*names, device=CPU)
    return ManagedCollisionEmbeddingBagCollection(bags, _remapped(bags.embedding_bag_configs()))


def _collision_sequences(*names):
    sequences = _sequences(*names, device=CPU)
    return ManagedCollisionEmbeddingCollection(sequences, _remapped(sequences.embedding_configs()))


def _quantised(*names):
    return QuantEmbeddingBagCollection(_configs(*names, data_type=DataType.INT8), is_weighted=False, device=CPU)


def _quantised_sequences(*names):
    configs = [
        EmbeddingConfig(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[f"f_{name}"], data_type=DataType.INT8
        )
        for name in names
    ]
    return QuantEmbeddingCollection(configs, device=CPU)


def _fused(*names):
    return FusedEmbeddingBagCollection(_configs(*names), torch.optim.Adagrad, {"lr": 0.1}, device=CPU)


class _Model(nn.Module):
    """A plain collection beside another module."""

    def __init__(self, other):
        super().__init__()
        self.plain, self.other, self.over = _bags("a", "b"), other, nn.Linear(4, 1)


def _divided(module, **constraints):
    division = divide(module, get_default_sharders(), constraints)
    return [p.name for p in division.planned], {
        p.name: why for p, why in zip(division.delegated, division.reasons, strict=True)
    }


@pytest.mark.parametrize(("make", "planned"), [
    (_bags, True), (_weighted, True), (_fused, True), (_sequences, True), (_collision_bags, False),
    (_collision_sequences, False), (_quantised, False), (_quantised_sequences, False),
])  # fmt: skip
def test_every_kind_of_module_is_in_the_plan(make, planned, caplog):
    """Managed collision collections are sharded with what remaps their ids, by rows alone."""
    model = _Model(make("c"))
    ours = planner(device="cuda", models="roofline:h100")
    plan = ours.plan(model)
    assert {path: set(names) for path, names in plan.plan.items()} == {"plain": {"a", "b"}, "other": {"c"}}
    planned_here = {table.name for table in ours.last_plan.task.tables}
    assert planned_here == ({"a", "b", "c"} if planned else {"a", "b"})
    assert (f"other.c ({type(model.other).__name__})" in caplog.text) is not planned
    if not planned:
        assert "delegated to TorchRec's EmbeddingShardingPlanner" in caplog.text
        whole = ROWS * DIM * (1 if make in (_quantised, _quantised_sequences) else 4)
        before, after = sum(_capacity(2)), sum(ours.last_plan.task.topology.device_memory)
        assert whole <= before - after < 2 * whole + 50_000  # with buffers of a batch; a copy on both at most


def _capacity(devices):
    return (1 << 20,) * devices


@pytest.mark.parametrize(
    ("module", "given", "why"),
    [
        (_bags("c", data_type=DataType.FP16), {}, None),
        (_bags("c", data_type=DataType.BF16), {}, None),
        (_bags("c", data_type=DataType.INT8), {}, "weights of type INT8"),
        (_bags("c", dim=10), {}, "10 columns are no multiple of 4, so it is copied"),
        (_bags("c"), {"sharding_types": ["row_wise"]}, None),
        (_bags("c"), {"sharding_types": ["data_parallel"]}, None),
        (_bags("c"), {"sharding_types": ["table_row_wise"]}, "sharding_types=['table_row_wise']"),
        (_bags("c"), {"sharding_types": ["row_wise", "table_wise"]}, None),
        (_bags("c"), {"compute_kernels": ["dense"]}, None),
        (_bags("c"), {"compute_kernels": ["fused_uvm_caching"]}, None),
        (_bags("c"), {"compute_kernels": ["key_value"]}, "compute_kernels=['key_value']"),
        (_bags("c"), {"compute_kernels": ["fused"]}, None),
        (_sequences("c", data_type=DataType.FP16), {}, None),
        (_sequences("c", enable_embedding_update=True), {}, "written to in training (enable_embedding_update)"),
        (_sequences("c"), {"sharding_types": ["row_wise"]}, None),
        (_sequences("c"), {"sharding_types": ["data_parallel"]}, "sharding_types=['data_parallel']"),
        (_sequences("c"), {"sharding_types": ["row_wise", "table_wise"]}, None),
    ],
)
def test_tables_that_cannot_be_costed_or_said_are_delegated_alone(module, given, why):
    planned, delegated = _divided(nn.ModuleList([module, _bags("d")]), c=ParameterConstraints(**given))
    assert planned == (["d"] if why else ["c", "d"])
    assert delegated == ({"c": why} if why else {})


class _CopiesOnly(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type):
        return [ShardingType.DATA_PARALLEL.value]


def test_sharders_that_cannot_split_are_delegated():
    planned = planner().plan(_bags("c"), [_CopiesOnly()]).plan[""]["c"]
    assert (planned.sharding_type, planned.ranks) == ("data_parallel", [0, 1])


UNKNOWN = "a sequence table, unknown to these models: collect compute.pooled=[true,false] and pretrain"


@pytest.mark.parametrize(
    ("settings", "why"),
    [({}, UNKNOWN), ({"models": "roofline:h100", "searcher": "torchrec"}, "TorchRecSearch places pooled tables only")],
)
def test_sequence_tables_that_nobody_here_knows_are_delegated(settings, why, caplog):
    ours = planner(**settings)
    plan = ours.plan(_Model(_sequences("s")))
    assert set(plan.plan["other"]) == {"s"}
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "b"]
    assert f"other.s ({why})" in caplog.text


@pytest.mark.parametrize(
    ("share", "types", "found"),
    [
        (1.5, ["table_wise"], "table_wise"),
        (0.7, ["table_wise", "column_wise"], "column_wise"),
        (0.4, ["table_wise", "column_wise"], None),
        (0.4, None, "row_wise"),
        (0.4, ["table_wise", "row_wise"], "row_wise"),
    ],
)
def test_sequence_tables_lie_in_halves_or_rows_where_devices_are_small(share, types, found):
    """Of three devices, one holds the table, or two its halves, or all of them its rows."""
    constraints = {"s": ParameterConstraints(sharding_types=types)} if types else {}
    size = 6400 * DIM * 4
    ours = planner(3, cap=int(size * share), models="roofline:h100", constraints=constraints)
    if found is None:
        with pytest.raises(InfeasibleError, match="even at 8 columns"):
            ours.plan(_sequences("s", rows=6400))
        return
    assert ours.plan(_sequences("s", rows=6400)).plan[""]["s"].sharding_type == found
    assert ours.last_plan.violations == ()


@pytest.mark.parametrize(
    ("types", "may"),
    [
        (None, ["columns", "rows"]),
        (["table_wise", "column_wise"], ["columns"]),
        (["table_wise", "row_wise"], ["columns", "rows"]),
        (["table_wise", "column_wise", "data_parallel"], ["columns"]),
    ],
)
def test_sequence_tables_lie_in_rows_where_constraints_say_so(types, may):
    constraints = {"s": ParameterConstraints(sharding_types=types)} if types else {}
    task = planner(models="roofline:h100", constraints=constraints).search(_Model(_sequences("s", "t"))).task
    limits = [task.constraints.limits(table, 2) for table in task.tables]
    unsaid = [["columns", "copies", "rows"]] * 2  # of pooled tables
    assert [sorted(each.forms) for each in limits] == [*unsaid, may, ["columns", "rows"]]
    assert limits[2].max_shards == (1 if types and "column_wise" not in types else 2)
    assert limits[2].max_blocks >= 2


def test_sequence_tables_beside_delegated_ones_of_their_collection_stay_whole():
    """Else both planners might cut them, each into another width. In rows they may lie, where these are asked for."""
    delegated = {"t": ParameterConstraints(sharding_types=["data_parallel"])}
    asked = {"s": ParameterConstraints(sharding_types=["table_wise", "column_wise", "row_wise"])}
    task = planner(models="roofline:h100", constraints=delegated | asked).search(_sequences("s", "t")).task
    assert task.constraints.limits(task.tables[0], 2).max_blocks > 1
    for constraints, most in (({}, 2), (delegated, 1)):
        ours = planner(models="roofline:h100", constraints=constraints)
        task = ours.search(_sequences("s", "t")).task
        assert task.constraints.limits(task.tables[0], 2).max_shards == most


def test_one_collection_may_be_planned_by_two(caplog):
    constraints = {"b": ParameterConstraints(sharding_types=["row_wise"])}
    ours = planner(4, "cuda", constraints=constraints)
    plan = ours.plan(_bags("a", "b", "c")).plan[""]
    assert "b (sharding_types=['row_wise'], unknown to this search or these models)" in caplog.text
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "c"]
    assert {name: p.sharding_type == "row_wise" for name, p in plan.items()} == {"a": False, "b": True, "c": False}
    assert plan["b"].ranks == [0, 1, 2, 3]


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
def test_what_constraints_leave_alone_is_what_plans_have(make, asked, found):
    """Sequence tables in copies are TorchRec's; everything else is planned here."""
    constraints = {"b": ParameterConstraints(**asked)}
    ours = planner(device="cuda", models="roofline:h100", constraints=constraints)
    planned = ours.plan(make("a", "b")).plan[""]["b"]
    assert (planned.sharding_type, planned.compute_kernel) == found
    delegated = make is _sequences and found[0] == "data_parallel"
    assert [table.name for table in ours.last_plan.task.tables] == (["a"] if delegated else ["a", "b"])


@pytest.mark.parametrize("make", [_bags, _sequences])
@pytest.mark.parametrize("dim", [10, 50])
def test_tables_that_fused_kernels_do_not_take_are_copied_and_shard(make, dim, group):
    module = make("a", dim=dim, device=CPU)
    ours = planner(1, models="roofline:h100")
    plan = ours.plan(nn.ModuleDict({"odd": module, "even": _bags("b", device=CPU)}))
    odd = plan.plan["odd"]["a"]
    assert (odd.sharding_type, odd.compute_kernel) == ("data_parallel", "dense")
    assert [table.name for table in ours.last_plan.task.tables] == ["b"]
    model = DistributedModelParallel(
        module, plan=ShardingPlan({"": plan.plan["odd"]}), sharders=get_default_sharders(), device=CPU
    )
    lookups = KeyedJaggedTensor.from_lengths_sync(["f_a"], torch.arange(4), torch.ones(4, dtype=torch.int32))
    found = model(lookups)
    rows = found.values() if make is _bags else found["f_a"].values()
    assert rows.shape == (4, dim)
    rows.sum().backward()
    (weights,) = model.parameters()
    assert torch.equal(weights.grad.sum(dim=1), torch.tensor([dim] * 4 + [0] * (ROWS - 4), dtype=torch.float32))


@pytest.mark.parametrize("asked", [{"sharding_types": ["row_wise"]}, {"compute_kernels": ["fused"]}])
def test_tables_that_may_not_be_copied_need_columns_that_kernels_take(asked):
    with pytest.raises(
        UserError, match=r"^table 'a' has 10 columns, .* copies only, .*; allow '.*', or give it 12 col"
    ):
        planner(constraints={"a": ParameterConstraints(**asked)}).plan(_bags("a", dim=10))


def test_a_module_in_two_places_is_planned_once():
    shared = _bags("a")
    model = nn.ModuleDict({"one": shared, "two": nn.Sequential(shared)})
    assert _divided(model) == (["a"], {})
    assert list(planner().plan(model).plan) == ["one"]


def test_delegated_tables_fill_devices_before_ours():
    """A device that TorchRec fills has no room for ours."""
    constraints = {"s": ParameterConstraints(sharding_types=["table_wise"])}
    size = ROWS * DIM * 4
    ours = planner(cap=2 * size + 4096, constraints=constraints)
    plan = ours.plan(nn.ModuleDict({"s": _sequences("s"), "bags": _bags("a", "b", "c")}))
    (full,) = plan.plan["s"]["s"].ranks
    free = ours.last_plan.task.topology.device_memory
    assert free[1 - full] == 2 * size + 4096
    assert free[full] <= size + 4096
    with pytest.raises(InfeasibleError):
        planner(cap=2 * size, constraints=constraints).plan(
            nn.ModuleDict({"s": _sequences("s"), "bags": _bags("a", "b", "c", "d")})
        )


def test_only_other_modules_need_no_search():
    ours = planner()
    assert list(ours.plan(_sequences("s")).plan[""]) == ["s"]
    assert ours.last_plan is None
    with pytest.raises(UserError, match="no table of the model is planned here"):
        ours.search(_sequences("s"))


def test_what_torchrec_cannot_plan_is_one_line():
    wanted = {"s": ParameterConstraints(sharding_types=["table_row_wise"])}
    with pytest.raises(UserError, match=r"^table 's' is left to TorchRec's planner by its sharding_types"):
        planner(constraints=wanted).plan(_sequences("s"))
    with pytest.raises(InfeasibleError, match="Unable to find a plan"):
        planner(cap=1000).plan(_sequences("s"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"sharding_types": ["row_wise"]},
            r"sharding_types=\['row_wise'\], and EmbeddingBagCollectionSharder has only data_parallel, table_wise, "
            r"column_wise, table_column_wise on cpu; allow one of them; with 'table_wise' besides it is planned here$",
        ),
        (
            {"compute_kernels": ["key_value"]},
            r"compute_kernels=\['key_value'\], and EmbeddingBagCollectionSharder has only dense, fused on cpu for "
            r"data_parallel, .*; allow one of them$",
        ),
    ],
)
def test_the_table_that_cannot_be_delegated_is_named_and_no_other(given, why):
    model = nn.ModuleList([_bags("innocent", dim=10), _bags("guilty")])  # with models that know no rows
    with pytest.raises(UserError, match=rf"^table '1\.guilty' is left to TorchRec's planner by its {why}"):
        planner(constraints={"guilty": ParameterConstraints(**given)}).plan(model)


def test_what_is_said_of_rows_alone_works():
    constraints = {"b": ParameterConstraints(sharding_types=["row_wise", "table_wise"])}
    rules = Constraints((TableRule("b", forms=("rows",)),))
    plan = planner(models="roofline:h100", constraints=constraints, rules=rules).plan(_bags("a", "b")).plan[""]
    assert plan["b"].sharding_type == "row_wise"


def test_errors_of_torchrec_blame_no_table_among_several(monkeypatch):
    def fails(*_):
        raise RuntimeError("no idea")

    monkeypatch.setattr("neuroshard.torchrec.delegated.EmbeddingShardingPlanner.plan", fails)
    with pytest.raises(UserError, match=r"^TorchRec's planner, asked for 2 parameter\(s\) \(0\.s, 1\.t\): no idea$"):
        planner().plan(nn.ModuleList([_sequences("s"), _sequences("t")]))


def test_a_given_plan_is_kept_and_its_memory_taken_off(caplog):
    model = nn.ModuleDict({"s": _sequences("s"), "bags": _bags("a", "b")})
    first = planner().plan(model)
    rank = 1 - first.plan["bags"]["a"].ranks[0]
    kept = (
        planner(constraints={"a": ParameterConstraints(sharding_types=["table_wise"])}).plan(_bags("a")).plan[""]["a"]
    )
    kept.ranks = [rank]
    given = ShardingPlan({"bags": type(first.plan["bags"])({"a": kept}), "s": first.plan["s"], "pool": object()})
    ours = planner(given=given)
    plan = ours.plan(model)
    assert plan.plan["bags"]["a"] is kept
    assert plan.plan["s"]["s"] is first.plan["s"]["s"]
    assert plan.plan["pool"] is given.plan["pool"]
    assert [table.name for table in ours.last_plan.task.tables] == ["b"]
    assert ours.last_plan.task.topology.device_memory[rank] <= (1 << 20) - ROWS * DIM * 4
    assert "kept as the given plan has them: s.s, bags.a" in caplog.text
    assert "holds module 'pool'" in caplog.text


def test_the_optimizer_of_a_fused_collection_counts():
    assert planner().search(_fused("c")).task.memory.optimizer == "adam"  # the largest stands for those without a name
    assert planner().search(_bags("c")).task.memory.optimizer == "sgd"
