"""Plans to TorchRec's form and back."""

import json
from dataclasses import replace

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.types import CacheParams, EnumerableShardingSpec, ParameterSharding, ShardingPlan

from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.space.homes import rehomed
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE, toy_task
from neuroshard.torchrec import from_sharding_plan, load_sharding_plan, save_sharding_plan, to_sharding_plan
from neuroshard.words.placement import ON_DEVICE, Home, Tier

TASK = Task(tuple(Table(name, 10, dim, 2.0, ONCE) for name, dim in (("a", 8), ("b.c", 16))), Topology(4, 1 << 20), 64)
PLAN = assemble(TASK, [(0, 8, 3), (1, 4, 0), (1, 12, 2)])


def _same(one, other):
    return {m: dict(p) for m, p in one.plan.items()} == {m: dict(p) for m, p in other.plan.items()}


def test_whole_tables_are_table_wise_but_beside_cut_ones():
    """TorchRec exchanges and looks up for every sharding type by itself: one word for all columns of a collection."""
    exported = to_sharding_plan(PLAN, "ebc", local_world_size=2).plan["ebc"]
    assert (exported["a"].sharding_type, exported["a"].ranks) == ("column_wise", [3])
    alone = to_sharding_plan(PLAN, {"a": "x", "b.c": "y"}, local_world_size=2).plan
    assert [alone["x"]["a"].sharding_type, alone["y"]["b.c"].sharding_type] == ["table_wise", "column_wise"]
    sequence = replace(TASK, tables=(replace(TASK.tables[0], pooled=False), TASK.tables[1]))
    beside = to_sharding_plan(Plan(sequence, PLAN.placements), {"a": "x", "b.c": "x"}, local_world_size=2).plan["x"]
    assert (
        beside["a"].sharding_type == "table_wise"
    )  # of sequence tables it reads all column-wise shards as equally wide
    assert (exported["b.c"].sharding_type, exported["b.c"].ranks) == ("column_wise", [0, 2])
    assert {parameter.compute_kernel for parameter in exported.values()} == {"fused"}
    shards = exported["b.c"].sharding_spec.shards
    assert [(s.shard_offsets, s.shard_sizes) for s in shards] == [([0, 0], [10, 4]), ([0, 4], [10, 12])]
    assert str(exported["a"].sharding_spec.shards[0].placement) == "rank:3/cuda:1"


def test_tables_of_several_modules():
    exported = to_sharding_plan(PLAN, {"a": "x.y", "b.c": "b"}, "cpu")
    assert {module: list(plan) for module, plan in exported.plan.items()} == {"x.y": ["a"], "b": ["c"]}
    assert from_sharding_plan(TASK, exported) == PLAN
    with pytest.raises(UserError, match=r"no module given for table 'b\.c'"):
        to_sharding_plan(PLAN, {"a": "x"})
    with pytest.raises(UserError, match="local_world_size=3 must divide"):
        to_sharding_plan(PLAN, local_world_size=3)


HOMES = st.one_of(
    st.just(ON_DEVICE), st.just(Home(Tier.HOST)), st.floats(0.01, 1.0).map(lambda share: Home(Tier.CACHED, share))
)


def test_memories_are_kernels_and_load_factors(tmp_path):
    homes = (Home(Tier.CACHED, 0.25), Home(Tier.HOST))
    plan = rehomed(PLAN, TASK, homes)
    exported = to_sharding_plan(plan, "ebc", "cpu")
    module = exported.plan["ebc"]
    assert [module[name].compute_kernel for name in ("a", "b.c")] == ["fused_uvm_caching", "fused_uvm"]
    assert module["a"].cache_params == CacheParams(algorithm=CacheAlgorithm.LRU, load_factor=0.25)
    assert module["b.c"].cache_params is None
    save_sharding_plan(exported, tmp_path / "plan.json")
    read = load_sharding_plan(tmp_path / "plan.json")
    assert _same(read, exported)
    assert from_sharding_plan(TASK, read) == plan


