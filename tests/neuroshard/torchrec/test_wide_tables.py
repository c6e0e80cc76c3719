"""Tables wider than a shard may be, in TorchRec: planned, read, delegated and trained."""

import re

import pytest
import torch
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import EnumerableShardingSpec

from neuroshard import Task, Topology
from neuroshard.plans.plan import assemble
from neuroshard.torchrec import from_sharding_plan, load_sharding_plan, save_sharding_plan, to_sharding_plan
from neuroshard.torchrec.kernels import shards_of
from tests.kit import training
from tests.kit.messages import refused
from tests.kit.plans import table, tables
from tests.kit.torchrec_models import CPU, META, bags, planned, planner, sequences

ROWS, SAMPLES = 20, 4
H100 = {"models": "roofline:h100", "cap": 1 << 30}


def _widths(sharding):
    return [shard.shard_sizes[1] for shard in shards_of(sharding)]


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(
    ("make", "dim", "fewest"), [(bags, 4096, 2), (bags, 4100, 3), (sequences, 4096, 2), (sequences, 4104, 3)]
)
def test_planner_splits_wide_tables_into_column_shards(make, dim, fewest, devices):
    for device in ("cpu", "cuda"):
        _, plan = planned(make("a", "b", dim=dim, rows=ROWS), devices=devices, device=device, **H100)
        for sharding in plan.plan[""].values():
            assert sharding.sharding_type == "column_wise"
            assert len(_widths(sharding)) >= fewest
            assert max(_widths(sharding)) <= 2048
    if make is sequences:
        assert len({width for its in plan.plan[""].values() for width in _widths(its)}) == 1


@pytest.mark.parametrize(
    ("said", "code", "where", "named"),
    [
        ({"sharding_types": ["table_wise"]}, "wide-table-max-shards", "constraints", "column_wise"),
        ({"sharding_types": ["table_wise", "row_wise"]}, "wide-table-min-dim", "constraints", "min_partition"),
        ({"sharding_types": ["row_wise"]}, "delegated-shard-too-wide", "", "row_wise"),
        ({"sharding_types": ["data_parallel"]}, "delegated-shard-too-wide", "", "data_parallel"),
        ({"min_partition": 4096}, "wide-table-min-dim", "constraints", "min_partition"),
    ],
    ids=str,
)
def test_planner_refuses_constraints_that_leave_a_wide_table_unsplit(said, code, where, named):
    with refused(code, where=where, names=["'a'", 4096, 2048, named]):
        planned(bags("a", dim=4096, rows=ROWS), constraints={"a": ParameterConstraints(**said)}, device="cuda", **H100)


@pytest.mark.parametrize("dim", [2050, 4095])
def test_planner_refuses_wide_tables_that_could_only_be_data_parallel(dim):
    with refused("delegated-shard-too-wide", names=["'a'", dim, -(-dim // 4) * 4, "data_parallel"]):
        planned(bags("a", dim=dim, rows=ROWS), device="cuda", **H100)


def test_sharding_plans_with_wide_shards_break_their_task():
    task = Task((table("a", ROWS, 4096),), Topology(2, 1 << 30), 8)
    cut = to_sharding_plan(assemble(task, [(0, 4096, 1)]))
    assert cut.plan[""]["a"].ranks == [1, 1]
    assert from_sharding_plan(task, cut).violations == ()
    uncut = cut.plan[""]["a"]
    uncut.sharding_type, uncut.ranks = "table_wise", [1]
    uncut.sharding_spec = EnumerableShardingSpec([ShardMetadata([0, 0], [ROWS, 4096], "rank:1/cuda:1")])
    (broken,) = from_sharding_plan(task, cut).violations
    assert re.findall(r"'a'|\d+", broken) == ["'a'", "4096", "2048"]


@pytest.mark.parametrize("kind", ["table_wise", "data_parallel"])
def test_planner_refuses_given_plans_with_too_wide_shards(kind):
    model = bags("a", dim=4096, rows=ROWS)
    _, given = planned(model, device="cuda", **H100)
    uncut = given.plan[""]["a"]
    uncut.sharding_type, uncut.ranks, uncut.sharding_spec = kind, None, None
    if kind == "table_wise":
        shard = ShardMetadata([0, 0], [ROWS, 4096], "rank:0/cuda:0")
        uncut.ranks, uncut.sharding_spec = [0], EnumerableShardingSpec([shard])
    with refused("planned-shard-too-wide", where="given", names=["'a'", 4096, 2048]):
        planned(model, device="cuda", given=given, **H100)


def test_loading_files_with_too_wide_shards_is_refused(tmp_path):
    path, task = tmp_path / "sharding.json", Task((table("a", ROWS, 4096),), Topology(2, 1 << 30), 8)
    save_sharding_plan(to_sharding_plan(assemble(task, [(0, 4096, 1)])), path)
    assert _widths(load_sharding_plan(path).plan[""]["a"]) == [2048, 2048]
    path.write_text(re.sub(r"\b2048\b", "4096", path.read_text()))
    with refused("parameter-shard-wide", where=f"sharding plan {path}, modules[...][...]", names=[4096]):
        load_sharding_plan(path)


@pytest.mark.parametrize("pooled", [True, False])
def test_several_shards_of_a_table_on_one_rank_train_as_the_whole_table_does(pooled, group):
    shapes = {"a": (ROWS, 4096), "b": (ROWS, 4096)}
    task = Task(tables("ab", ROWS, 4096, pooled=pooled), Topology(1, 1 << 30), SAMPLES)
    plan = to_sharding_plan(assemble(task, [(0, 4096, 0), (1, 4096, 0)]), compute_device="cpu")
    sharder = EmbeddingBagCollectionSharder if pooled else EmbeddingCollectionSharder
    make = bags if pooled else sequences
    whole = make("a", "b", rows=ROWS, dim=4096, device=CPU)
    job = training.sharded(make("a", "b", rows=ROWS, dim=4096, device=META), plan, [sharder(training.sgd(0.5))])
    weights = training.drawn_weights(shapes)
    for model in (job, whole):
        training.set_weights(model, weights)
    lookups, held = {"f_a": ROWS, "f_b": ROWS}, training.tables_of(whole, shapes)
    for step in range(2):
        batch = training.drawn_lookups(lookups, SAMPLES, 0, step)
        losses = []
        for model in (job, whole):
            output = model(batch)
            outputs = [output[name] if pooled else output[name].values() for name in lookups]
            losses.append(training.uneven_loss(outputs))
        losses[0].backward()
        torch.testing.assert_close(*losses)
        training.descend(held, losses[1:], 0.5)
    assert training.check_held(job, held) == 4


def test_kept_plan_with_wide_tables_is_read_back(tmp_path):
    model = bags("a", "b", dim=4100, rows=ROWS)
    ours = planner(1, keep=tmp_path / "plan.json", **H100)
    first = ours.plan(model)
    assert planner(1, keep=tmp_path / "plan.json", **H100).plan(model) == first
