"""Models fitted further to a few samples of another machine."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels
from neuroshard.cost.loads import LoadSets
from neuroshard.measure.store.sample_loads import loads_of, traffic_of
from neuroshard.measure.store.samples import CommSample, ComputeSample
from neuroshard.models.comm_models import ExchangeModels
from neuroshard.models.trust import Margin, Margins, Range, Ranges
from neuroshard.stages.pretrain.fit import Fit
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble, Regression
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.paper import PaperComm, PaperCompute
from neuroshard.stages.pretrain.pieces import at_speed, nearest, pieces_of
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.testing import random_models, toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.form import Call, Form
from neuroshard.words.model_choice import ModelChoice
from tests.kit.made_up import measured
from tests.kit.messages import refused
from tests.kit.random_models import (
    random_by_widest,
    random_ensemble,
    random_form_models,
    random_regression,
    random_set_comm,
)
from tests.kit.searches import H100

TABLES = toy_tables(40)
BRIEF = TrainingSettings(20, 16, 1e-3, "cosine", "absolute_relative", 20)
MARGINS = Margins(Margin(0.1, 2.0), Margin(0.2, 2.0), Margin(0.3, 2.0))


def _start():
    return CostModels(
        random_ensemble(), random_set_comm(0), random_set_comm(1), None, margins=MARGINS, choice=ModelChoice("toys")
    )


def _calls(model, count, bend=lambda ms: ms, form=Form.COLUMN_WISE):
    rng, sizes = np.random.default_rng(0), [1 + n % 6 for n in range(count)]
    tables = [tuple(TABLES[i] for i in rng.permutation(40)[:size]) for size in sizes]
    samples = [ComputeSample(some, 256, form) for some in tables]
    times = model.predict(loads_of(samples))
    return [_measured(sample, n, bend(ms)) for n, (sample, ms) in enumerate(zip(samples, times, strict=True))]


def _exchanges(models, count, factor=1.0):
    rng = np.random.default_rng(1)
    found = []
    for n in range(count):
        starts = rng.uniform(0, 5, size=3)
        sample = CommSample.of_columns((rng.integers(1, 200, size=3) * 4).tolist(), starts.tolist(), 256)
        traffic, wait = traffic_of([sample]), starts.max() - starts
        forward = wait + models.forward.transfer_ms(traffic, wait[None])[0] * factor
        backward = models.backward.transfer_ms(traffic, 0 * wait[None])[0] * factor
        found.append(_measured(sample, n, [forward, backward]))
    return found


def _measured(sample, number, times_ms):
    return measured(sample, number, times_ms, "valid" if number % 5 == 4 else "train")


def _fit(training=BRIEF, **settings):
    fitters = Ensemble(Additive(training_further=training), 2), SetCommunication(training_further=training)
    return Fit(*fitters, **settings)


def _further(start, calls, exchanges, fit=None):
    seen = Measured.split(calls, exchanges)
    return start.update(seen, fit or _fit())


LONGER = TrainingSettings(80, 16, 1e-2, "cosine", "absolute_relative", 80)
SPEED_ONLY = 1000  # calls: however many samples there are, they tell the speed and nothing else


def _without_leads(models):
    flat = [replace(model, lead=np.zeros_like(model.lead)) for model in (models.forward, models.backward)]
    return replace(models, forward=flat[0], backward=flat[1])


def _relative(model, other, calls):
    sets = loads_of([m.sample for m in calls])
    return other.predict(sets) / model.predict(sets)


def test_fitting_further_to_eight_calls_changes_only_the_speed():
    start = _start()
    fitted = _further(start, _calls(start.compute, 8, lambda ms: 3 * ms), [])
    calls = _calls(start.compute, 30)
    assert np.allclose(_relative(start.compute, fitted.compute, calls), 3, rtol=1e-4)
    sets = loads_of([m.sample for m in calls])
    assert np.allclose(fitted.compute.spread_ms(sets), 3 * start.compute.spread_ms(sets), rtol=1e-4)
    assert fitted.margins == MARGINS
    assert fitted.forward is start.forward


def test_fitting_further_scales_transfers_without_waiting_time():
    start = _without_leads(_start())
    fitted = _further(start, [], _exchanges(start, 6, factor=0.5))
    assert fitted.forward.scale_ms == pytest.approx(start.forward.scale_ms / 2, rel=1e-4)
    assert fitted.backward.scale_ms == pytest.approx(start.backward.scale_ms / 2, rel=1e-4)
    assert fitted.compute is start.compute


def test_fitting_further_to_many_calls_learns_the_shape_of_costs():
    start = _start()
    bent = lambda ms: 2 * ms**1.2  # noqa: E731
    calls = _calls(start.compute, 150, bent)
    test = calls[100:]
    true = np.array([m.repeats.times_ms[0] for m in test])
    errors = []
    for least in (SPEED_ONLY, 16):
        fitted = _further(start, calls[:100], [], _fit(LONGER, min_finetune_samples=least))
        errors.append(np.abs(fitted.compute.predict(loads_of([m.sample for m in test])) / true - 1).mean())
    assert errors[1] < 0.7 * errors[0]


def test_fit_trains_exchanges_even_if_calls_are_too_few_to_train(monkeypatch):
    start, fitted = _start(), []
    monkeypatch.setattr(Fit, "_fitted", lambda _, part, known: fitted.append(part.name) or known)
    seen = Measured.split(_calls(start.compute, 50), _exchanges(start, 20))
    for least, named in ((SPEED_ONLY, ["forward", "backward"]), (8, ["compute", "forward", "backward"])):
        fitted.clear()
        _fit(min_finetune_samples=least)(seen, start)
        assert fitted == named


def test_validation_samples_are_never_trained_on_and_set_the_margins():
    start = _start()
    calls = _calls(start.compute, 50)
    wrong = [replace(m, repeats=m.repeats.times(10.0 if m.split == "valid" else 1.0)) for m in calls]
    fitted = _further(start, wrong, [], _fit(min_finetune_samples=SPEED_ONLY))
    assert np.allclose(_relative(start.compute, fitted.compute, calls), 1, rtol=1e-4)
    valid = [m for m in wrong if m.split == "valid"]
    sets = loads_of([m.sample for m in valid])
    predicted = fitted.compute.predict(sets)
    margin = fitted.margins.compute(predicted, fitted.compute.spread_ms(sets))
    assert (np.abs(predicted - [m.repeats.times_ms[0] for m in valid]) <= margin).mean() >= 0.9
    assert (fitted.margins.forward, fitted.margins.backward) == (MARGINS.forward, MARGINS.backward)


def test_fitting_further_without_exchanges_widens_ranges_of_calls_only():
    calls = _calls(random_ensemble(), 10)
    halved = [
        replace(m, sample=replace(m.sample, tables=tuple(replace(t, bytes_per_element=2) for t in m.sample.tables)))
        for m in calls
    ]
    start = replace(_start(), ranges=Ranges.of([m.sample for m in calls], [m.sample for m in _exchanges(_start(), 5)]))
    found = _further(start, halved, [])
    assert found.ranges.bytes_per_element == Range("bytes per element", 2, 4)
    assert found.ranges.devices == start.ranges.devices


def test_a_worse_fit_is_not_kept():
    start = _start()
    wild = TrainingSettings(2, 16, 1.0, "constant", "absolute_relative", 2)
    fitted = _further(start, _calls(start.compute, 50), _exchanges(start, 30), _fit(wild))
    calls = _calls(start.compute, 20)
    assert np.allclose(_relative(start.compute, fitted.compute, calls), 1, rtol=1e-3)
    assert fitted.forward.scale_ms == pytest.approx(start.forward.scale_ms, rel=1e-3)
    assert np.array_equal(fitted.forward.network.weights[0], start.forward.network.weights[0])


def test_other_sharding_types_and_collectives_are_scaled_like_column_wise():
    start = random_form_models()
    columns = start.compute.of_call(Call(Form.COLUMN_WISE))
    pooled = CostModels(columns, *(m.exchanges[Collective.ALL_TO_ALL] for m in (start.forward, start.backward)), None)
    pooled = _without_leads(pooled)
    both = [
        ExchangeModels({**m.exchanges, Collective.ALL_TO_ALL: one}, m.serves)
        for m, one in ((start.forward, pooled.forward), (start.backward, pooled.backward))
    ]
    start = replace(start, forward=both[0], backward=both[1])
    calls, exchanges = _calls(columns, 8, lambda ms: 2 * ms), _exchanges(pooled, 8, factor=4.0)
    fitted = _further(start, calls, exchanges)
    assert fitted.forms == start.forms
    one = LoadSets.of([TABLES[:5]], 256)
    for form in Form:
        assert fitted.compute.of_call(Call(form)).predict(one) == pytest.approx(
            2 * start.compute.of_call(Call(form)).predict(one), rel=1e-4
        )
    for collective in start.backward.collectives:
        ratio = fitted.backward.exchanges[collective].scale_ms / start.backward.exchanges[collective].scale_ms
        assert ratio == pytest.approx(4, rel=1e-3)
    assert fitted.input.scale_ms / start.input.scale_ms == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    "model", [random_ensemble(), random_ensemble().members[0], random_by_widest(), random_regression()]
)
def test_at_speed_scales_every_kind_of_compute_model(model):
    one, start = LoadSets.of([TABLES[:5]], 256), replace(_start(), compute=model)
    parts = Measured.split(_calls(model, 5, lambda ms: 3 * ms), []).parts
    assert at_speed(pieces_of(start), parts)["compute"].predict(one) == pytest.approx(3 * model.predict(one), rel=1e-4)


def test_further_fitting_of_the_same_samples_gives_the_same_models():
    start = _start()
    calls, exchanges = _calls(start.compute, 40, lambda ms: ms**1.1), _exchanges(start, 30, 2.0)
    one, other = (_further(start, calls, exchanges) for _ in range(2))
    sets = loads_of([m.sample for m in calls])
    assert np.array_equal(one.compute.predict(sets), other.compute.predict(sets))
    assert one.forward.share.tolist() == other.forward.share.tolist()


def test_measured_parts_have_their_own_speed_from_four_samples_on():
    """A part with at least four samples gets its own speed; other parts are scaled like column-wise calls."""
    start = random_form_models()
    copies, one = start.compute.of_call(Call(Form.DATA_PARALLEL)), LoadSets.of([TABLES[:5]], 256)
    calls = _calls(start.compute, 8, lambda ms: 2 * ms)
    copied = _calls(start.compute, 8, lambda ms: 5 * ms, Form.DATA_PARALLEL)
    for some, factor in ((copied, 5), (copied[:3], 2)):
        fitted = _further(start, [*calls, *some], [], _fit(min_finetune_samples=SPEED_ONLY))
        assert fitted.compute.of_call(Call(Form.DATA_PARALLEL)).predict(one) == pytest.approx(
            factor * copies.predict(one), rel=1e-4
        )
        assert fitted.compute.calls == start.compute.calls


def test_nearest_chooses_the_model_with_the_least_error_at_any_speed():
    first, second = (replace(_start(), compute=random_ensemble(seed)) for seed in (0, 1))
    parts = Measured.split(_calls(second.compute, 6, lambda ms: 7 * ms), []).parts
    assert nearest([first, second], parts) is second
    assert nearest([first, second], ()) is first
    assert nearest([], parts) is None


REGRESSION = replace(_start(), compute=random_regression())
PAPER = Fit(PaperCompute(), PaperComm())
HALF_PAPER = replace(random_models(), compute=random_ensemble())


@pytest.mark.parametrize(
    ("fit", "start", "part", "name"),
    [
        (_fit(), H100.models, "compute", "roofline:h100"),
        (_fit(), replace(random_models(), choice=ModelChoice("paper")), "compute", "paper"),
        (_fit(), HALF_PAPER, "forward", "init"),
        (_fit(), REGRESSION, "compute", "init"),
        (Fit(Regression(), PaperComm()), REGRESSION, "compute", "init"),
        (PAPER, _start(), "compute", "toys"),
    ],
)
def test_further_fitting_refuses_models_that_cannot_be_fitted_further(fit, start, part, name):
    """The error names the first part whose model does not match its setting."""
    with refused("init-model-kind") as caught:
        fit.check(start)
    message, setting = caught.value.message, "compute_model" if part == "compute" else "comm_model"
    assert {part, name} <= set(message.what.split())
    assert setting in message.limit.split()
    assert setting in message.remedy.split()
    _fit().check(CostModels.load("cpu"))
    _fit().check(random_form_models())