class _Model(nn.Module):
    """Tables "a" and "c" in one collection, "b" and "c" in another."""

    def __init__(self):
        super().__init__()
        names = {"x": ("a", "c"), "b": ("b", "c")}
        for path, tables in names.items():
            configs = [EmbeddingBagConfig(16, 10, name, feature_names=[name]) for name in tables]
            self.add_module(path, EmbeddingBagCollection(configs, device=torch.device("meta")))


def test_a_file_without_a_module_finds_its_tables_in_the_model(tmp_path):
    path, model = tmp_path / "plan.json", _Model()
    save_sharding_plan(to_sharding_plan(PLAN), path)
    assert list(load_sharding_plan(path).plan) == [""]
    read = load_sharding_plan(path, model)
    assert {module: list(plan) for module, plan in read.plan.items()} == {"x": ["a"], "b": ["c"]}
    assert from_sharding_plan(TASK, read) == PLAN
    save_sharding_plan(to_sharding_plan(PLAN, {"a": "elsewhere", "b.c": "b"}), path)
    assert list(load_sharding_plan(path, model).plan) == ["elsewhere", "b"]  # what names its module keeps it
    save_sharding_plan(to_sharding_plan(replace(PLAN, task=_renamed("a", "c"))), path)
    assert list(load_sharding_plan(path, model.x).plan) == [""]
    with pytest.raises(UserError, match=r"plan\.json: 2 collections of the model have a table 'c', not one"):
        load_sharding_plan(path, model)
    save_sharding_plan(to_sharding_plan(replace(PLAN, task=_renamed("a", "d"))), path)
    with pytest.raises(UserError, match=r"plan\.json: 0 collections of the model have a table 'd', not one"):
        load_sharding_plan(path, model)


def _renamed(*names):
    tables = (replace(table, name=name) for table, name in zip(TASK.tables, names, strict=True))
    return replace(TASK, tables=tuple(tables))


def test_caches_are_as_users_want_them(tmp_path):
    cache = CacheParams(algorithm=CacheAlgorithm.LFU, prefetch_pipeline=True, load_factor=0.9)
    exported = to_sharding_plan(rehomed(PLAN, TASK, (Home(Tier.CACHED, 0.25), ON_DEVICE)), "ebc", cache=cache)
    kept = exported.plan["ebc"]["a"].cache_params
    assert (kept.algorithm, kept.prefetch_pipeline, kept.load_factor) == (CacheAlgorithm.LFU, True, 0.25)
    assert exported.plan["ebc"]["b.c"].cache_params is None
    save_sharding_plan(exported, tmp_path / "plan.json")
    assert _same(load_sharding_plan(tmp_path / "plan.json"), exported)


def test_caches_without_a_size_have_fbgemms():
    exported = to_sharding_plan(rehomed(PLAN, TASK, (Home(Tier.CACHED, 0.25), ON_DEVICE)), "ebc")
    exported.plan["ebc"]["a"].cache_params = None
    assert from_sharding_plan(TASK, exported).homes[0] == Home(Tier.CACHED, 0.2)


def test_kernels_that_nobody_plans_for_are_refused():
    exported = to_sharding_plan(PLAN, "ebc")
    exported.plan["ebc"]["a"].compute_kernel = "key_value"
    with pytest.raises(UserError, match="table 'a' has compute kernel 'key_value'; known are fused, fused_uvm_caching"):
        from_sharding_plan(TASK, exported)


@given(st.integers(0, 30), st.data())
def test_there_and_back_in_any_memory(seed, data):
    task = toy_task(4, num_devices=2, seed=seed)
    plan = assemble(task, [(index, table.dim, data.draw(st.integers(0, 1))) for index, table in enumerate(task.tables)])
    plan = rehomed(plan, task, tuple(data.draw(HOMES) for _ in task.tables))
    assert from_sharding_plan(task, to_sharding_plan(plan, "model.sparse")) == plan


