"""Framework overhead fitted to local work with known coefficients."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import Simulator
from neuroshard.measure.store.samples import LOCAL_PHASES, Repeats
from neuroshard.measure.store.splits import split_tables
from neuroshard.models import load_bundle
from neuroshard.models.parts import CONVERTED, Framework, counts_of_sets, terms_of
from neuroshard.models.precision import converted_mb
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.stages.pretrain.fit_additive import Regression
from neuroshard.stages.pretrain.fit_framework import fit_framework, predicted_framework
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.testing import linear_models
from neuroshard.words.collective import Precision
from tests.kit.made_up import BRIEF_SETS, collected, measured
from tests.kit.messages import refused
from tests.kit.random_models import random_form_models

TRUTH = Framework(
    0.7,
    input={"calls except data-parallel": 0.4, "own lookups": 3e-6, "mean row-wise lookups": 2e-5},
    kernels={"calls": 0.05, "own million data-parallel weights": 0.8, "own row-wise lookups": 2e-6},
    outputs={
        "step": 0.1,
        "calls": 0.1,
        "mean MB of column-wise outputs": 0.4,
        "MB of outputs of several sharding types": 0.2,
        "MB of column-wise outputs if some are cut": 0.3,
    },
)
HOST = {"step": 4.0, "calls": 1.5, "own data-parallel tables": 0.1}
CONVERTED_MS = 0.3  # for a MB in each direction
CONVERTING = replace(TRUTH, outputs=TRUTH.outputs | {CONVERTED: CONVERTED_MS})
MODELS = random_form_models()
TABLES = tuple(dlrm_like(num_tables=80, batch_size=1024))
SPLIT = split_tables(TABLES, 0)
AUGMENTATION = PlanAugmentation(num_devices=(2, 4, 8), max_tables=20)
IN_BOTH = replace(AUGMENTATION, precisions=("fp32", "fp16"))


def _called(models, sample):
    loads, devices = sample.plan.device_loads, sample.plan.task.topology.num_devices
    return Simulator(models).kernel_times(loads, devices)._replace(counts=counts_of_sets(loads)[None])


def _measured(count, first=0, models=MODELS, drawn=AUGMENTATION):
    """Return measurements of ranks of random plans, with true coefficients and a dense network."""
    found = []
    for number in range(first, first + count):
        sample, split = drawn.draw(SPLIT, np.random.default_rng(number))
        times = _called(models, sample)
        kernels_ms = TRUTH.factor * times.ms[0, sample.rank].sum()
        took = [float(terms_of(times, part.name)[0, sample.rank] @ part.slopes) for part in TRUTH.parts]
        if sample.precision is not Precision.FP32:
            took[2] += 2 * CONVERTED_MS * converted_mb(sample.plan.traffic)[0, sample.rank]
        by_phase = {
            "input": took[0],
            "data-parallel optimizer": took[1],
            "outputs": took[2] / 2,
            "gradients": took[2] / 2,
        }
        by_phase |= {"lookups": kernels_ms / 3, "backward": kernels_ms * 2 / 3, "dense": 100.0}
        times_ms = [by_phase.get(phase, 0.0) for phase in LOCAL_PHASES]
        found.append(measured(sample, number, times_ms, split, repeats=2))
    return found


def test_fit_recovers_true_coefficients_without_noise():
    learned = replace(MODELS, framework=fit_framework(MODELS, _measured(150)))
    assert learned.framework.factor == pytest.approx(TRUTH.factor, rel=1e-3)
    for name, predicted in predicted_framework(learned, _measured(30, first=1000)).items():
        np.testing.assert_allclose(predicted.predicted_ms, predicted.measured_ms, rtol=0.02, err_msg=name)


def test_noise_is_not_fitted_to_the_kernels_part_of_framework_overhead():
    """Noise may be fitted by terms of other parts, but not of kernels, which decide gains of data-parallel tables."""
    rng = np.random.default_rng(0)
    noisy = [replace(m, repeats=m.repeats.times(float(np.exp(rng.normal(0, 0.3))))) for m in _measured(60)]
    fitted = fit_framework(MODELS, noisy)
    uncertain = {
        "calls except data-parallel",
        "mean lookups",
        "mean MB of column-wise outputs",
        "own MB of column-wise outputs",
    }
    assert fitted.outputs.keys() & uncertain
    assert not fitted.kernels.keys() & uncertain


def _missed(its):
    """Return the relative error of the fitted framework overhead."""
    return np.abs(its.predicted_ms - its.measured_ms).sum() / its.measured_ms.sum()


def test_framework_fit_ignores_measurements_ten_times_too_long():
    """All other measurements agree on the coefficients; a fit of squared errors would follow the outliers."""
    some = [replace(m, repeats=m.repeats.times(10.0)) if n % 50 == 0 else m for n, m in enumerate(_measured(60))]
    learned = replace(MODELS, framework=fit_framework(MODELS, some))
    assert learned.framework.factor == pytest.approx(TRUTH.factor, rel=1e-3)
    for name, predicted in predicted_framework(learned, _measured(40, first=1000)).items():
        assert _missed(predicted) < 1e-3, name


def test_few_samples_refine_the_coefficients_of_another_machine():
    """The other machine has 1.5 times the true coefficients; with 20% noise, a fit from nothing is worse."""
    rng, start = np.random.default_rng(0), TRUTH.scaled(1.5)
    few = [replace(m, repeats=m.repeats.times(float(np.exp(rng.normal(0, 0.2))))) for m in _measured(20)]
    drawn, alone = (replace(MODELS, framework=fit_framework(MODELS, few, begun)) for begun in (start, None))
    fresh = _measured(40, first=1000)
    errors = [
        [_missed(its) for its in predicted_framework(models, fresh).values()]
        for models in (drawn, alone, replace(MODELS, framework=start))
    ]
    assert np.mean(errors[0]) < 0.8 * np.mean(errors[1])
    assert np.mean(errors[0]) < 0.5 * np.mean(errors[2])


@pytest.mark.parametrize("start", [None, TRUTH.scaled(1.5), CONVERTING.scaled(1.5)])
def test_conversion_time_is_learned_from_samples_with_and_without_conversion(start):
    rng = np.random.default_rng(0)
    some = _measured(80, drawn=IN_BOTH)
    noisy = [replace(m, repeats=m.repeats.times(float(np.exp(rng.normal(0, 0.02))))) for m in some]
    learned, fresh = fit_framework(MODELS, noisy, start), _measured(40, first=1000, drawn=IN_BOTH)
    assert {m.sample.precision for m in fresh} == {Precision.FP32, Precision.FP16}
    assert learned.outputs[CONVERTED] == pytest.approx(CONVERTED_MS, rel=0.1)
    assert CONVERTED not in learned.input | learned.kernels
    assert _missed(predicted_framework(replace(MODELS, framework=learned), fresh)["framework.outputs"]) < 0.05


def test_conversion_time_is_taken_from_another_machine_if_unmeasured():
    some = _measured(20)
    assert CONVERTED not in fit_framework(MODELS, some).outputs | fit_framework(MODELS, some, TRUTH).outputs
    assert fit_framework(MODELS, some, CONVERTING).outputs[CONVERTED] == pytest.approx(CONVERTED_MS, rel=0.1)


def test_predicted_framework_has_the_names_of_the_step_parts():
    names = [part.name for part in TRUTH.parts]
    assert [*predicted_framework(replace(MODELS, framework=TRUTH), _measured(2))] == names
    assert predicted_framework(MODELS, _measured(2)) == {}
    assert predicted_framework(replace(MODELS, framework=TRUTH), []) == {}


def test_cost_of_the_true_framework_equals_measured_local_work():
    sample = _measured(1)[0].sample
    cost = Simulator(replace(MODELS, framework=TRUTH).in_torchrec()).cost(sample.plan.task, sample.plan)
    local_ms = sum(cost.ms(part.name) for part in TRUTH.parts) + cost.compute
    assert local_ms[sample.rank] == pytest.approx(_measured(1)[0].repeats.times_ms[0].sum() - 100.0)


def test_pretrain_fits_framework_overhead_if_steps_were_measured(tmp_path):
    drawn, swapped = ComputeAugmentation(max_tables=5, max_bytes=1 << 28), CommAugmentation(num_devices=(4,))
    directory = collected(tmp_path / "data", TABLES, (80, drawn), (60, swapped), 1024)
    steps = _measured(60, models=linear_models())
    directory.local().write(0, steps)
    fitters = BRIEF_SETS | {"compute_model": Regression()}
    result = Pretrain(str(directory.path), str(tmp_path / "models"), **fitters).run()
    models, card = load_bundle(tmp_path / "models")
    names = [part.name for part in TRUTH.parts]
    assert {*names} <= {*result.metrics} == {"compute", "forward", "backward", *card.metrics.others}
    assert card.data.other_samples["framework"] == {
        name: sum(m.split == name for m in steps) for name in ("train", "valid", "test")
    }
    assert set(names) <= models.margins.others.keys()
    assert models.framework.input.keys() & TRUTH.input.keys()
    assert models.in_torchrec().of_whole_steps


def _beside_hosts(count, first=0):
    """Return measurements of ranks launched by hosts; every third rank has little dense work and waits for its host."""
    slopes, found = replace(TRUTH, host=HOST).per_term("host"), []
    for m in _measured(count, first):
        host_ms = terms_of(_called(MODELS, m.sample), "framework.host")[0, m.sample.rank] @ slopes
        times_ms = m.typical_ms.copy()
        if m.sample_id % 3 == 0:
            times_ms[LOCAL_PHASES.index("dense")] = 0.0
            times_ms *= host_ms / times_ms.sum()
        found.append(replace(m, repeats=Repeats(np.append(times_ms, host_ms)[None], np.zeros(1))))
    return found


def test_launch_time_of_hosts_is_separated_from_device_time():
    learned = fit_framework(MODELS, _beside_hosts(120))
    assert learned.factor == pytest.approx(TRUTH.factor, rel=1e-3)
    assert learned.host == pytest.approx(HOST, rel=1e-3)
    for name, predicted in predicted_framework(replace(MODELS, framework=learned), _beside_hosts(30, 1000)).items():
        np.testing.assert_allclose(predicted.predicted_ms, predicted.measured_ms, rtol=0.02, err_msg=name)
        assert len(predicted.measured_ms) == (30 if name == "framework.host" else 20), name


def test_host_bound_samples_keep_the_initial_device_coefficients():
    waiting = [m for m in _beside_hosts(30) if m.sample_id % 3 == 0]
    start = replace(TRUTH.scaled(1.5), host=HOST)
    learned = fit_framework(MODELS, waiting, start)
    assert replace(learned, host={}) == replace(start, host={})
    with refused("framework-steps-host-bound", names=["10 measured steps"]):
        fit_framework(MODELS, waiting)


def test_framework_fit_has_no_host_part_if_devices_do_not_launch_asynchronously():
    assert fit_framework(MODELS, _measured(20), replace(TRUTH, host=HOST)).host == {}
