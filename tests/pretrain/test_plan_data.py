"""Models fitted to measurements of plans on made-up devices with known costs."""

from dataclasses import replace

import numpy as np

from neuroshard import CostModels
from neuroshard.measure.plan_costs import PlanRecords, measure_plans
from neuroshard.measure.recorder import meters_of
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.stages.pretrain.fit_additive import Ensemble
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.search.evaluate.verification import Verify
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.search import Search
from neuroshard.testing import toy_task
from neuroshard.words.form import Form
from tests.kit.devices.made_up import MadeUpHardware
from tests.kit.made_up import BRIEF_SETS, drifting
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

HARDWARE = MadeUpHardware(noise=0.01)
TASKS = tuple(toy_task(12, num_devices=4, seed=seed) for seed in range(6))


def _searched(out, verify=None):
    return Search("roofline:h100", TASKS, Random(), "random", str(out), verify=verify).run()


def test_pretrain_accepts_measurements_of_verify_and_evaluate(tmp_path):
    _searched(tmp_path / "verified", Verify(HARDWARE, candidate_plans=3, passes=3))
    _searched(tmp_path / "plain")
    Evaluate(str(tmp_path / "plain"), None, HARDWARE, None, 1, str(tmp_path / "evaluated")).run()
    fitters = BRIEF_SETS | {"compute_model": Ensemble(BRIEF_SETS["compute_model"], 2)}
    for names in (["verified"], ["evaluated"], ["evaluated", "verified"]):
        data = tuple(str(tmp_path / name) for name in names)
        result = Pretrain(data, str(tmp_path / f"models-{len(names)}-{names[0]}"), **fitters).run()
        assert {"compute", "forward", "backward"} <= result.metrics.keys()
        assert CostModels.load(result.path).hardware == HARDWARE.fingerprint
    calls = DataDirectory.at(tmp_path / "verified").compute().each()
    assert len(calls) >= 3 * len(TASKS)
    numbers = [m.sample_id for part in calls for m in part if not m.second_pass]
    assert len(numbers) == len(set(numbers))
    assert {m.sample_id for part in calls for m in part if m.second_pass} <= set(numbers)


def _measured(run, plans, meters, passes):
    for seed in range(passes):
        measure_plans(meters, plans, seed, lambda _: None, records=PlanRecords.of_run(run, meters.hardware))
    return DataDirectory.at(run)


def test_plan_data_stores_data_parallel_tables_under_a_second_name(tmp_path):
    task = TASKS[0]
    plan = laid_out(task, DATA_PARALLEL, range(4), *(i % 4 for i in range(2, 12)))
    in_one = whole(task, *range(4))
    with meters_of(HARDWARE, print) as meters:
        directory = _measured(tmp_path, [in_one, plan], meters, 2)
    copied = directory.tables()[f"{task.tables[0].name} (2)"]
    calls = fastest(directory.compute().each())
    assert {m.sample.call.form for m in calls} == {Form.COLUMN_WISE, Form.ROW_WISE, Form.DATA_PARALLEL}
    assert copied.reuse in {m.sample.tables[0].reuse for m in calls if m.sample.form == Form.DATA_PARALLEL}
    assert all(m.sample.lookups for m in calls if m.sample.form == Form.ROW_WISE)


def test_plan_records_of_other_hardware_settings_are_refused(tmp_path):
    PlanRecords.of_run(tmp_path, HARDWARE)
    with refused("out-begun-otherwise", names=["noise=0.01", "0.5"]):
        PlanRecords.of_run(tmp_path, replace(HARDWARE, noise=0.5))


def test_plan_measurements_of_a_drifting_machine_are_levelled_to_one_speed(tmp_path):
    plans = [*_searched(tmp_path / "plain").saved.plans().values()]
    found = {}
    for name, factors in {"even": [1.0] * 6, "drifting": [0.8, 0.8, 1.25, 1.25, 1.0, 1.0]}.items():
        with meters_of(drifting(iter(factors), noise=0.0), print) as meters:
            directory = _measured(tmp_path / name, plans, meters, 3)
        columns = Measured.of([directory], None).level.columns
        found[name] = {m.sample_id: m.repeats.times_ms.mean() for m in [*columns.known, *columns.test]}
    ratio = np.array([found["drifting"][i] / found["even"][i] for i in found["even"]])
    assert np.ptp(ratio) < 0.02
    assert 0.9 < ratio.mean() < 1.1