@given(st.integers(0, 30), st.data())
def test_there_and_back(seed, data):
    task = toy_task(6, num_devices=4, seed=seed)
    placed = [
        (index, 4, data.draw(st.integers(0, 3)))
        for index, table in enumerate(task.tables)
        for _ in range(table.dim // 4)
    ]
    plan = assemble(task, placed)
    assert from_sharding_plan(task, to_sharding_plan(plan, "model.sparse")) == plan


def test_shards_on_one_device_become_one():
    exported = to_sharding_plan(PLAN, compute_device="cpu")
    exported.plan[""]["b.c"].ranks = [1, 1]
    merged = from_sharding_plan(TASK, exported)
    assert merged == assemble(TASK, [(0, 8, 3), (1, 16, 1)])


def test_files_hold_everything(tmp_path):
    exported = to_sharding_plan(PLAN, "ebc", local_world_size=2)
    exported.plan["ebc"]["copied"] = ParameterSharding("data_parallel", "dense", [0, 1])
    save_sharding_plan(exported, tmp_path / "plan.json")
    assert _same(load_sharding_plan(tmp_path / "plan.json"), exported)
    assert from_sharding_plan(TASK, load_sharding_plan(tmp_path / "plan.json")) == PLAN


@pytest.mark.parametrize(
    "break_it",
    [
        lambda content: content.update(format="x"),
        lambda content: content.update(modules=[1]),
        lambda content: content["modules"]["ebc"]["a"].pop("ranks"),
        lambda content: content["modules"]["ebc"]["a"]["shards"][0].update(placement="nowhere/cpu:x"),
        lambda content: content["modules"]["ebc"]["a"].update(shards=3),
    ],
)
def test_broken_files_are_one_line(tmp_path, break_it):
    path = tmp_path / "plan.json"
    save_sharding_plan(to_sharding_plan(PLAN, "ebc"), path)
    content = json.loads(path.read_text())
    break_it(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"plan\.json"):
        load_sharding_plan(path)


TABLES = tuple(replace(TASK.tables[0], name=name, dim=16) for name in ("columns", "rows", "host", "grid", "copied"))
HOSTS = Task(TABLES, Topology(4, 1 << 20, devices_per_host=2), 64)
MIXED = Plan(
    HOSTS,
    (
        *in_columns(HOSTS, [(0, 4, 1), (0, 12, 2)]),
        *in_rows(HOSTS, 1, range(4)),
        *in_rows(HOSTS, 2, [2, 3]),
        *in_rows(HOSTS, 3, [2, 3], (0, 4)),
        *in_rows(HOSTS, 3, [0, 1], (4, 16)),
        *in_copies(HOSTS, 4),
    ),
)


def test_every_form_has_torchrecs_word_and_the_blocks_that_it_wants(tmp_path):
    exported = to_sharding_plan(MIXED, "ebc", "cpu").plan["ebc"]
    assert {name: (p.sharding_type, p.compute_kernel, p.ranks) for name, p in exported.items()} == {
        "columns": ("column_wise", "fused", [1, 2]),
        "rows": ("row_wise", "fused", [0, 1, 2, 3]),
        "host": ("table_row_wise", "fused", [2, 3]),
        "grid": ("grid_shard", "fused", [2, 3, 0, 1]),
        "copied": ("data_parallel", "dense", [0, 1, 2, 3]),
    }
    assert exported["copied"].sharding_spec is None
    shards = {n: p.sharding_spec.shards for n, p in exported.items() if p.sharding_spec is not None}
    assert [(s.shard_offsets, s.shard_sizes) for s in shards["rows"]] == [
        ([0, 0], [3, 16]), ([3, 0], [3, 16]), ([6, 0], [3, 16]), ([9, 0], [1, 16]),
    ]  # fmt: skip
    assert [(s.shard_offsets, s.shard_sizes) for s in shards["grid"]] == [
        ([0, 0], [5, 4]), ([5, 0], [5, 4]), ([0, 4], [5, 12]), ([5, 4], [5, 12]),
    ]  # fmt: skip
    whole = to_sharding_plan(MIXED, "ebc", "cpu")
    assert from_sharding_plan(HOSTS, whole) == MIXED
    save_sharding_plan(whole, tmp_path / "plan.json")
    assert from_sharding_plan(HOSTS, load_sharding_plan(tmp_path / "plan.json")) == MIXED


def test_hosts_are_those_that_blocks_were_laid_out_for():
    places = [str(s.placement) for s in to_sharding_plan(MIXED).plan[""]["rows"].sharding_spec.shards]
    assert places == ["rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:0", "rank:3/cuda:1"]
    with pytest.raises(UserError, match="local_world_size=4, but table 'host' is in blocks of rows on hosts of 2"):
        to_sharding_plan(MIXED, local_world_size=4)
    one = replace(HOSTS, topology=Topology(4, 1 << 20))
    with pytest.raises(UserError, match="'host' are in blocks of rows on 2 device"):
        from_sharding_plan(one, to_sharding_plan(MIXED))


@pytest.mark.parametrize("table", ["rows", "host", "grid"])
@pytest.mark.parametrize("kind", ["table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard"])
def test_blocks_that_torchrec_would_take_for_others_are_refused(table, kind):
    exported = to_sharding_plan(MIXED)
    right = exported.plan[""][table].sharding_type
    exported.plan[""][table].sharding_type = kind
    if kind == right or (right, kind) == ("table_row_wise", "grid_shard"):  # a grid of one range of columns
        assert from_sharding_plan(HOSTS, exported) == MIXED
        return
    with pytest.raises(UserError, match=f"{table!r} is sharded {kind}, but its shards lie as {right} wants them"):
        from_sharding_plan(HOSTS, exported)


@pytest.mark.parametrize("rows", [[3, 3, 3, 1], [2, 3, 3, 2], [4, 4, 1, 1], [4, 3, 2, 1]])
def test_rows_cut_otherwise_than_by_ceil_are_refused(rows):
    """TorchRec would train other rows, with a line on stderr and no error."""
    exported = to_sharding_plan(MIXED, compute_device="cpu")
    firsts = [sum(rows[:rank]) for rank in range(4)]
    exported.plan[""]["rows"].sharding_spec = _spec(*([first, 0, n, 16] for first, n in zip(firsts, rows, strict=True)))
    if rows == [3, 3, 3, 1]:
        assert from_sharding_plan(HOSTS, exported) == MIXED
        return
    with pytest.raises(UserError, match=r"table 'rows': device \d has rows .* blocks are of ceil"):
        from_sharding_plan(HOSTS, exported)


def test_a_host_of_all_devices_has_three_words():
    task = Task(TABLES[:1], Topology(4, 1 << 20), 64)
    plan = Plan(task, tuple(in_rows(task, 0, range(4))))
    exported = to_sharding_plan(plan)
    assert exported.plan[""]["columns"].sharding_type == "row_wise"
    for kind in ("row_wise", "table_row_wise", "grid_shard"):
        exported.plan[""]["columns"].sharding_type = kind
        assert from_sharding_plan(task, exported) == plan


def _broken(table, **fields):
    exported = to_sharding_plan(PLAN, "ebc", "cpu")
    for name, value in fields.items():
        setattr(exported.plan["ebc"][table], name, value)
    return exported


def _spec(*rectangles):
    """Of (row, column, rows, columns)."""
    return EnumerableShardingSpec([ShardMetadata([*r[:2]], [*r[2:]], "rank:0/cpu") for r in rectangles])


@pytest.mark.parametrize(
    ("exported", "message"),
    [
        (ShardingPlan({}), "0 parameters of the sharding plan are named 'a'"),
        (_broken("a", sharding_type="row_wise"), "'a' is sharded row_wise, but .* as table_wise wants them"),
        (_broken("b.c", ranks=[1]), "has 2 shards on 1 ranks"),
        (_broken("b.c", ranks=None), "has 2 shards on 0 ranks"),
        (_broken("a", ranks=[9]), "device 9"),
        (_broken("b.c", sharding_spec=_spec([0, 0, 10, 8]), ranks=[0]), "column 8 of table 'b.c', row 0, .* no shard"),
        (_broken("b.c", sharding_spec=_spec([0, 0, 10, 8], [0, 12, 10, 8])), "16 columns; .* ends with column 19"),
        (_broken("a", sharding_spec=_spec([0, 0, 4, 8], [4, 0, 6, 8]), ranks=[0, 1]), "blocks of rows on 2 device"),
        (_broken("a", sharding_type="rowwise"), "'a': unknown sharding type 'rowwise'; did you mean 'row_wise'"),
        (_broken("a", sharding_type="data_parallel", ranks=[0, 1]), r"on ranks \[0, 1\], not on all 4"),
        (_broken("a", sharding_spec=_spec([0, 0, 10, 6], [0, 6, 10, 2]), ranks=[0, 0]), "'a' .*dim=6 must be a mul"),
    ],
)
def test_what_our_plans_cannot_say_is_refused(exported, message):
    with pytest.raises(UserError, match=message):
        from_sharding_plan(TASK, exported)


SEQUENCES = Task(
    (*(replace(t, pooled=False) for t in TABLES[:3]), replace(TABLES[0], name="pooled")), Topology(4, 1 << 20), 64
)
SEQUENCE_PLAN = Plan(
    SEQUENCES,
    (
        *in_columns(SEQUENCES, [(0, 8, 3), (0, 8, 1)]),
        *in_rows(SEQUENCES, 1, range(4)),
        *in_columns(SEQUENCES, [(2, 16, 2), (3, 4, 0), (3, 12, 1)]),
    ),
)
PATHS = {"columns": "ec", "rows": "ec", "host": "ec", "pooled": "ebc"}


def test_sequence_tables_are_whole_halved_or_in_rows(tmp_path):
    exported = to_sharding_plan(SEQUENCE_PLAN, PATHS)
    assert {name: p.sharding_type for name, p in exported.plan["ec"].items()} == {
        "columns": "column_wise", "rows": "row_wise", "host": "table_wise",
    }  # fmt: skip
    assert {p.compute_kernel for p in exported.plan["ec"].values()} == {"fused"}
    assert from_sharding_plan(SEQUENCES, exported) == SEQUENCE_PLAN
    save_sharding_plan(exported, tmp_path / "plan.json")
    assert from_sharding_plan(SEQUENCES, load_sharding_plan(tmp_path / "plan.json")) == SEQUENCE_PLAN


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([(0, 4, 3), (0, 12, 1), (2, 16, 2)], "'columns' and 'columns' are in shards of 12 and 4 columns"),
        ([(0, 8, 3), (0, 8, 1), *((2, 4, d) for d in range(4))], "'columns' and 'host' are in shards of 8 and 4 col"),
        (in_copies(SEQUENCES, 0), "'columns' is a sequence table, sharded data_parallel; plans have"),
    ],
)
def test_sequence_tables_that_torchrec_would_not_serve_are_refused(placements, message):
    columns = [(2, 16, 2), (3, 16, 0)]
    given = placements
    if isinstance(placements[0], tuple):
        given, columns = in_columns(SEQUENCES, placements), [(3, 16, 0)]
    plan = Plan(SEQUENCES, (*given, *in_columns(SEQUENCES, columns), *in_rows(SEQUENCES, 1, range(4))))
    with pytest.raises(UserError, match=message):
        to_sharding_plan(plan, PATHS)
    pooled = replace(SEQUENCES, tables=tuple(replace(table, pooled=True) for table in SEQUENCES.tables))
    exported = to_sharding_plan(Plan(pooled, plan.placements), PATHS)
    with pytest.raises(UserError, match=message):
        from_sharding_plan(SEQUENCES, exported)


def test_sequence_tables_have_fewer_words():
    for table, kind in (("rows", "table_row_wise"), ("columns", "table_column_wise")):
        broken = to_sharding_plan(SEQUENCE_PLAN, PATHS)
        broken.plan["ec"][table].sharding_type = kind
        with pytest.raises(UserError, match=f"'{table}' is a sequence table, sharded {kind}"):
            from_sharding_plan(SEQUENCES, broken)
