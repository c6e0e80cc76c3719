"""Hosts, pods and groups: plans split the rows of a table over as many ranks as TorchRec does at run time."""

import os
from contextlib import nullcontext
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torchrec.distributed import comm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingPlan

from neuroshard import Topology
from neuroshard.measure.steps._mirror import mirrored_world
from neuroshard.measure.steps._step_bench import placed_here
from neuroshard.torchrec import NeuroShardPlanner
from neuroshard.torchrec.groups import groups_of
from neuroshard.torchrec.pods import POD_SIZE, pod_size_remark, ranks_per_pod
from tests.kit import training
from tests.kit.messages import check, logged, logged_codes, refused
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import CPU, planner, shaped_bags, topology

GIB = 1 << 30
SHAPES = {"a": (64, 16), "b": (32, 16)}
KINDS = {"a": "table_row_wise", "b": "table_row_wise", "c": "grid_shard"}
SAID = {name: ParameterConstraints(sharding_types=[kind], min_partition=8) for name, kind in KINDS.items()}
TRAINED = SHAPES | {"c": (64, 32)}
SAMPLES, RATE = 4, 0.5


def _job(world=8, host=2, pod=None):
    return topology(world, "cuda", GIB, host, pod_size=pod)


def _planned(job, shapes=SHAPES, **settings):
    ours = planner(topology=job, models="roofline:h100", constraints=SAID, batch_size=SAMPLES, **settings)
    return ours, shaped_bags(shapes)


JOBS = [
    (world, host, pod)
    for world, host in product(range(1, 25), range(1, 13))
    if world % host == 0
    for pod in (None, 1, 2, 3, 4, 5, 6, 8)
    if pod is None or pod <= world
]


def _peers(groups):
    """The ranks of every group as DMPCollection numbers them."""
    size, number = groups.sharding_group_size, groups.num_groups
    if groups.use_inter_host_allreduce:
        return [range(first, first + size) for first in range(0, size * number, size)]
    return [range(first, size * number, number) for first in range(number)]


def _every_groups():
    for world, host, pod in JOBS:
        for apart in (False, True):
            for groups in groups_of(_job(world, host, pod), "auto", 1, apart):
                yield groups, host, host * (pod or 1)


def _chunks(ranks, size):
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


