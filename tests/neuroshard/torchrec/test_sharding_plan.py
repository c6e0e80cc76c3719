"""Conversion of plans to TorchRec's sharding plans and back."""

import json
import re
from dataclasses import replace

import pytest
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec import EmbeddingBagCollection
from torchrec.distributed.types import CacheParams, EnumerableShardingSpec, ParameterSharding, ShardingPlan
from torchrec.types import DataType

from neuroshard import Plan, Table, Task, Tier, TierAssignment, Topology
from neuroshard.plans.plan import assemble
from neuroshard.plumbing.messages import number_of
from neuroshard.stages.search.options.tier_changes import reassign_tiers
from neuroshard.targets.target import export_plan
from neuroshard.testing import ONCE, toy_task
from neuroshard.torchrec import from_sharding_plan, load_sharding_plan, save_sharding_plan, to_sharding_plan
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import check, logged, refused
from tests.kit.plans import DATA_PARALLEL, laid_out, tables
from tests.kit.torchrec_models import META, bag, bags, sequences

TASK = Task(tuple(Table(name, 10, dim, 2.0, ONCE) for name, dim in (("a", 8), ("b.c", 16))), Topology(4, 1 << 20), 64)
PLAN = assemble(TASK, [(0, 8, 3), (1, 4, 0), (1, 12, 2)])


def _saved(exported, path, model=None, **settings):
    """The plan as it is read again from a file."""
    save_sharding_plan(exported, path)
    return load_sharding_plan(path, model, **settings)


def _rectangles(sharding):
    return [(shard.shard_offsets, shard.shard_sizes) for shard in sharding.sharding_spec.shards]


def test_sharding_plan_makes_whole_tables_column_wise_only_together_with_split_tables():
    """TorchRec exchanges each sharding type separately, so all column-wise tables of a collection have one type."""
    exported = to_sharding_plan(PLAN, "b", local_world_size=2).plan["b"]
    assert (exported["a"].sharding_type, exported["a"].ranks) == ("column_wise", [3])
    alone = to_sharding_plan(PLAN, {"a": "x", "b.c": "b"}, local_world_size=2).plan
    assert [alone["x"]["a"].sharding_type, alone["b"]["c"].sharding_type] == ["table_wise", "column_wise"]
    sequence = replace(TASK, tables=(replace(TASK.tables[0], pooled=False), TASK.tables[1]))
    beside = to_sharding_plan(Plan(sequence, PLAN.placements), "b", local_world_size=2).plan["b"]
    assert (
        beside["a"].sharding_type == "table_wise"
    )  # of sequence tables it reads all column-wise shards as equally wide
    assert (exported["c"].sharding_type, exported["c"].ranks) == ("column_wise", [0, 2])
    assert {parameter.compute_kernel for parameter in exported.values()} == {"fused"}
    assert _rectangles(exported["c"]) == [([0, 0], [10, 4]), ([0, 4], [10, 12])]
    assert str(exported["a"].sharding_spec.shards[0].placement) == "rank:3/cuda:1"


def test_sharding_plan_of_several_modules_is_converted_back_unchanged():
    exported = to_sharding_plan(PLAN, {"a": "x.y", "b.c": "b"}, "cpu")
    assert {module: list(plan) for module, plan in exported.plan.items()} == {"x.y": ["a"], "b": ["c"]}
    assert from_sharding_plan(TASK, exported) == PLAN
    with refused("table-without-module", names=["'b.c'"]):
        to_sharding_plan(PLAN, {"a": "x"})
    with refused("plan-host-size-not-divisor", names=["local_world_size", 3, 4]):
        to_sharding_plan(PLAN, local_world_size=3)
    with refused("unknown-name", names=["compute_device", "'gpu'"]):
        to_sharding_plan(PLAN, compute_device="gpu", local_world_size=2)


@pytest.mark.parametrize("kind", [bags, sequences])
@pytest.mark.parametrize("name", ["user.id", "type", "values", "user_id", "a/b"])
def test_tables_with_names_that_torchrec_refuses_are_not_exported(kind, name):
    try:
        kind(name)
    except KeyError:
        invalid = True
    else:
        invalid = False
    assert invalid == (name in ("user.id", "type", "values"))
    plan = assemble(Task((Table(name, 10, 8, 2.0, ONCE),), Topology(2, 1 << 20), 64), [(0, 8, 1)])
    if not invalid:
        assert list(to_sharding_plan(plan, "sparse").plan["sparse"]) == [name]
        return
    with refused("table-name-refused-by-torchrec", names=[f"'{name}'"]):
        to_sharding_plan(plan, "sparse")
    with refused("table-name-refused-by-torchrec", names=[f"'{name}'"]):
        export_plan(plan, "torchrec", module="sparse")


