"""The timed collectives between real gloo processes move the right data."""

import os

import pytest
import torch
import torch.distributed as dist

from neuroshard.measure._exchange_bench import circles, make_exchange
from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import WorkerGroup
from neuroshard.measure.store.samples import CommSample
from neuroshard.words.collective import BETWEEN_HOSTS, Collective
from tests.kit.measuring import CPU
from tests.kit.processes import PATIENCE_S

pytestmark = pytest.mark.xdist_group("measures")
DEVICES = 4
BATCH = 8


class _Exchanges:
    """Runs exchanges of buffers that tell who filled them, and returns what they then hold, on every rank."""

    def __init__(self, rank, count, port):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
        self.rank = rank
        self.circles = circles(rank, count, 2)

    def measure(self, samples, seeds, report):
        found = [self._run(sample) for sample in samples]
        gathered = [None] * DEVICES
        dist.all_gather_object(gathered, found)
        return [Outcome(None, "", 0.0, tuple(each)) for each in zip(*gathered, strict=True)]

    def _run(self, sample):
        exchange = make_exchange(sample, self.circles, torch.device("cpu"))
        exchange.buffers[0].fill_(10**self.rank)
        exchange.forward()
        forward = [buffer.tolist() for buffer in exchange.buffers]
        exchange.backward()
        return forward, [buffer.tolist() for buffer in exchange.buffers]


@pytest.fixture(scope="module")
def run():
    with WorkerGroup(_Exchanges, DEVICES, PATIENCE_S) as group:
        yield lambda sample: group.measure([sample], [0])[0].seen


def _sample(sizes, collective):
    return CommSample(sizes, (0.0,) * DEVICES, BATCH, collective, 2)


def test_all_to_all_brings_every_device_its_samples(run):
    dims = (4, 8, 0, 12)
    seen = run(CommSample.of_columns(dims, (0.0,) * DEVICES, BATCH))
    own = BATCH // DEVICES
    for rank, ((pooled, received), (returned, _)) in enumerate(seen):
        assert received == [10.0**other for other, dim in enumerate(dims) for _ in range(own * dim)]
        assert pooled == returned == [10.0**rank] * BATCH * dims[rank]


def test_reduce_scatter_adds_partial_sums_and_gathers_them_back(run):
    for forward, backward in run(_sample((512,) * 4, Collective.REDUCE_SCATTER)):
        assert forward[1] == [1111.0] * 32
        assert backward[0] == [1111.0] * 128


def test_host_collectives_reduce_within_hosts_and_exchange_between_hosts(run):
    seen = run(_sample((512, 512, 256, 256), Collective.HOST_REDUCE_SCATTER))
    assert [forward[1] for forward, _ in seen] == [[11.0] * 64] * 2 + [[1100.0] * 32] * 2
    assert [len(backward[0]) for _, backward in seen] == [128, 128, 64, 64]
    seen = run(_sample((256, 256, 128, 128), Collective.HOST_ALL_TO_ALL))
    assert [forward[1] for forward, _ in seen] == [[1.0] * 32 + [100.0] * 16, [10.0] * 32 + [1000.0] * 16] * 2


def test_all_reduce_adds_up_whole_gradients(run):
    for forward, _ in run(_sample((40,) * 4, Collective.ALL_REDUCE)):
        assert forward == [[1111.0] * 10]


def test_input_dist_brings_every_device_the_indices_of_its_tables(run):
    sizes = (32, 0, 320, 64)
    for rank, (forward, _) in enumerate(run(_sample(sizes, Collective.INPUT))):
        got, counted = forward[1], forward[3]
        own = sizes[rank] // 8 // DEVICES
        assert counted == [own] * DEVICES
        assert got == [10**other for other in range(DEVICES) for _ in range(own)]


def test_collective_benchmark_measures_forward_and_backward():
    sizes = (4096,) * 4
    samples = [
        CommSample(sizes, (0.0, 1.0, 0.0, 2.0), BATCH, collective, 2 if collective in BETWEEN_HOSTS else None)
        for collective in Collective
    ]
    with CPU.comm_meter(DEVICES, print) as meter:
        outcomes = meter.measure(samples, list(range(len(samples))))
    assert [outcome.error for outcome in outcomes] == [None] * len(Collective)
    assert all(outcome.repeats.times_ms.shape == (2, 2, DEVICES) for outcome in outcomes)
    assert all((outcome.repeats.times_ms > 0).all() for outcome in outcomes)
