"""Datasheets corrected by traces: of CPU runs that PyTorch's profiler writes here, and a GPU's, written by hand."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

from neuroshard import CostModels, Simulator, Task, Topology, UserError
from neuroshard.app.listing import show_models
from neuroshard.models.calibration import Calibration, with_exchanges, with_kernels
from neuroshard.models.published_points import ExchangePoint, KernelPoint
from neuroshard.stages.pretrain.calibrate import Calibrate
from neuroshard.stages.pretrain.traces import read_traces
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.tables.sources.criteo import criteo
from neuroshard.words.placement import ON_DEVICE, Home
from tests.kit.traces import gpu_events

H100 = CostModels.load("roofline:h100")


def _kernel(dim=128, ms=1.0, backward=False, lookups=1_000_000.0, home=ON_DEVICE):
    unique, outputs = lookups / 3, lookups / 4
    return KernelPoint("trace", backward, home, "sgd", 4, 100_000, dim, lookups, unique, True, outputs, ms, "mine")


@pytest.mark.parametrize("backward", [False, True])
def test_measured_kernels_are_met_and_widths_between_them_lie_between(backward):
    seen = [
        _kernel(dim, times * H100.compute.point_ms(_kernel(dim, backward=backward)), backward)
        for dim, times in ((16, 2), (256, 4))
    ]
    corrected = with_kernels(H100.compute, seen)
    for one in seen:
        assert corrected.point_ms(one) == pytest.approx(one.ms, rel=1e-6)
    between, other = _kernel(64, backward=backward), _kernel(64, backward=not backward)
    assert 2 < corrected.point_ms(between) / H100.compute.point_ms(between) < 4.2
    assert corrected.point_ms(other) == H100.compute.point_ms(other)


def test_calls_that_only_took_their_launch_tell_nothing():
    assert with_kernels(H100.compute, [_kernel(ms=0.02)]).measured == H100.compute.measured


def test_the_link_to_the_host_takes_one_factor():
    host = Home("host")
    seen = _kernel(home=host, ms=2 * H100.compute.point_ms(_kernel(home=host)))
    assert with_kernels(H100.compute, [seen]).host.link_gb_per_s == pytest.approx(H100.compute.host.link_gb_per_s / 2)


def test_collectives_are_met_and_others_take_the_typical_factor():
    def seen(name, size, times):
        point = ExchangePoint(name, 8, size, 1.0, "mine")
        return replace(point, ms=times * H100.forward.point_ms(point))

    corrected = with_exchanges(H100.forward, [seen("alltoall", 1 << 20, 2), seen("alltoall", 1 << 26, 3)])
    for name, size, times in (
        ("alltoall", 1 << 20, 2),
        ("alltoall", 1 << 26, 3),
        ("alltoall", 512, 2),
        ("all_reduce", 1 << 29, 3),
    ):
        point = seen(name, size, times)
        assert corrected.point_ms(point) == pytest.approx(point.ms, rel=0.02)


def test_collectives_between_hosts_correct_the_network():
    point = ExchangePoint("alltoall", 64, float(1 << 28), 1.0, "mine")
    slow = with_exchanges(H100.forward, [replace(point, ms=2 * H100.forward.point_ms(point))])
    assert slow.point_ms(point) == pytest.approx(2 * H100.forward.point_ms(point), rel=0.05)


def _trained(path, dims, batch, optimizer=EmbOptimType.EXACT_SGD):
    """A trace of training steps of tables with so many columns."""
    specs = [(1000, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for dim in dims]
    tables = SplitTableBatchedEmbeddingBagsCodegen(specs, optimizer=optimizer)
    lookups = torch.randint(0, 1000, (len(dims) * batch * 3,))
    offsets = torch.arange(0, len(lookups) + 1, 3)
    tables(lookups, offsets).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(2):
            tables(lookups, offsets).sum().backward()
    seen.export_chrome_trace(str(path))


def test_traces_of_cpu_runs_hold_every_call(tmp_path):
    _trained(tmp_path / "a.json", [16, 32], 64)
    _trained(tmp_path / "b.json.gz", [64], 128, EmbOptimType.EXACT_ROWWISE_ADAGRAD)
    found = read_traces([tmp_path / "a.json", tmp_path / "b.json.gz"])
    shapes = {
        (one.backward, one.optimizer, one.tables, one.rows, one.dim, one.lookups, one.outputs) for one in found.kernels
    }
    assert shapes == {
        (False, "sgd", 2, 1000, 24, 384, 128),
        (True, "sgd", 2, 1000, 24, 384, 128),
        (False, "sgd", 1, 1000, 64, 384, 128),
        (True, "rowwise_adagrad", 1, 1000, 64, 384, 128),
    }
    assert all(one.ms > 0 and one.home == Home() for one in found.kernels)
    assert not found.exchanges
    assert not found.skipped


def _write(path, content):
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("weights", "home"),
    [
        ([[0], [640_000], [0], [0]], Home()),
        ([[0], [0], [640_000], [0, 0]], Home("host")),
        ([[0], [0], [640_000], [5_000, 32]], Home("cached", 0.25)),
    ],
)
def test_calls_on_a_gpu_take_as_long_as_their_kernels(tmp_path, weights, home):
    found = read_traces([_write(tmp_path / "t.json", {"traceEvents": gpu_events(weights)})])
    forward, backward = found.kernels
    assert (forward.ms, backward.ms) == (0.5, 1.5)
    assert (forward.optimizer, backward.optimizer) == ("sgd", "adam")
    assert {(one.home, one.tables, one.dim, one.rows, one.lookups, one.outputs) for one in found.kernels} == {
        (home, 2, 32, 10_000, 600, 200)
    }


def test_tables_in_two_memories_in_one_call_are_left_out(tmp_path):
    found = read_traces([_write(tmp_path / "t.json", {"traceEvents": gpu_events([[0], [64], [64], [0]])})])
    assert not found.kernels
    assert found.skipped == {"tables in device and host memory in one call": 2}


def _collective(dur, sent=4096, name="all_to_allv", received=1024):
    its = {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "Group size": 8, "dtype": "Half"}
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 1, "dur": dur, "args": its}


def test_collectives_are_timed_where_nobody_was_waited_for(tmp_path):
    slow, fast = ([_collective(dur)] for dur in (900, 20))
    paths = [_write(tmp_path / f"{i}.json", {"traceEvents": slow if i else fast}) for i in range(8)]
    (point,) = read_traces(paths).exchanges
    assert (point.collective, point.devices, point.size_bytes) == ("alltoall", 8, 8192)
    assert 0.02 <= point.ms < 0.9


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("_reduce_scatter_base", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("allreduce_coalesced", "all_reduce"),
    ],
)
def test_collectives_by_their_names(tmp_path, name, ours):
    trace = {"traceEvents": [_collective(20, name=name), _collective(5, name="broadcast")]}
    (point,) = read_traces([_write(tmp_path / "t.json", trace)]).exchanges
    assert point.collective == ours


def test_a_calibrated_datasheet_is_a_model_like_others(tmp_path, capsys):
    more = [_collective(900, 1 << 24), _collective(5000, 1 << 28)]
    trace = _write(tmp_path / "t.json", {"traceEvents": [*gpu_events([[0], [640_000], [0], [0]]), *more]})
    result = Calibrate((str(trace),), str(tmp_path / "mine"), "roofline:h100").run()
    result.show(Console(width=200))
    shown = capsys.readouterr().out
    assert "alltoall, 8 devices" in shown
    assert f"model={tmp_path / 'mine'}" in shown
    assert Calibration.load(tmp_path / "mine") == result.calibration
    show_models([str(tmp_path / "mine")], Console(width=200))
    assert '"sheet": "h100"' in capsys.readouterr().out
    models = CostModels.load(tmp_path / "mine")
    assert models.compute.optimizer == "adam"
    assert models.name == str(tmp_path / "mine")
    task = Task(criteo(4096), Topology(8, 64 << 30), 4096)
    plan = Greedy("size").find(task, Simulator(models)).plan
    before = Simulator(CostModels.load("roofline:h100+adam")).cost(task, plan)
    after = Simulator(models).cost(task, plan)
    assert after.total_ms != before.total_ms
    assert np.isfinite(after.total_ms)


def test_what_is_no_trace_and_what_holds_nothing_are_said(tmp_path):
    with pytest.raises(UserError, match=r"t\.json is no trace of PyTorch's profiler"):
        read_traces([_write(tmp_path / "t.json", [1])])
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"{}")[:-5])
    with pytest.raises(UserError, match=r"t\.gz is no trace"):
        read_traces([tmp_path / "t.gz"])
    empty = _write(tmp_path / "e.json", {"traceEvents": []})
    with pytest.raises(UserError, match="record_shapes=True"):
        Calibrate((str(empty),), str(tmp_path / "mine"), "roofline:h100").run()
    with pytest.raises(UserError, match="model=cpu is no datasheet"):
        Calibrate((str(empty),), str(tmp_path / "mine"), "cpu").run()