def test_a_file_without_a_module_finds_its_tables_in_the_model(path):
    of_a, of_c = (bag(name, 10, dim) for name, dim in (("a", 8), ("c", 16)))
    model = nn.ModuleDict({
        path: EmbeddingBagCollection(its, device=META) for path, its in (("x", [of_a, of_c]), ("b", [bag("b"), of_c]))
    })  # fmt: skip
    assert list(_saved(to_sharding_plan(PLAN), path).plan) == [""]
    read = _saved(to_sharding_plan(PLAN), path, model, partial=True)
    assert {module: list(plan) for module, plan in read.plan.items()} == {"x": ["a"], "b": ["c"]}
    assert from_sharding_plan(TASK, read) == PLAN
    named = to_sharding_plan(PLAN, {"a": "x", "b.c": "b"})
    assert list(_saved(named, path, model, partial=True).plan) == ["x", "b"]
    where = f"sharding plan {path}"
    with refused("sharding-plan-module-unknown", where=where, names=["'elsewhere'", "'b'", "'x'"]):
        _saved(to_sharding_plan(PLAN, {"a": "elsewhere", "b.c": "b"}), path, model)
    assert list(_saved(_with_table("c"), path, model["x"]).plan) == [""]
    for name, count in (("c", 2), ("d", 0)):
        with refused("sharding-plan-table-ambiguous", where=where, names=[count, f"'{name}'"]):
            _saved(_with_table(name), path, model)


@pytest.mark.parametrize("modules", [{"x": "ac", "y": "b"}, {"x": "a", "y": "b"}, {"x": "a"}])
def test_a_file_that_lacks_tables_of_the_model_is_refused_unless_it_may_be_partial(path, modules):
    """The file lacks some or all tables of a collection. Without a model, the file is read nevertheless."""
    model = nn.ModuleDict({"x": bags("a", "c"), "y": bags("b"), "z": sequences("s")})
    task = Task(tables("".join(modules.values()), 100, 16), Topology(2, 1 << 20), 64)
    of = {name: module for module, names in modules.items() for name in names}
    plan = to_sharding_plan(laid_out(task, *[0] * len(of)), of)
    present = {f"{module}.{name}" for name, module in of.items()}
    missing = [name for name in ("x.a", "x.c", "y.b", "z.s") if name not in present]
    names = [number_of(len(missing), "table"), ", ".join(missing), "partial=True"]
    with refused("sharding-plan-tables-missing", where=f"sharding plan {path}", names=names):
        _saved(plan, path, model)
    assert _saved(plan, path, model, partial=True) == load_sharding_plan(path) == plan


def _with_table(name):
    """The plan of table "a" and one of this name."""
    tables = (TASK.tables[0], replace(TASK.tables[1], name=name))
    return to_sharding_plan(replace(PLAN, task=replace(TASK, tables=tables)))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, CacheParams(algorithm=CacheAlgorithm.LRU, load_factor=0.25)),
        (
            CacheParams(algorithm=CacheAlgorithm.LFU, reserved_memory=1.0, load_factor=0.9),
            CacheParams(algorithm=CacheAlgorithm.LFU, reserved_memory=1.0, load_factor=0.25),
        ),
        (
            CacheParams(algorithm=CacheAlgorithm.LRU, prefetch_pipeline=True, load_factor=0.9),
            CacheParams(algorithm=CacheAlgorithm.LRU, prefetch_pipeline=True, load_factor=0.25),
        ),
    ],
)
def test_to_sharding_plan_maps_tiers_to_kernels_and_requested_cache_parameters(asked, found, path):
    plan = reassign_tiers(PLAN, TASK, (TierAssignment(Tier.UVM_CACHING, 0.25), TierAssignment(Tier.UVM)))
    exported = to_sharding_plan(plan, "b", cache=asked)
    module = exported.plan["b"]
    assert [module[name].compute_kernel for name in ("a", "c")] == ["fused_uvm_caching", "fused_uvm"]
    assert [module[name].cache_params for name in ("a", "c")] == [found, None]
    assert _saved(exported, path) == exported
    assert from_sharding_plan(TASK, exported) == plan


def test_from_sharding_plan_gives_caches_without_a_size_the_default_of_fbgemm():
    exported = to_sharding_plan(reassign_tiers(PLAN, TASK, (TierAssignment(Tier.UVM_CACHING, 0.25), ON_DEVICE)), "b")
    exported.plan["b"]["a"].cache_params = None
    assert from_sharding_plan(TASK, exported).tier_assignments[0] == TierAssignment(Tier.UVM_CACHING, 0.2)


