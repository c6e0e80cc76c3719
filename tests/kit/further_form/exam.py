"""Prints the results of all stages with the made-up sharding type as JSON: searches, reports, measurements, plans."""

import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import neuroshard as ns
from neuroshard.layouts import LAYOUTS
from neuroshard.measure.steps.step_meters import check_comparable
from neuroshard.measure.store.splits import TEST, TRAIN, VALID
from neuroshard.plans.moves import table_changes
from neuroshard.plumbing.errors import UserError
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.methods.torchrec_planner import TorchRecSearch
from neuroshard.stages.search.options.choices import TypeChoices
from neuroshard.stages.search.options.estimates import CostEstimates
from neuroshard.stages.search.options.sharding_types import allowed_types
from neuroshard.stages.search.report.explained import picture, sections
from neuroshard.stages.search.report.explanation import explain
from neuroshard.stages.search.report.page import render
from neuroshard.tables import Table
from neuroshard.tables.reuse import zipf_reuse
from neuroshard.targets.target import TARGETS, target_named
from neuroshard.words.form import CALLS, FORMS, Form
from tests.kit.further_form import pipeline
from tests.kit.random_models import random_form_models

BATCH, SIMULATOR = 32768, ns.Simulator(ns.CostModels.load("roofline:a100", network_gb_per_s=2.0))


def _table(number, rng):
    rows, lookups = 2 * int(10 ** rng.uniform(3, 4.5) / 2), int(rng.integers(1, 5))
    return Table(f"t{number}", rows, 128, float(lookups), zipf_reuse(rows, BATCH * lookups, 1.05))


def _forms(plan):
    return Counter(form.value for form in plan.forms)


def _ms(plan):
    return SIMULATOR.cost(plan.task, plan).total_ms


def _estimates(task):
    """Return the estimated and the predicted ms of a plan with all tables of the made-up type."""
    layout, number = LAYOUTS[Form.HOST_COPIES], FORMS.index(Form.HOST_COPIES)
    estimates = CostEstimates.of(task, SIMULATOR, allowed_types(task, CALLS), None)
    devices = range(task.topology.num_devices)
    plan = ns.Plan(task, tuple(one for t in range(len(task.tables)) for one in layout.over(task, t, devices)))
    return float(estimates.costs(TypeChoices(np.full((1, len(task.tables)), number)))[0][0]), _ms(plan)


def _refused(check, plan):
    try:
        check(plan)
    except UserError as error:
        return error.code, str(error)
    return None


def _drawn(tables):
    """Count the sharding types of kernel calls and of plans that are drawn for measurement."""
    split, rng = dict.fromkeys((TRAIN, VALID, TEST), tables), np.random.default_rng(0)
    calls = ComputeAugmentation(sharding_types=tuple(FORMS), sharers=(2,))
    plans = PlanAugmentation(num_devices=(4,), max_batch_size=64)
    drawn = Counter(calls.draw(split, 64, rng)[0].form.value for _ in range(40))
    return drawn, sum((_forms(plans.placed(_hosts(tables), rng)) for _ in range(20)), Counter())


def _hosts(tables, memory="30GiB"):
    return ns.Task(tables, ns.Topology(4, memory, devices_per_host=2), batch_size=BATCH)


def _short():
    """Return the plan for five tables that cannot be split, on four devices with memory for 1.5 tables each."""
    rows = 1 << 20
    tables = tuple(Table(f"t{number}", rows, 4, 1.0, zipf_reuse(rows, BATCH, 1.05)) for number in range(5))
    return ns.search(
        _hosts(tables, rows * 16 * 3 // 2 + 1), SIMULATOR, sharding_types=["column_wise", "host_data_parallel"]
    )


def main(folder):
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    tables = tuple(_table(number, rng) for number in range(40))
    task = _hosts(tables)
    plan, columns = ns.search(task, SIMULATOR), ns.search(task, SIMULATOR, sharding_types=["column_wise"])
    plan.save(folder / "plan.json")
    told = explain(plan, SIMULATOR)
    calls, plans = _drawn(tables)
    facts = {
        "forms": _forms(plan),
        "violations": plan.violations,
        "ms": (_ms(plan), _ms(columns)),
        "again": ns.Plan.load(folder / "plan.json").placements == plan.placements,
        "lines": str(plan),
        "page": render("plan", "", sections(told)),
        "estimates": _estimates(task),
        "changes": [str(change) for change in table_changes(columns, plan)],
        "replanned": _forms(Replan(plan).find(task, SIMULATOR).plan),
        "refused": {name: _refused(target_named(name).check, plan) for name in TARGETS},
        "not trained": _refused(lambda one: check_comparable([one]), plan),
        "planned": {name: _forms(ns.search(task, SIMULATOR, target=name)) for name in TARGETS},
        "torchrec": _forms(TorchRecSearch(sharding_types=tuple(FORMS), split_factors=(1,)).find(task, SIMULATOR).plan),
        "short": _forms(_short()),
        "calls drawn": calls,
        "plans drawn": plans,
        "known to the kit": sorted(random_form_models().forms),
        "picture": len(picture(told).png) > 0,
    }
    print(json.dumps(facts | pipeline.facts(folder)))


if __name__ == "__main__":  # worker processes read this file too
    main(Path(sys.argv[1]))
