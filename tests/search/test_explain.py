"""Explanations against numbers worked out by hand."""

from dataclasses import replace

import pytest

from neuroshard.errors import UserError
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.plan import assemble
from neuroshard.search.explain import explain, moves
from neuroshard.search.explain_run import Explain, lines
from neuroshard.simulator import Simulator
from neuroshard.tables import Table
from neuroshard.task import Task, Topology
from neuroshard.testing import OpaqueCompute, linear_models, random_models

ONCE = (1.0, *(0.0,) * 16)
PER_TABLE, PER_COLUMN, PER_SENT = 0.05, 0.01, 0.002


def _task(dims, memory_bytes=1 << 30, num_devices=2):
    tables = tuple(Table(f"t{i}", 100, dim, 1.0, ONCE) for i, dim in enumerate(dims))
    return Task(tables, Topology(num_devices, memory_bytes), 256)


SIMULATOR = Simulator(linear_models(2))


def test_the_slowest_device_and_its_tables():
    found = explain(assemble(_task([64, 32, 8]), [(0, 64, 1), (1, 32, 1), (2, 8, 0)]), SIMULATOR)
    assert found.bottleneck == 1
    assert [(share.table, share.device) for share in found.shards] == [("t0", 1), ("t1", 1), ("t2", 0)]
    assert found.shards[0].saved_ms == pytest.approx(PER_TABLE + PER_COLUMN * 64, rel=1e-5)
    assert found.shards[0].alone_ms == pytest.approx(found.shards[0].saved_ms, rel=1e-5)
    compute = [PER_TABLE + PER_COLUMN * 8, 2 * PER_TABLE + PER_COLUMN * 96]
    assert (found.slowest, found.widest) == (1, 1)
    assert found.compute_excess_ms == pytest.approx((compute[1] - compute[0]) / 2, rel=1e-5)
    assert found.exchange_excess_ms == pytest.approx(2 * PER_SENT * (96 - 52), rel=1e-4)
    assert found.balanced_ms == pytest.approx(sum(compute) / 2 + 2 * PER_SENT * 52, rel=1e-5)


def test_the_bottleneck_may_be_the_exchange():
    """The first device computes a little longer, the second has nearly all columns, which cost much more."""
    tables = (Table("long", 100, 4, 40.0, ONCE), Table("wide", 100, 128, 1.0, ONCE))
    task = Task(tables, Topology(2, 1 << 30), 256)
    models = linear_models(2)
    dear = replace(models.forward, per_column_ms=0.05)
    simulator = Simulator(replace(models, forward=dear, backward=dear))
    found = explain(assemble(task, [(0, 4, 0), (1, 128, 1)]), simulator)
    assert (found.slowest, found.widest, found.bottleneck) == (0, 1, 1)


def test_what_a_split_bought():
    split = assemble(_task([64, 8]), [(0, 32, 0), (0, 32, 1), (1, 8, 0)])
    (worth,) = explain(split, SIMULATOR).splits
    assert (worth.table, worth.dims) == ("t0", (32, 32))
    assert worth.whole_ms == pytest.approx(PER_TABLE + PER_COLUMN * 64 + 2 * PER_SENT * 64, rel=1e-5)  # on device 1
    tight = assemble(_task([64, 8], memory_bytes=100 * 48 * 4), [(0, 32, 0), (0, 32, 1), (1, 8, 0)])
    (worth,) = explain(tight, SIMULATOR).splits
    assert worth.whole_ms != worth.whole_ms
    assert "whole it fits on none of its devices" in "\n".join(lines(explain(tight, SIMULATOR)))


def test_the_next_best_move_is_made():
    bad = assemble(_task([32, 32]), [(0, 32, 0), (1, 32, 0)])
    move = explain(bad, SIMULATOR).next_move
    assert move.total_ms == pytest.approx(PER_TABLE + PER_COLUMN * 32 + 2 * PER_SENT * 32, rel=1e-4)
    assert len(move.moves) == 1
    assert "32 on 0 -> 32 on 1" in move.moves[0]
    good = assemble(_task([32, 32]), [(0, 32, 0), (1, 32, 1)])
    assert explain(good, SIMULATOR).next_move is None


def test_plans_that_break_their_task_are_explained_too():
    found = explain(assemble(_task([32, 32], memory_bytes=1000), [(0, 32, 0), (1, 32, 0)]), SIMULATOR)
    assert found.next_move is None
    assert "the plan breaks its task: device 0 needs" in found.warnings[0]
    assert all(isinstance(answer, str) for answer in found.heuristics.values())


def test_models_of_any_form_explain():
    opaque = Simulator(replace(linear_models(2), compute=OpaqueCompute()))
    found = explain(assemble(_task([32, 32]), [(0, 32, 0), (1, 32, 1)]), opaque)
    assert found.next_move is None
    assert len(found.shards) == 2


def test_moves_between_plans():
    task = _task([32, 16, 8])
    before = assemble(task, [(0, 32, 0), (1, 16, 1), (2, 8, 1)])
    after = assemble(task, [(0, 20, 0), (0, 12, 1), (1, 16, 1), (2, 8, 0)])
    assert list(moves(before, after)) == [
        "t0: 32 on 0 -> 20 on 0, 12 on 1 (0.00458 MiB)",
        "t2: 8 on 1 -> 8 on 0 (0.00305 MiB)",
    ]
    assert list(moves(after, after)) == []


@pytest.fixture
def files(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())
    task = _task([32, 16, 8])
    for name, places in (("one", [(0, 32, 0), (1, 16, 1), (2, 8, 1)]), ("two", [(0, 32, 1), (1, 16, 0), (2, 8, 0)])):
        assemble(task, places).save(tmp_path / f"{name}.json")
    assemble(_task([4, 4]), [(0, 4, 0), (1, 4, 1)]).save(tmp_path / "other.json")
    return tmp_path


def test_one_plan_as_a_page(files):
    result = Explain(str(files / "one.json"), str(files / "models"), str(files / "page.html")).run()
    text = (files / "page.html").read_text()
    assert "data:image/png;base64," in text
    assert "<td>t2</td><td>1</td><td>8</td>" in text
    assert len(result.found) == 1


def test_two_plans_compared(files, capsys):
    from rich.console import Console

    paths = [str(files / "one.json"), str(files / "two.json")]
    Explain(paths, str(files / "models"), None).run().show(Console(width=200))
    shown = capsys.readouterr().out
    assert "from the first to the second" in shown
    assert "3 of 3 tables lie elsewhere" in shown


def test_mistakes_are_named(files):
    with pytest.raises(UserError, match="plans of different tables"):
        Explain([str(files / "one.json"), str(files / "other.json")], str(files / "models"), None).run()
    with pytest.raises(UserError, match="3 were given"):
        Explain([str(files / "one.json")] * 3, str(files / "models"), None).run()
    with pytest.raises(UserError, match="no plan at"):
        Explain("nowhere.json", str(files / "models"), None).run()