HOMES = st.one_of(
    st.just(ON_DEVICE),
    st.just(TierAssignment(Tier.UVM)),
    st.floats(0.01, 1.0).map(lambda share: TierAssignment(Tier.UVM_CACHING, share)),
)


@given(st.integers(0, 30), st.data())
def test_sharding_plan_of_any_tiers_is_converted_back_unchanged(seed, data):
    task = toy_task(6, num_devices=4, seed=seed)
    parts = [(index, 4) for index, table in enumerate(task.tables) for _ in range(table.dim // 4)]
    plan = assemble(task, [(*part, data.draw(st.integers(0, 3))) for part in parts])
    plan = reassign_tiers(plan, task, tuple(data.draw(HOMES) for _ in task.tables))
    assert from_sharding_plan(task, to_sharding_plan(plan, "model.sparse")) == plan


def test_from_sharding_plan_merges_shards_on_one_device():
    exported = to_sharding_plan(PLAN, compute_device="cpu")
    exported.plan[""]["b.c"].ranks = [1, 1]
    assert from_sharding_plan(TASK, exported) == assemble(TASK, [(0, 8, 3), (1, 16, 1)])


def test_warning_names_settings_that_the_file_cannot_store(path, caplog):
    exported = to_sharding_plan(PLAN, "b")
    exported.plan["b"]["a"].output_dtype = DataType.FP16
    exported.plan["b"]["c"].enforce_hbm = False
    assert _saved(exported, path) == to_sharding_plan(PLAN, "b")
    (lost,) = logged(caplog)
    names = [path, "output_dtype", "'a'", "enforce_hbm", "'c'", "'b'"]
    check(lost, "sharding-plan-fields-lost", names=names)


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (lambda content: content.update(format="x"), "file-format-other"),
        (lambda content: content.update(modules=[1]), "value-outside-limits"),
        (lambda content: content["modules"]["b"]["a"].pop("ranks"), "field-missing"),
        (lambda content: content["modules"]["b"]["a"]["shards"][0].update(placement="nowhere/cpu:x"),
         "sharding-plan-shards-refused"),
        (lambda content: content["modules"]["b"]["a"].update(shards=3), "value-outside-limits"),
        (lambda content: content["modules"]["b"]["a"].update(shards=None), "parameter-shards-without-ranks"),
        (lambda content: content["modules"]["b"]["a"].update(ranks=None), "parameter-shards-without-ranks"),
        (lambda content: content["modules"]["b"]["a"].update(ranks=[0, 1]), "parameter-shards-without-ranks"),
        (lambda content: content["modules"]["b"]["a"].update(ranks=[], shards=[]), "parameter-shards-without-ranks"),
    ],
)  # fmt: skip
def test_loading_a_broken_sharding_plan_names_the_file(path, break_it, code):
    save_sharding_plan(to_sharding_plan(PLAN, "b"), path)
    content = json.loads(path.read_text())
    break_it(content)
    path.write_text(json.dumps(content))
    with refused(code) as raised:
        load_sharding_plan(path)
    assert raised.value.message.where.startswith(f"sharding plan {path}")


TABLES = tuple(replace(TASK.tables[0], name=name, dim=16) for name in ("columns", "rows", "host", "grid", "copied"))
HOSTS = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)
MIXED = laid_out(HOSTS, {1: 4, 2: 12}, range(4), [2, 3], {(2, 3): 4, (0, 1): 12}, DATA_PARALLEL)


def test_sharding_plan_has_torchrec_names_and_blocks_of_every_sharding_type(path):
    whole = to_sharding_plan(MIXED, "ebc", "cpu")
    exported = whole.plan["ebc"]
    assert {name: (p.sharding_type, p.compute_kernel, p.ranks) for name, p in exported.items()} == {
        "columns": ("column_wise", "fused", [1, 2]),
        "rows": ("row_wise", "fused", [0, 1, 2, 3]),
        "host": ("table_row_wise", "fused", [2, 3]),
        "grid": ("grid_shard", "fused", [2, 3, 0, 1]),
        "copied": ("data_parallel", "dense", [0, 1, 2, 3]),
    }
    assert exported["copied"].sharding_spec is None
    assert _rectangles(exported["rows"]) == [
        ([0, 0], [3, 16]), ([3, 0], [3, 16]), ([6, 0], [3, 16]), ([9, 0], [1, 16]),
    ]  # fmt: skip
    assert _rectangles(exported["grid"]) == [
        ([0, 0], [5, 4]), ([5, 0], [5, 4]), ([0, 4], [5, 12]), ([5, 4], [5, 12]),
    ]  # fmt: skip
    assert from_sharding_plan(HOSTS, whole) == MIXED
    exported["more"] = ParameterSharding("data_parallel", "dense", [0, 1])
    assert _saved(whole, path) == whole
    assert from_sharding_plan(HOSTS, load_sharding_plan(path)) == MIXED