def _shares(peers, links):
    """Return the numbers of ranks of a group that are in the same run of `links` ranks."""
    return {sum(rank // links == run for rank in its) for its in peers for run in {rank // links for rank in its}}


def test_groups_and_dmp_collection_agree_on_ranks_joined_by_fast_links():
    seen = 0
    for groups, host, pod in _every_groups():
        peers, plans, run = _peers(groups), groups.topology, groups.arguments
        joined = run["node_group_size"]
        assert plans.intra_group_size == joined  # the plan's rows are over as many ranks as DMPCollection's
        assert plans.world_size == run["sharding_group_size"] == len(peers[0])
        assert len(peers[0]) % joined == 0  # DMPCollection asserts that
        for links, size in ((host, plans.local_world_size), (pod, joined)):
            assert all(len({rank // links for rank in its}) == 1 for of in peers for its in _chunks(of, size))
        of_hosts, of_pods = _shares(peers, host), _shares(peers, pod)
        assert {plans.local_world_size} == of_hosts
        tiled = groups.job.world_size % min(pod, groups.job.world_size) == 0
        assert {joined} == (of_pods if tiled and len(of_pods) == 1 else of_hosts)
        fits = Topology(plans.world_size, GIB, 0, plans.local_world_size, devices_per_domain=joined)
        assert ranks_per_pod(plans) == fits.domain_size
        seen += 1
    assert seen > 1000


class _OneLink:
    """An exchange model that records the number of ranks joined by fast links."""

    num_devices, collectives = None, range(99)

    def predict(self, traffic, start):
        self.told = traffic.host_size
        return start


def test_replicas_count_as_joined_by_fast_links_only_within_a_pod():
    for groups, _, pod in _every_groups():
        if groups.num_groups == 1:
            continue
        exchange = _OneLink()
        groups._sync_ms(type("Models", (), {"backward": exchange}), 1.0, 8)
        copies = [list(groups.copies_of(rank)) for rank in range(groups.sharding_group_size)]
        joined = exchange.told or groups.num_groups
        assert groups.num_groups % joined == 0
        assert all(len({rank // pod for rank in its}) == 1 for of in copies for its in _chunks(of, joined))


@pytest.mark.parametrize(
    ("world", "host", "pod", "code", "names"),
    [
        (6, 4, None, "topology-host-size-not-divisor", ["local_world_size", 4, 6]),
        (2, 8, None, "topology-host-size-not-divisor", ["local_world_size", 8, 2]),
        (6, 4, 2, "topology-host-size-not-divisor", ["local_world_size", 4, 6]),
        (8, 2, 0, "topology-pod-size-low", ["pod_size", 0]),
        (8, 2, -1, "topology-pod-size-low", ["pod_size", -1]),
    ],
)
@pytest.mark.parametrize("number", [1, 2, "auto"])
def test_planner_refuses_hosts_of_unequal_size_and_invalid_pods(world, host, pod, code, names, number):
    with refused(code, where="topology", names=names):
        planner(topology=_job(world, host, pod), models="roofline:h100", num_groups=number)


@pytest.mark.parametrize(
    ("world", "pod", "joined", "warned"),
    [(8, 2, 4, 0), (8, 4, 8, 0), (8, 8, 8, 0), (8, 3, 2, 1), (12, 5, 2, 1), (12, 3, 6, 0)],
)
def test_pods_that_do_not_divide_the_ranks_are_counted_as_hosts_with_a_warning(world, pod, joined, warned, caplog):
    ours, model = _planned(_job(world, 2, pod), SHAPES | {"free": (64, 64)})
    assert logged_codes(caplog).count("topology-pods-ignored") == warned
    plan = ours.plan(model).plan[""]
    assert {len(plan[name].ranks) for name in SHAPES} == {joined}
    assert ours.last_plan.task.topology.domain_size == joined


@pytest.mark.parametrize(
    ("pod", "variable", "warned"),
    [
        (None, None, 0),
        (None, "1", 0),
        (None, "2", 1),
        (1, None, 0),
        (2, None, 1),
        (2, "1", 1),
        (2, "2", 0),
        (2, "two", 1),
        (4, "2", 1),
        (8, "4", 0),
        (3, None, 0),
        (3, "3", 1),
    ],
)
def test_planner_warns_if_a_plan_needs_a_pod_size_at_run_time(pod, variable, warned, caplog, monkeypatch):
    monkeypatch.delenv(POD_SIZE, raising=False)
    if variable is not None:
        monkeypatch.setenv(POD_SIZE, variable)
    ours, model = _planned(_job(8, 2, pod))
    hosts = len(ours.plan(model).plan[""]["a"].ranks) // 2
    messages = [message for message in logged(caplog) if message.code == "pod-size-differs"]
    assert len(messages) == warned
    assert all(f"{POD_SIZE}={hosts} " in message.remedy for message in messages)


@pytest.mark.parametrize(
    ("host", "pod", "settings"),
    [(4, 1, []), (2, 1, ["LOCAL_WORLD_SIZE=2", f"{POD_SIZE}=1"]), (2, 2, ["LOCAL_WORLD_SIZE=2", f"{POD_SIZE}=2"])],
)
def test_pod_size_remark_is_given_if_hosts_of_the_job_differ_from_the_topology(host, pod, settings):
    """The process is a rank of a job with 4 ranks per host."""
    ours, model = _planned(_job(8, host, pod))
    plan = ours.plan(model)
    with mirrored_world(0, 8, 4, lambda *_: nullcontext()):
        remark = pod_size_remark(plan, _job(8, host, pod))
    assert (remark is not None) == bool(settings)
    if remark is not None:
        check(remark, "pod-size-differs")
        assert all(setting in remark.remedy for setting in settings)


@pytest.mark.parametrize(("hosts", "joined"), [(None, 2), ("2", 4), ("72", 8)])
def test_planner_cuts_a_pod_of_the_environment_to_the_size_of_the_job(hosts, joined, monkeypatch):
    monkeypatch.delenv("TOPOLOGY_DOMAIN_MULTIPLE", raising=False)
    if hosts is not None:
        monkeypatch.setenv("TOPOLOGY_DOMAIN_MULTIPLE", hosts)
    with mirrored_world(0, 8, 2, lambda *_: nullcontext()):
        ours = NeuroShardPlanner(models="roofline:h100")
        ours.plan(shaped_bags(SHAPES))
    assert ours.last_plan.task.topology.domain_size == joined


def test_plans_without_host_tables_and_plans_of_groups_need_no_pod_size(caplog, monkeypatch):
    monkeypatch.delenv(POD_SIZE, raising=False)
    planner(topology=_job(8, 2, 2), models="roofline:h100").plan(shaped_bags(SHAPES))
    ours, model = _planned(_job(8, 2, 2), num_groups=2, use_inter_host_allreduce=True)
    assert len(ours.plan(model).plan[""]["a"].ranks) == 4
    assert "pod-size-differs" not in logged_codes(caplog)


@pytest.mark.parametrize(("host", "pod"), [(1, None), (4, None), (1, 4), (8, None)])
@pytest.mark.parametrize("name", KINDS)
def test_planner_refuses_a_given_plan_for_other_hosts(host, pod, name):
    shapes = SHAPES | {"c": (64, 16)}
    ours, model = _planned(_job(8, 2), shapes)
    of_hosts = ours.plan(model).plan[""][name]
    given = ShardingPlan({"": {name: of_hosts}})
    again, _ = _planned(_job(8, 1, 2), shapes, given=given)  # hosts of one rank in pods of two
    assert again.plan(model).plan[""][name] == of_hosts
    other, _ = _planned(_job(8, host, pod), shapes, given=given)
    with refused("table-blocks-outside-pod", where="given", names=[f"'{name}'", KINDS[name]]):
        other.plan(model)


def _owned(job):
    """Count the ranks that have each element of each table, (rows, columns)."""
    held = {name: np.zeros(shape, dtype=int) for name, shape in TRAINED.items()}
    for name, window, _ in training.held(job, TRAINED):
        held[name][window] += 1
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, held)
    return {name: sum(its[name] for its in every) for name in TRAINED}


def _train(rank, world_size, host, num_groups, apart, pod):
    """A step on row-wise tables over pods equals the whole module's, and every row is on a rank of each group."""
    fresh = dict.fromkeys(("_INTRA_PG", "_CROSS_PG", "_INTRA_PG_2D", "_CROSS_PG_2D", "_NODE_GROUP_SIZE_2D"))
    variable = {POD_SIZE: str(pod)} if num_groups == 1 else {}
    with patch.multiple(comm, **fresh), patch.dict(os.environ, variable):
        _step(rank, _job(world_size, host, pod), num_groups, apart)


def _step(rank, devices, num_groups, apart):
    sharders = [EmbeddingBagCollectionSharder(training.sgd(RATE))]
    ours, model = _planned(devices, TRAINED, num_groups=num_groups, use_inter_host_allreduce=apart)
    plan = ours.collective_plan(model, sharders)
    if num_groups == 1:
        job = training.sharded(model, placed_here(plan, CPU), sharders)
    else:
        job = training.grouped(model, plan, sharders, ours.last_groups)
    assert all((its == num_groups).all() for its in _owned(job).values())
    whole, weights = shaped_bags(TRAINED, device=CPU), training.drawn_weights(TRAINED)
    for module in (job, whole):
        training.set_weights(module, weights)
    (mine,) = (its for its in _peers(ours.last_groups) if rank in its)
    features = {f"f_{name}": rows for name, (rows, _) in TRAINED.items()}
    batches = {other: training.drawn_lookups(features, SAMPLES, other, step=1) for other in mine}
    output, expected = job(batches[rank]), whole(batches[rank])
    losses = [training.uneven_loss(it[feature] for feature in features) for it in (output, expected)]
    torch.testing.assert_close(*losses)
    losses[0].backward()
    tables = training.tables_of(whole, TRAINED)
    others = [training.uneven_loss(whole(batch)[feature] for feature in features) for batch in batches.values()]
    training.descend(tables, others, RATE)
    assert training.check_held(job, tables)
    dist.barrier()


@pytest.mark.parametrize(("world_size", "host"), [(4, 1), pytest.param(8, 2, marks=pytest.mark.slow)])
def test_row_wise_tables_over_pods_train_as_the_whole_module_does(world_size, host):
    cases = {
        "successive ranks in groups": (world_size, host, 2, True, 2),
        "every second rank in a group": (world_size, host, 2, False, 4),
        "no groups": (world_size, host, 1, False, 2),
    }
    on_gloo(world_size, of_all, _train, cases, local_world_size=host)
