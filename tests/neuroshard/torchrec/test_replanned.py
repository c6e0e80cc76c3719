"""Plans changed after tables came or went, or with other devices: what moves is little, and is said."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models
from neuroshard.torchrec import NeuroShardPlanner

META = torch.device("meta")
ROWS, DIM = 100, 16
SIZE = ROWS * DIM * 4


def _model(*names):
    configs = [
        EmbeddingBagConfig(name=n, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[f"f_{n}"]) for n in names
    ]
    return EmbeddingBagCollection(configs, device=META)


def _planner(devices=2, cap=1 << 20, **settings):
    topology = Topology(devices, "cpu", ddr_cap=cap, local_world_size=devices, created_by_factory=True)
    return NeuroShardPlanner(
        topology=topology,
        batch_size=4,
        models=replace(linear_models(devices), batch_size=None),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        memory=MemoryUse(),
        improvement={"shakes": 0},
        **settings,
    )


def _devices(plan):
    return {name: sorted(parameter.ranks) for name, parameter in plan.plan[""].items()}


def test_nothing_moves_where_nothing_may(tmp_path):
    planner = _planner()
    before = planner.search(_model("a", "b", "c", "d"))
    where = _devices(planner.plan(_model("a", "b", "c", "d")))
    changed = planner.replan(_model("b", "c", "d", "new"), previous=before, max_moved_bytes=0)
    after = _devices(changed.sharding_plan)
    assert {name: after[name] for name in ("b", "c", "d")} == {name: where[name] for name in ("b", "c", "d")}
    assert changed.moved_bytes == 0
    assert changed.plan == planner.last_plan
    told = {change.table: change for change in changed.changes}
    assert set(told) == {"a", "new"}
    assert (told["a"].after, told["new"].before, told["new"].size_bytes) == ((), (), SIZE)
    assert str(changed).startswith("0 bytes moved\ntable new: new, 6.25 KiB on device ")
    before.save(tmp_path / "plan.json")
    same = planner.replan(_model("b", "c", "d", "new"), previous=tmp_path / "plan.json", max_moved_bytes=0)
    assert same.plan == changed.plan


def test_what_is_found_is_kept(tmp_path):
    path = tmp_path / "plan.json"
    planner = _planner(keep=path)
    before = planner.plan(_model("a", "b"))
    changed = planner.replan(_model("a", "b", "c"), previous=path, max_moved_bytes=0)
    again = _planner(keep=path)
    assert _devices(again.plan(_model("a", "b", "c"))) == _devices(changed.sharding_plan)
    assert again.last_plan == changed.plan
    assert _devices(before).items() <= _devices(changed.sharding_plan).items()


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_rank_gets_it(group):
    planner = _planner(1)
    before = planner.search(_model("a", "b"))
    changed = planner.collective_replan(_model("b", "c"), previous=before)
    assert {change.table for change in changed.changes} == {"a", "c"}
    assert planner.last_plan == changed.plan
    with pytest.raises(UserError, match="no plan at"):
        planner.collective_replan(_model("a"), previous="nowhere.json")


def test_what_may_move_moves_to_cost_less():
    crowded = {name: ParameterConstraints(pooling_factors=[9.0]) for name in ("a", "b", "c", "d")}
    before = _planner(searcher="neuroshard", max_splits=0).search(_model("a", "b", "c", "d"))
    planner = _planner(4, constraints=crowded)
    costs = []
    for limit in (0, SIZE, "1MiB"):
        changed = planner.replan(_model("a", "b", "c", "d"), previous=before, max_moved_bytes=limit)
        assert changed.moved_bytes <= (1 << 20 if limit == "1MiB" else limit)
        costs.append(planner.last_cost.total_ms)
    assert costs[0] >= costs[1] > costs[2]


def test_what_must_move_is_counted_before_what_may():
    """Of two devices, one goes away."""
    before = _planner().search(_model("a", "b", "c", "d"))
    gone = sum(placed.shard.dim * ROWS * 4 for placed in before.placements if placed.device == 1)
    with pytest.raises(UserError, match=f"max_moved_bytes=10: {gone} bytes are moved at least"):
        _planner(1).replan(_model("a", "b", "c", "d"), previous=before, max_moved_bytes=10)
    changed = _planner(1).replan(_model("a", "b", "c", "d"), previous=before, max_moved_bytes=gone)
    assert changed.moved_bytes == gone
    assert set(map(tuple, _devices(changed.sharding_plan).values())) == {(0,)}


def test_what_has_no_room_is_moved():
    """Of two devices with two tables each, which now hold one and a half, to four."""
    before = _planner(max_splits=0).search(_model("a", "b", "c", "d"))
    changed = _planner(4, SIZE * 3 // 2).replan(_model("a", "b", "c", "d"), previous=before)
    assert changed.plan.violations == ()
    assert 0 < changed.moved_bytes <= 4 * SIZE


def test_a_plan_that_cannot_stay_is_made_from_nothing(caplog):
    before = _planner(rules=Constraints((TableRule("a", min_shards=2),))).search(_model("a", "b"))
    whole = {"a": ParameterConstraints(sharding_types=["table_wise"])}
    changed = _planner(constraints=whole).replan(_model("a", "b"), previous=before)
    assert "the previous plan can't stay" in caplog.text
    assert len(changed.sharding_plan.plan[""]["a"].ranks) == 1


def test_settings_are_the_searchers():
    planner = _planner()
    before = planner.search(_model("a", "b"))
    with pytest.raises(UserError, match="nonsense"):
        planner.replan(_model("a", "b"), previous=before, nonsense=1)
    with pytest.raises(UserError, match="no plan at"):
        planner.replan(_model("a", "b"), previous="nowhere.json")