def test_sharding_plan_of_host_blocks_keeps_the_host_size_of_the_plan():
    places = [str(s.placement) for s in to_sharding_plan(MIXED).plan[""]["rows"].sharding_spec.shards]
    assert places == ["rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"]
    with refused("plan-host-size-differs", names=["local_world_size", 4, "'host'", "local_world_size=2"]):
        to_sharding_plan(MIXED, local_world_size=4)
    with refused("plan-blocks-devices", names=["'host'", "(2, 3)"]):
        from_sharding_plan(replace(HOSTS, topology=Topology(4, 1 << 20)), to_sharding_plan(MIXED))


ROW_KINDS = ("row_wise", "table_row_wise", "grid_shard")


@pytest.mark.parametrize("table", ["rows", "host", "grid"])
@pytest.mark.parametrize("kind", ["table_wise", "column_wise", *ROW_KINDS])
def test_reading_row_blocks_under_a_wrong_sharding_type_is_refused(table, kind):
    exported = to_sharding_plan(MIXED)
    right = exported.plan[""][table].sharding_type
    exported.plan[""][table].sharding_type = kind
    if kind == right or (right, kind) == ("table_row_wise", "grid_shard"):  # a grid of one range of columns
        assert from_sharding_plan(HOSTS, exported) == MIXED
        return
    with refused("sharding-plan-type-contradicted", where="sharding plan", names=[f"'{table}'"]) as raised:
        from_sharding_plan(HOSTS, exported)
    assert re.findall(r"\w+_(?:wise|shard)", raised.value.message.what) == [kind, right]


def test_from_sharding_plan_accepts_three_names_of_rows_on_the_only_host():
    task = Task(TABLES[:1], Topology(4, 1 << 20), 64)
    plan = laid_out(task, range(4))
    exported = to_sharding_plan(plan)
    assert exported.plan[""]["columns"].sharding_type == "row_wise"
    for kind in ROW_KINDS:
        exported.plan[""]["columns"].sharding_type = kind
        assert from_sharding_plan(task, exported) == plan


def _broken(table, plan=PLAN, **fields):
    exported = to_sharding_plan(plan, "b", "cpu")
    for name, value in fields.items():
        setattr(exported.plan["b"][table], name, value)
    return exported


def _spec(*rectangles):
    """Of (row, column, rows, columns)."""
    return EnumerableShardingSpec([ShardMetadata([*r[:2]], [*r[2:]], "rank:0/cpu") for r in rectangles])


@pytest.mark.parametrize("rows", [(2, 3, 3, 2), (4, 4, 1, 1), (4, 3, 2, 1)])
def test_reading_row_blocks_not_split_by_ceil_is_refused(rows):
    """TorchRec would train other rows, and print a line on stderr instead of an error."""
    blocks = ([sum(rows[:rank]), 0, count, 16] for rank, count in enumerate(rows))
    with refused("plan-block-rows", where="columns 0 to 15 of table 'rows'"):
        from_sharding_plan(HOSTS, _broken("rows", MIXED, sharding_spec=_spec(*blocks)))


