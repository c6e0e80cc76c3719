"""What is chosen for a round, and what is said of rounds."""

from itertools import islice

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, UserError
from neuroshard.hardware.plan_samples import kernel_calls
from neuroshard.plans.plan import assemble
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.refine.candidates import Candidates
from neuroshard.stages.pretrain.refine.propose import (
    PlanSamples,
    chosen_of,
    content_key,
    exchange_key,
    in_turn,
    most_doubtful,
    plans_for,
    random_plan,
)
from neuroshard.stages.pretrain.refine.rounds import Again, Foreseen, Round, Shares, noise_of, rounds_in, well_predicted
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.testing import toy_task
from neuroshard.testing.toys import LinearComm, random_ensemble, random_form_models
from neuroshard.words.collective import BETWEEN_HOSTS, Collective
from neuroshard.words.form import Call, Form

MODELS = CostModels(random_ensemble(), LinearComm(4), LinearComm(4), None)


def _candidates(*tasks):
    exchanges = CommAugmentation(max_dim=16, min_tables=2, max_tables=6)
    return Candidates(
        tasks, (Greedy("dim"),), ComputeAugmentation(max_dim=16, max_tables=3), exchanges, Shares(), lambda _: None
    )


@pytest.mark.parametrize("measurements", [1, 2, 3, 7, 50, 51, 200])
@pytest.mark.parametrize(("again", "exchanges"), [(0.0, 0.0), (0.1, 0.25), (0.5, 1.0), (0.5, 0.0), (0.3, 0.9)])
def test_shares_add_up(measurements, again, exchanges):
    of = Shares(again=again, exchanges=exchanges).of(measurements)
    assert sum(new + second for new, second in of.values()) == measurements
    assert all(0 <= second <= new for new, second in of.values())
    assert of["exchange"][0] == 0 or exchanges > 0


def test_sources_fill_up_what_others_cannot_give():
    sources = ("proposal", 4, ["a", "b"]), ("doubt", 2, list("cdefg"))
    random = iter(range(9))
    chosen = chosen_of(7, [], str, sources, random)
    assert [one.sample for one in chosen] == [*"abcdef", 0]
    assert [one.why for one in chosen] == ["proposal"] * 2 + ["doubt"] * 4 + ["random"]
    assert [one.sample for one in chosen_of(1, [], str, sources, random)] == ["a"]
    assert next(random) == 1


def _new(samples, measured, key):
    return [one.sample for one in chosen_of(9, measured, key, [("proposal", 9, samples)], iter(()))]


def test_what_was_measured_is_not_measured_again():
    tables = toy_task().tables
    one, other = ComputeSample(tables[:2], 256), ComputeSample(tables[1::-1], 256)
    wider = ComputeSample((tables[0].with_dim(128), tables[1]), 256)
    assert _new([one, other, wider], [], content_key) == [one, wider]
    assert _new([one], [other], content_key) == []
    starts = [CommSample((8, 8), (0.0, start), 4) for start in (1.0, 1.2, 2.0)]
    assert _new(starts, [], exchange_key) == [starts[0], starts[2]]


def _random_plans(task, models=MODELS, count=20):
    return [random_plan(task, models, np.random.default_rng(seed)) for seed in range(count)]


def test_random_plans_lie_in_every_form_that_models_know():
    assert {form for plan in _random_plans(toy_task()) for form in plan.forms} == {Form.COLUMNS}
    models = random_form_models()
    plans = _random_plans(toy_task(), models)
    assert {form for plan in plans for form in plan.forms} == set(Form)
    asked = PlanSamples.of(plans, Simulator(models))
    assert {call.call for call in asked.calls} == {Call(form) for form in Form}
    known = {*models.backward.collectives, Collective.INPUT} - {*BETWEEN_HOSTS}
    assert {one.collective for one in asked.exchanges} == known
    alone = _random_plans(toy_task(num_devices=1), models)
    assert {form for plan in alone for form in plan.forms} == {Form.COLUMNS}


def test_some_tables_are_cut():
    full = {table.name: table.dim for table in toy_task().tables}
    narrower = [t.dim < full[t.name] for plan in _random_plans(toy_task()) for its in plan.device_tables for t in its]
    assert 0.1 < np.mean(narrower) < 0.9


def test_contents_beyond_memory_are_left_out():
    calls = PlanSamples.of(_random_plans(toy_task(memory_bytes=100_000)), Simulator(MODELS)).calls
    assert calls
    assert all(call.size_bytes <= 100_000 for call in calls)


