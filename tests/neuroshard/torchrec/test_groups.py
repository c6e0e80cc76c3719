"""Plans for one of several sharding groups, and DMPCollection with these plans, in real gloo processes."""

import pytest
import torch
from torch import distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingPlan

from neuroshard import InfeasibleError, MemoryUse
from neuroshard.testing import linear_models
from neuroshard.torchrec.groups import Groups
from tests.kit import training
from tests.kit.messages import logged_codes, logged_one, refused
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import CPU, planner, shaped_bags, topology

GIB = 1 << 30
SHAPES = {"columns": (50, 16), "rows": (31, 8), "whole": (7, 4)}
KINDS = {"columns": "column_wise", "rows": "row_wise", "whole": "table_wise"}
SAID = {name: ParameterConstraints(sharding_types=[kind]) for name, kind in KINDS.items()}
SAMPLES, RATE, STEPS = 4, 0.5, 2


def _job(devices=16, local=8, device="cuda", memory=GIB):
    return topology(devices, device, memory, local)


@pytest.mark.parametrize(
    ("number", "apart", "host", "copies"),
    [
        (2, False, 4, [2, 3]),
        (8, False, 1, [8, 9, 10, 11, 12, 13, 14, 15]),
        (16, False, 1, list(range(16))),
        (2, True, 8, [1, 9]),
        (4, True, 4, [1, 5, 9, 13]),
    ],
)
def test_groups_have_topology_and_ranks_of_dmp_collection(number, apart, host, copies):
    groups = Groups(_job(), number, use_inter_host_allreduce=apart)
    topology = groups.topology
    assert (topology.world_size, topology.local_world_size) == (16 // number, host)
    assert list(groups.copies_of(0 if number == 16 else 1)) == copies
    assert groups.arguments["node_group_size"] == host
    assert [device.rank for device in topology.devices] == list(range(16 // number))


def test_group_device_has_the_memory_of_its_smallest_replica():
    job = _job(4, 4)
    job.devices[3].storage.hbm = 5
    assert [device.storage.hbm for device in Groups(job, 2).topology.devices] == [GIB, 5]
    apart = Groups(job, 2, use_inter_host_allreduce=True)
    assert [device.storage.hbm for device in apart.topology.devices] == [GIB, 5]


def test_groups_refuse_numbers_that_do_not_divide_devices_or_hosts():
    with refused("groups-number-not-divisor", names=["num_groups", 3, 16]):
        Groups(_job(), 3)
    with refused("groups-hosts-unequal", names=["num_groups=3", 4]):
        Groups(_job(12, 4), 3)
    with refused("groups-sync-steps-low", names=["sync_steps", 0, 1]):
        Groups(_job(), 2, 0)


def _large(memory=GIB, **settings):
    """Planned: 8 tables of 128 MB on 16 devices, column-wise in device memory."""
    shapes = {f"t{i}": (1 << 18, 128) for i in range(8)}
    alone = {"sharding_types": ["column_wise"], "compute_kernels": ["fused"]}
    said = {name: ParameterConstraints(pooling_factors=[20.0], **alone) for name in shapes}
    given = {"models": "roofline:h100", "batch_size": 512, "constraints": said, "storage_reservation": None}
    ours = planner(topology=_job(memory=memory), **given | settings)
    return ours, ours.search(shaped_bags(shapes), [EmbeddingBagCollectionSharder()])


def test_groups_are_planned_for_the_batch_of_a_group_and_count_synchronisation():
    ours, plan = _large(num_groups=2, sync_steps=1 << 30)
    assert plan.task.topology.num_devices == plan.task.topology.devices_per_host * 2 == 8
    assert plan.task.batch_size == 8 * 512
    assert ours.last_groups.arguments["sharding_group_size"] == 8
    often, _ = _large(num_groups=2, sync_steps=4)
    seldom, _ = _large(num_groups=2, sync_steps=8)
    rare = ours.last_cost.compute
    extra = often.last_cost.compute - rare
    assert (extra > 0.01).all()
    assert extra == pytest.approx(2 * (seldom.last_cost.compute - rare), rel=0.01)
    # 1 GB of weights on 8 devices: 128 MiB each among two neighbours, by NVLink some 450 GB/s at most
    assert 128 * (1 << 20) / 450e6 / 4 < extra.max() < 10 * 128 * (1 << 20) / 450e6 / 4


def test_number_of_groups_is_chosen_by_cost(caplog):
    caplog.set_level("INFO")
    seldom, _ = _large(num_groups="auto", sync_steps=1000)
    costs = {number: _large(num_groups=number, sync_steps=1000)[0].last_cost.total_ms for number in (1, 2, 4, 8)}
    best = seldom.last_groups.num_groups
    assert seldom.last_cost.total_ms <= min(costs.values())
    assert best > 1
    always, _ = _large(num_groups="auto")
    assert always.last_groups.num_groups == 1
    assert f"1: {always.last_cost.total_ms:.3f}, 2: " in caplog.text  # predicted ms by number of groups


def test_auto_num_groups_leaves_out_groups_without_enough_memory():
    ours, plan = _large(memory=GIB // 8, num_groups="auto", sync_steps=1000)
    assert plan.fits
    assert ours.last_groups.num_groups == 1
    with refused("device-memory-too-small", kind=InfeasibleError):
        _large(memory=GIB // 8, num_groups=2)
    with refused("device-memory-too-small", kind=InfeasibleError):
        _large(memory=GIB // 100, num_groups="auto")


def test_auto_num_groups_leaves_out_groups_that_a_given_plan_does_not_fit():
    model = shaped_bags(SHAPES)
    said = {"models": "roofline:h100", "constraints": SAID, "sync_steps": 1 << 30}
    given = ShardingPlan({"": {"rows": planner(4, cap=GIB, **said).plan(model).plan[""]["rows"]}})
    ours = planner(4, cap=GIB, given=given, num_groups="auto", **said)
    assert ours.plan(model).plan[""]["rows"].ranks == [0, 1, 2, 3]
    assert ours.last_groups.num_groups == 1
    with refused("given-rank-outside", where="given", names=["'rows'", "rank 3", "2 ranks"]):
        planner(4, cap=GIB, given=given, num_groups=2, **said).plan(model)


@pytest.mark.parametrize(
    ("device", "number", "warned"), [("cpu", 2, 1), ("cpu", "auto", 1), ("cpu", 1, 0), ("cuda", 2, 0)]
)
def test_planner_warns_once_of_groups_of_cpus(device, number, warned, caplog):
    planner(topology=_job(4, 4, device), models="roofline:h100", num_groups=number)
    assert logged_codes(caplog).count("groups-on-cpu") == warned


def test_planner_warns_if_models_do_not_know_the_sync_of_groups(caplog):
    planner(topology=_job(4, 4, "cpu"), models=linear_models(2), num_groups=2)
    logged_one(caplog, "models-group-sync-missing", names=["'all_reduce'", "comm.collectives"])


def test_kept_plan_restores_the_number_of_groups_of_a_restarted_job(path, caplog):
    model = shaped_bags(SHAPES)
    given = {"models": "roofline:h100", "memory": MemoryUse(), "constraints": SAID, "keep": path, "num_groups": "auto"}
    first, again = (planner(4, cap=GIB, sync_steps=100, **given) for _ in range(2))
    plan = first.plan(model)
    caplog.set_level("INFO")
    assert again.plan(model) == plan
    assert again.last_groups.described == first.last_groups.described
    assert str(path) in caplog.text  # the plan comes from this file
    assert "kept-plan-outdated" not in logged_codes(caplog)
    caplog.clear()
    planner(4, cap=GIB, sync_steps=1, **given).plan(model)
    assert logged_one(caplog, "kept-plan-outdated").what.endswith(" groups")


def _loss(output):
    return training.uneven_loss(output[f"f_{name}"] for name in SHAPES)


def _train(rank, world_size, num_groups, apart):
    """Each group trains some steps by itself, then all take the mean; compared with whole modules."""
    sharders = [EmbeddingBagCollectionSharder(training.sgd(RATE))]
    given = {"num_groups": num_groups, "sync_steps": STEPS, "use_inter_host_allreduce": apart, "constraints": SAID}
    ours = planner(world_size, cap=GIB, models="roofline:h100", batch_size=SAMPLES, **given)
    model = shaped_bags(SHAPES)
    plan = ours.collective_plan(model, sharders)
    job = training.grouped(model, plan, sharders, ours.last_groups)
    average = job._default_ctx.replica_pg

    def averaged(*given):
        for tensor in given[-1]:  # TorchRec 1.9 gives the process group first; gloo has no means
            dist.all_reduce(tensor, group=average)
            tensor.div_(num_groups)

    job.set_all_reduce_hook(averaged)
    size, weights = world_size // num_groups, training.drawn_weights(SHAPES)
    members = [
        [r for r in range(world_size) if (r // size if apart else r % num_groups) == number]
        for number in range(num_groups)
    ]
    wholes = [shaped_bags(SHAPES, device=CPU) for _ in members]
    for module in (job, *wholes):
        training.set_weights(module, weights)
    features = {f"f_{name}": rows for name, (rows, _) in SHAPES.items()}
    for step in range(STEPS):
        batches = [training.drawn_lookups(features, SAMPLES, other, step) for other in range(world_size)]
        _loss(job(batches[rank])).backward()
        for whole, ranks in zip(wholes, members, strict=True):
            training.descend(training.tables_of(whole, SHAPES), [_loss(whole(batches[other])) for other in ranks], RATE)
    trained = [training.tables_of(whole, SHAPES) for whole in wholes]
    mine = next(tables for tables, ranks in zip(trained, members, strict=True) if rank in ranks)
    assert training.check_held(job, mine)
    job.sync(include_optimizer_state=False)
    means = {name: sum(tables[name] for tables in trained) / num_groups for name in SHAPES}
    assert not torch.allclose(means["columns"], mine["columns"])
    assert training.check_held(job, means)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_groups_train_separately_and_synchronise_to_the_mean(apart):
    on_gloo(4, _train, 4, 2, apart, local_world_size=4)
