"""Takes host copies, of which no models know, through all stages: collect, pretrain, search, explain, evaluate."""

import sys
from collections import Counter
from dataclasses import asdict, replace

import neuroshard as ns
from neuroshard.cost.cost import INPUT
from neuroshard.measure._plan_samples import kernel_calls
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit_additive import Additive
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.explain import Explain
from neuroshard.stages.search.runs.search import Search
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.collective import name_of
from neuroshard.words.form import FORMS, Form
from tests.kit.commands import shown
from tests.kit.devices import MADE_UP, MadeUpExchange
from tests.kit.made_up import OnTwoHosts
from tests.kit.measuring import CPU

BATCH, CPUS, SLOWER = 4096, MADE_UP["cpu"], 10.0


class Exchange(MadeUpExchange):
    """An exchange that takes longer if its devices are on several hosts."""

    def transfer_ms(self, traffic, wait_ms):
        ms = super().transfer_ms(traffic, wait_ms)
        return ms * SLOWER if (traffic.host_size or traffic.num_devices) < traffic.num_devices else ms


APART = replace(CPUS, forward=Exchange(**asdict(CPUS.forward)), backward=Exchange(**asdict(CPUS.backward)))
HARDWARE = OnTwoHosts(made_up=APART)
TRUTH = ns.Simulator(APART.truth)
TRAINING = TrainingSettings(80, 64, 3e-3, "cosine", "absolute_relative", 80)
FITTERS = Additive((32,), training=TRAINING, corrections=4), SetCommunication((32,), TRAINING, parts=2)
OTHERS = [form for form in FORMS if form is not Form.HOST_COPIES]


def _forms(plan):
    return Counter(form.value for form in plan.forms)


def _task(rows):
    tables = (Table(f"t{number}", rows, 128, 30.0, zipf_reuse(rows, BATCH * 30, 1.05)) for number in range(16))
    return ns.Task(tuple(tables), ns.Topology(4, "8GiB", devices_per_host=2), BATCH)


# Links between hosts are slow. Gradients of few rows send fewer bytes over these links than outputs do, and half as
# many as gradients of data-parallel tables; gradients of many rows send more.
TASKS = {"few rows": _task(700), "many rows": _task(200_000)}


def _collect(data):
    """Return how many kernel calls were measured, by name."""
    tables = tuple(table for table in dlrm_like(num_tables=120, batch_size=BATCH) if table.rows >= 64)
    calls = ComputeAugmentation(
        max_tables=20,
        max_bytes=1 << 30,
        sharding_types=(Form.COLUMN_WISE, *FORMS),
        sharers=(2, 4),
        max_copy_bytes=4 << 20,
    )
    exchanges = {name_of(one) for form in FORMS for one in ns.layouts.LAYOUTS[form].exchanges}
    comm = CommAugmentation(max_start_ms=APART.max_start_ms, collectives=tuple(sorted(exchanges)), max_row_tables=20)
    Collect(tables, HARDWARE, calls, comm, (BATCH,), str(data), num_compute_samples=900, num_comm_samples=600).run()
    return Counter(m.sample.call.name for m in fastest(DataDirectory(data).compute().each()) if m.error is None)


def _pretrain(data, models):
    """Return the mean relative error of each model on test tables."""
    result = Pretrain(str(data), str(models), *FITTERS).run()
    return {part: metric.test.mape for part, metric in result.metrics.items()}


def _search(models, out):
    """Return the plan of each task, by the task's name."""
    result = Search(str(models), tuple(TASKS.values()), NeuroShard(), "neuroshard", str(out)).run()
    return dict(zip(TASKS, map(result.saved.plan_of, result.saved.records), strict=True))


def _evaluate(folder, plans):
    """Return the measured cost of each plan."""
    for number, plan in enumerate(plans):
        plan.save(folder / f"{number}.json")
    files = [str(folder / f"{number}.json") for number in range(len(plans))]
    return [entry.measured for entry in Evaluate(files, None, HARDWARE, out=str(folder / "evaluated")).run().entries]


def _parts(cost):
    """Return the ms of each part of a step on its slowest device, and the total ms, by name."""
    return {part.name: part.ms.max() for part in cost.parts if part.name != INPUT} | {"total": cost.total_ms}


def _looked_up(plan):
    """Return the lookups that the real kernel of the first device counts, and those of the device's load."""
    (call,) = kernel_calls(plan)[0]
    with CPU.compute_meter(sys.stderr.write) as meter:
        (outcome,) = meter.measure([call], [0])
    loads = plan.device_loads
    return sum(block.count for block in outcome.seen), loads.totals(loads.loads.lookups)[0]


def facts(folder):
    """Return the results of each stage that the exam checks."""
    data, models = folder / "data", folder / "models"
    measured, errors = _collect(data), _pretrain(data, models)
    found = _search(models, folder / "found")
    true = {name: ns.search(task, TRUTH) for name, task in TASKS.items()}
    plan, without = found["few rows"], ns.search(TASKS["few rows"], TRUTH, sharding_types=OTHERS)
    predicted = ns.Simulator(ns.CostModels.load(str(models))).cost(plan.task, plan)
    plan.save(folder / "found.json")
    return {
        "measured": measured,
        "errors": errors,
        "found": {name: _forms(its) for name, its in found.items()},
        "true": {name: _forms(its) for name, its in true.items()},
        "explained": shown(Explain(str(folder / "found.json"), str(models)).run()),
        "predicted": _parts(predicted),
        "evaluated": [_parts(cost) for cost in _evaluate(folder, (plan, without))],
        "looked up": _looked_up(plan),
    }