def test_what_was_measured_least_comes_first():
    table = toy_task().tables[0]
    columns, copies = (
        [ComputeSample((table,), batch, form) for batch in (1, 2)] for form in (Form.COLUMNS, Form.COPIES)
    )
    assert in_turn([*columns, *copies], []) == [columns[0], copies[0], columns[1], copies[1]]
    assert in_turn([*columns, *copies], columns) == [*copies, *columns]


def test_the_most_doubtful_come_first():
    contents = PlanSamples.of(_random_plans(toy_task()), Simulator(MODELS)).calls
    found = most_doubtful(contents, MODELS)
    assert sorted(map(id, found)) == sorted(map(id, contents))
    sets = loads_of(found)
    doubt = MODELS.compute.spread_ms(sets) / MODELS.compute.predict(sets)
    assert (np.diff(doubt) <= 0).all()
    assert doubt[0] > doubt[-1]


def test_proposals_are_what_plans_ask_of_hardware():
    task = toy_task()
    plan = Greedy("dim").find(task, Simulator(MODELS)).plan
    found = PlanSamples.of(plans_for([task], [Greedy("dim")], Simulator(MODELS)), Simulator(MODELS))
    assert found.calls == [call for calls in kernel_calls(plan) for call in calls]
    (exchange,) = found.exchanges
    assert exchange.dims == tuple(plan.device_dims)
    cost = Simulator(MODELS).cost(task, plan)
    ready = cost.compute + cost.backward
    assert exchange.start_ms == pytest.approx(ready - ready.min())
    assert assemble(task, [(p.shard.table, p.shard.dim, p.device) for p in plan.placements]) == plan


def test_rounds_repeat_and_differ_by_seed():
    candidates = _candidates(toy_task(), toy_task(seed=0, count=8))
    rounds = [candidates.of_round(30, MODELS, (), (), np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert rounds[0] == rounds[1]
    assert rounds[0] != rounds[2]
    calls, exchanges = rounds[0].calls, rounds[0].exchanges
    whys = [one.why for one in calls]
    assert whys == sorted(whys, key=["proposal", "doubt", "random"].index)
    assert {one.why for one in exchanges} == {"proposal", "random"}
    again = candidates.of_round(30, MODELS, [one.sample for one in calls], (), np.random.default_rng(0))
    before = {content_key(one.sample) for one in calls}
    assert all(content_key(one.sample) not in before for one in again.calls if one.why != "random")


def test_tables_of_one_name_are_one():
    assert len(_candidates(toy_task(), toy_task(count=8)).tables) == 12
    with pytest.raises(UserError, match="'toy0' is another one in another task"):
        _candidates(toy_task(), toy_task(seed=1)).check(MODELS)


def _round(number, errors, noise, part="compute"):
    samples = [Foreseen(part, i, "proposal", 1 + error, 1.0) for i, error in enumerate(errors)]
    again = [Again(part, 100 + i, 0, 1.0, 1 + one) for i, one in enumerate(noise)]
    return Round(number, 10, tuple(samples), tuple(again))


def test_the_end_is_near_the_noise():
    close = _round(0, [0.1, -0.1, 0.1, 0.1], [0.1] * 4)
    assert noise_of([close], "compute") == pytest.approx([0.1 / 1.05] * 4)
    assert well_predicted([close], 1.5)
    assert not well_predicted([close], 1.0)
    assert not well_predicted([], 1.5)
    assert not well_predicted([_round(0, [0.1] * 3, [0.1] * 4)], 1.5)  # too few proposals
    assert not well_predicted([_round(0, [0.1] * 4, [0.1] * 3)], 1.5)  # too few second measurements
    assert well_predicted([_round(0, [9.0] * 4, [0.1] * 3), _round(1, [0.1] * 4, [0.1])], 1.5)
    assert not well_predicted([close, _round(1, [0.3] * 4, [0.1] * 4)], 1.5)
    far = _round(0, [0.5] * 4, [0.1] * 4, "exchange")
    both = Round(0, 10, close.samples + far.samples, close.again + far.again)
    assert not well_predicted([both], 1.5)


def test_rounds_are_read_as_they_were_written(tmp_path):
    journal = rounds_in(tmp_path)
    assert journal.read() == ()
    rounds = [_round(0, [0.1], [0.2]), _round(1, [0.3], [])]
    for one in rounds:
        journal.keep(one.number, one)
    assert journal.read() == tuple(rounds)
    (tmp_path / "rounds" / "round-0001.json").write_text('{"format": "neuroshard-round-2", "number": -1}')
    with pytest.raises(UserError, match=r"round-0001.json"):
        journal.read()


def test_random_samples_never_end():
    candidates = _candidates(toy_task())
    calls = list(islice(candidates._random_calls(np.random.default_rng(0)), 5))
    assert all(len(call.tables) <= 3 and call.batch_size == 256 for call in calls)