@pytest.mark.parametrize(
    ("exported", "code", "where", "names"),
    [
        (ShardingPlan({}), "sharding-plan-table-not-unique", "", [0, "'a'"]),
        (_broken("a", sharding_type="row_wise"), "sharding-plan-type-contradicted", "sharding plan",
         ["'a'", "row_wise", "table_wise"]),
        (_broken("a", compute_kernel="key_value"), "table-kernel-unsupported", "",
         ["'a'", "'key_value'", "fused, fused_uvm_caching, fused_uvm, dense"]),
        (_broken("c", ranks=[1]), "sharding-plan-shards-without-ranks", "sharding plan",
         ["'b.c'", "2 shards", "1 rank"]),
        (_broken("c", ranks=None), "sharding-plan-shards-without-ranks", "sharding plan",
         ["'b.c'", "2 shards", "0 ranks"]),
        (_broken("a", ranks=[9]), "plan-device-outside", "", ["'a'", "device 9"]),
        (_broken("c", sharding_spec=_spec([0, 0, 10, 8]), ranks=[0]), "plan-shards-gap", "",
         ["'b.c'", "row 0", "column 8"]),
        (_broken("c", sharding_spec=_spec([0, 0, 10, 8], [0, 12, 10, 8])), "plan-shard-columns-outside", "",
         ["'b.c'", 16, 19]),
        (_broken("a", sharding_spec=_spec([0, 0, 4, 8], [4, 0, 6, 8]), ranks=[0, 1]), "plan-blocks-devices", "",
         ["'a'", "(0, 1)"]),
        (_broken("a", sharding_type="rowwise"), "unknown-name", "table 'a'", ["'rowwise'", "'row_wise'"]),
        (_broken("a", sharding_type="data_parallel", ranks=[0, 1]), "sharding-plan-copies-missing", "sharding plan",
         ["'a'", "[0, 1]", 4]),
        (_broken("a", sharding_spec=_spec([0, 0, 10, 6], [0, 6, 10, 2]), ranks=[0, 0]), "value-outside-limits",
         "table 'a' in the sharding plan", ["dim", 6, 4]),
    ],
)  # fmt: skip
def test_from_sharding_plan_refuses_plans_that_a_plan_cannot_express(exported, code, where, names):
    with refused(code, where=where, names=names):
        from_sharding_plan(TASK, exported)


SEQUENCES = Task(
    (*(replace(t, pooled=False) for t in TABLES[:3]), replace(TABLES[0], name="pooled")), Topology(4, 1 << 20), 64
)
PATHS = {"columns": "ec", "rows": "ec", "host": "ec", "pooled": "ebc"}


HALVES = {3: 8, 1: 8}
SERVED = laid_out(SEQUENCES, HALVES, range(4), 2, {0: 4, 1: 12})


def test_sequence_tables_are_whole_halved_or_row_wise(path):
    exported = to_sharding_plan(SERVED, PATHS)
    assert {name: (p.sharding_type, p.compute_kernel) for name, p in exported.plan["ec"].items()} == {
        "columns": ("column_wise", "fused"),
        "rows": ("row_wise", "fused"),
        "host": ("table_wise", "fused"),
    }
    assert from_sharding_plan(SEQUENCES, exported) == SERVED
    assert from_sharding_plan(SEQUENCES, _saved(exported, path)) == SERVED
    for table, kind in (("rows", "table_row_wise"), ("columns", "table_column_wise")):
        broken = to_sharding_plan(SERVED, PATHS)
        broken.plan["ec"][table].sharding_type = kind
        with refused("sequence-table-type", names=[f"'{table}'", kind]):
            from_sharding_plan(SEQUENCES, broken)


@pytest.mark.parametrize(
    ("columns", "host", "code", "where", "names"),
    [
        ({3: 4, 1: 12}, 2, "sequence-shard-widths", "collection 'ec'", ["'columns'", 12, 4]),
        (HALVES, dict.fromkeys(range(4), 4), "sequence-shard-widths", "collection 'ec'",
         ["'columns'", "'host'", 8, 4]),
        (DATA_PARALLEL, 2, "sequence-table-type", "", ["'columns'", "data_parallel"]),
    ],
)  # fmt: skip
def test_to_sharding_plan_refuses_sequence_tables_that_torchrec_cannot_serve(columns, host, code, where, names):
    plan = laid_out(SEQUENCES, columns, range(4), host, 0)
    with refused(code, where=where, names=names):
        to_sharding_plan(plan, PATHS)
    pooled = replace(SEQUENCES, tables=tuple(replace(table, pooled=True) for table in SEQUENCES.tables))
    exported = to_sharding_plan(Plan(pooled, plan.placements), PATHS)
    with refused(code, where=where, names=names):
        from_sharding_plan(SEQUENCES, exported)


@pytest.mark.parametrize(("dim", "padded"), [(10, True), (9, True), (8, False)])
def test_loading_a_plan_of_a_padded_table_advises_the_padded_width(tmp_path, dim, padded):
    path = tmp_path / "sharding.json"
    task = Task(tables("a", 100, 12, unpadded_dim=10), Topology(2, 1 << 20), 64)
    save_sharding_plan(to_sharding_plan(laid_out(task, 1), ""), path)
    with refused("planned-table-shape-differs", names=["'a'", f"100 x {dim}", "100 x 12"]) as raised:
        load_sharding_plan(path, bags("a", dim=dim))
    assert ("embedding_dim=12" in raised.value.message.remedy) is padded
    assert load_sharding_plan(path, bags("a", dim=12)).plan
