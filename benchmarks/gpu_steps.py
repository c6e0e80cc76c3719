"""TorchRec training steps with the plans of several methods, measured on one H100: the tables of
docs/results/gpu_steps.md.

The steps are mirrored: one GPU runs the ranks of a larger job one after the other. The batch size is 65,536, in
TorchRec's training pipeline, with a dense network that takes hardly any time or several ms. The times of exchanges are
predicted. No model was fitted to these steps: plans and predictions were made before the steps were measured.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from shared import ALL_TYPES, markdown, simulator_of, total_ms

import neuroshard as ns
from neuroshard.cost.cost import BACKWARD, FORWARD
from neuroshard.measure.steps.step_meters import MirroredStep
from neuroshard.measure.store.plan_measurements import PlanMeasurement
from neuroshard.measure.store.samples import LOCAL_PHASES
from neuroshard.words.form import FORMS
from neuroshard.words.model_choice import ModelChoice

DATA = Path(__file__).resolve().parent / "data" / "gpu_steps"
KERNELS, WHOLE, PIPELINE = "h100", ModelChoice("h100", framework="torchrec"), "sparse_dist"
BASELINE = "torchrec"  # the plan of TorchRec, column-wise only, best of eight settings
TORCHREC_DEFAULT = "torchrec_default"  # the plan of TorchRec's default planner, of TorchRec 1.8.0
ALL = "torchrec_all_types"  # the plan of TorchRec, all sharding types, best of eight settings
AGAIN = "again:"  # before the name of a plan that was built a second time
TABLES = {
    "hot2b": "24, one of them hot",
    "hot2c": "18, one of them hot",
    "mixed2c": "25 of all sizes and widths",
    "width2c": "25 of one width",
    "small2c": "40 of up to 3,000 rows",
    "few2c": "4",
    "hot4c": "30, one of them hot",
    "narrow4c": "35 of 4 to 16 columns",
    "wide4c": "10 of 128 to 512 columns",
    "width4b": "30 of one width",
    "papers4_9": "39 of the papers'",
    "papers4_13": "18 of the papers'",
    "mixed8c": "50 of all sizes and widths",
    "papers8_5": "18 of the papers'",
    "papers8_22": "42 of the papers'",
    "dcn8": "26 of DLRM-DCNv2",
}


class Way(NamedTuple):
    """A way to train the steps: the size of the dense network (as text for people), the name of the default search's
    plans for this network, the column with the predictions that were made before the measurements, and the widths of
    the network's layers.
    """

    dense: str
    default: str
    foreseen: str
    widths: tuple[int, ...]


LITTLE, MUCH = "little", "much"
WAYS = {
    LITTLE: Way("64 columns", "untold", "foreseen_untold_ms", (64,)),
    MUCH: Way("1,024 to 256 columns", "default", "foreseen_ms", (1024, 1024, 512, 256)),
}
METHODS = {
    "columns": "column-wise only",
    "kernels_alone": f"default by `{KERNELS}`",
    "published": f"published, by `{KERNELS}`",
    "size_lookup_greedy": "size-lookup greedy",
    ALL: ALL_TYPES,
}
_LEAST_PLANS = 4  # plans of a task whose order says something


class Trained(NamedTuple):
    """The time of a training step, and two times within the step: of the dense network and of the host, all in ms."""

    step_ms: float
    dense_ms: float
    host_ms: float


class Ratio(NamedTuple):
    """The step times of one model relative to the step time with the baseline's plan: with the default search's plan,
    and with its column-wise plan.

    `columns` is NaN if the column-wise plan was not measured; `noise` is the relative difference between two
    builds of the same plan.
    """

    task: str
    model: str
    default: float
    columns: float
    noise: float


def ratios(way: str) -> Iterator[Ratio]:
    """Yield the ratios of step times for every task that was measured with the dense network of `way`."""
    noise = {(one, task): abs(again / first - 1) for (one, task), again, first in _built_twice()}
    for task in TABLES:
        if steps := _steps().get((way, task)):
            of = {name: one.step_ms / steps[BASELINE].step_ms for name, one in steps.items()}
            default, columns = of[WAYS[way].default], of.get("columns", np.nan)
            yield Ratio(task, _task_label(task), default, columns, noise[way, task])


_COMPARED = (
    "default's column-wise, row-wise, data-parallel tables",
    "baseline's step, ms",
    "host time, ms: baseline, default",
    "predicted ratio",
    "measured ratio",
)


def by_task() -> str:
    """Return a table of step times with the default search's plan and with the baseline's plan, task by task,
    with a large dense network.
    """
    rows = [(_task_label(task), f"{_dense_ms(MUCH, task):.1f}", *_compared(MUCH, task)) for task in TABLES]
    return markdown(("tables", "dense work, ms", *_COMPARED), rows)


def by_task_little() -> str:
    """Return a table of step times with the default search's plan and with the baseline's plan, task by task,
    with a small dense network.
    """
    rows = [(_task_label(task), *_compared(LITTLE, task)) for task in TABLES if (LITTLE, task) in _steps()]
    return markdown(("tables", *_COMPARED), rows)


def _task_label(task: str) -> str:
    """Return a description of a task for people: its tables and its number of GPUs."""
    return f"{TABLES[task]}, {_plans()[task, BASELINE].task.topology.num_devices} GPUs"


def _compared(way: str, task: str) -> Sequence[str]:
    """Return the cells of a task in the tables of step times: sharding types, the baseline's step, host times, and the
    predicted and measured ratios.
    """
    steps, its = _steps()[way, task], WAYS[way]
    base, ours = steps[BASELINE], steps[its.default]
    foreseen_ms = _plan_frame()[its.foreseen] + _dense_ms(way, task)
    ratios = foreseen_ms[task, its.default] / foreseen_ms[task, BASELINE], ours.step_ms / base.step_ms
    forms = _tables_by_form(task, its.default)
    hosts = f"{base.host_ms:.1f}, {ours.host_ms:.1f}"
    return forms, f"{base.step_ms:.1f}", hosts, *(f"{ratio:.2f}" for ratio in ratios)


def _tables_by_form(task: str, name: str) -> str:
    """Return the numbers of column-wise, row-wise and data-parallel tables of a plan, as text."""
    return ", ".join(str(_plans()[task, name].forms.count(form)) for form in FORMS)


def by_task_beside_default() -> str:
    """Return a table of step times with the default search's plan relative to the plan of TorchRec's default planner,
    task by task: predicted, and measured if a measured plan has the same shards on each device. The line below the
    table gives the errors of predicted ratios for other plans of TorchRec with all sharding types.
    """
    ways = {way: [task for task in TABLES if (way, task) in _steps()] for way in WAYS}
    predicted = {(way, task): _predicted_to_default(way, task) for way, tasks in ways.items() for task in tasks}
    trained = {(way, task): ratio for way in WAYS for task, ratio in to_torchrec_default(way)}
    rows = []
    for task in sorted(TABLES, key=lambda task: predicted[MUCH, task]):
        cells = (_ratio(ratios.get((way, task))) for way in (MUCH, LITTLE) for ratios in (predicted, trained))
        rows.append((_task_label(task), _tables_by_form(task, TORCHREC_DEFAULT), *cells))
    means = (_mean(way, ratios) for way in (MUCH, LITTLE) for ratios in (predicted, trained))
    rows.append(("**mean**", "", *means))
    heads = "predicted ratio, much dense work", "measured", "predicted ratio, little dense work", "measured"
    types = "TorchRec's default planner: column-wise, row-wise, data-parallel tables"
    return markdown(("tables", types, *heads), rows) + f"\n{_errors_of_ratios()}\n"


def to_torchrec_default(way: str) -> Iterator[tuple[str, float]]:
    """Yield every task on which steps with the plan of TorchRec's default planner were measured, with the dense network
    of `way`, and the ratio of the default search's step time to this plan's.
    """
    for task in TABLES:
        steps = _steps().get((way, task), {})
        planned = shards_by_device(_plans()[task, TORCHREC_DEFAULT])
        same = next((name for name in steps if shards_by_device(_plans()[task, name]) == planned), None)
        if same is not None:
            yield task, steps[WAYS[way].default].step_ms / steps[same].step_ms


def shards_by_device(plan: ns.Plan) -> Sequence[Sequence[ns.Shard]]:
    """Return the shards of each device, in an order that is the same after devices are renumbered. All devices of these
    tasks are alike.
    """
    shards: list[list[ns.Shard]] = [[] for _ in range(plan.task.topology.num_devices)]
    for placed in plan.placements:
        shards[placed.device].append(placed.shard)
    return sorted(sorted(of_device, key=astuple) for of_device in shards)


def _predicted_to_default(way: str, task: str) -> float:
    """Return the predicted ratio of step times with the default search's plan and TorchRec's default planner's."""
    ours_ms, theirs_ms = (_predicted_ms(way, task, name) for name in (WAYS[way].default, TORCHREC_DEFAULT))
    return ours_ms / theirs_ms


def _predicted_ms(way: str, task: str, name: str) -> float:
    """Return the predicted step time of a plan in ms, with the dense network's time, by today's models."""
    dense_ms = _dense_ms(way, task)
    simulator = simulator_of(replace(WHOLE, dense_ms=round(dense_ms, 3)))
    return dense_ms + total_ms(simulator, _plans()[task, name])


def _errors_of_ratios() -> str:
    """Return a sentence with the mean errors of predicted ratios of step times: with the plans of TorchRec, all
    sharding types, to the baseline's.
    """
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    for (way, task), steps in _steps().items():
        if ALL in steps:
            predicted = _predicted_ms(way, task, ALL) / _predicted_ms(way, task, BASELINE)
            errors[way].append(abs(predicted / (steps[ALL].step_ms / steps[BASELINE].step_ms) - 1))
    said = (f"{np.mean(its):.1%} with {way} dense work ({len(its)} tasks)" for way, its in errors.items())
    return f"For {ALL_TYPES}, predicted ratios to the baseline's step times have a mean error\nof {' and '.join(said)}."


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _mean(way: str, ratios: Mapping[tuple[str, str], float]) -> str:
    its = [ratio for (of_way, _), ratio in ratios.items() if of_way == way]
    return f"**{np.mean(its):.2f}** ({len(its)})"


def by_method() -> str:
    """Return a table that compares the step times of each method's plans with the baseline's and with predictions, a
    column for each dense network.
    """
    columns = []
    for way, its in WAYS.items():
        tasks = {task: steps for (one, task), steps in _steps().items() if one == way}
        methods = [_mean_ratio(tasks, name) for name in (its.default, *METHODS)]
        ours = [steps[its.default].step_ms / min(one.step_ms for one in steps.values()) - 1 for steps in tasks.values()]
        columns.append((f"{len(tasks)}", *methods, f"{np.mean(ours):.1%}", *_predicted(way, tasks)))
    methods = (f"{name}: ratio" for name in ("default", *METHODS.values()))
    of_models = (f"`{WHOLE}`: {what}" for what in ("mean error", "Kendall's tau", "choice above the best plan"))
    rows = zip(("tasks", *methods, "default above the best plan", *of_models), *columns, strict=True)
    again = [abs(one / other - 1) for _, one, other in _built_twice()]
    return (
        markdown(("", *(f"dense network of {its.dense}" for its in WAYS.values())), rows)
        + f"\nEqual plans differ by {np.mean(again):.1%} on average, {np.max(again):.1%} at most.\n"
    )


def _mean_ratio(tasks: dict[str, dict[str, Trained]], name: str) -> str:
    """Return the mean, minimum and maximum ratio of a method's steps to the baseline's, as text."""
    ratios = [its[name].step_ms / its[BASELINE].step_ms for its in tasks.values() if name in its]
    return f"{np.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _predicted(way: str, tasks: dict[str, dict[str, Trained]]) -> tuple[str, str, str]:
    """Return three figures on the predictions of whole steps, as text: the mean relative error, Kendall's tau
    over the plans of a task, and how much longer the step is with the plan that is predicted to be cheapest
    than with the best plan.

    The figures are means over tasks; the mean of Kendall's tau leaves out tasks with few plans.
    """
    off, taus, missed = [], [], []
    for task, steps in tasks.items():
        predicted = np.array([_predicted_ms(way, task, name) for name in steps])
        measured = np.array([one.step_ms for one in steps.values()])
        off.append(np.abs(predicted / measured - 1).mean())
        taus += [kendalltau(predicted, measured).statistic] if len(steps) >= _LEAST_PLANS else []
        missed.append(measured[predicted.argmin()] / measured.min() - 1)
    return f"{np.mean(off):.1%}", f"{np.mean(taus):.2f}", f"{np.mean(missed):.1%}"


def _dense_ms(way: str, task: str) -> float:
    """Return the ms that the dense network takes on a GPU if it never waits; 0 for the small dense network,
    which takes hardly any time.
    """
    return min(one.dense_ms for one in _steps()[way, task].values()) if way == MUCH else 0.0


@cache
def _plan_frame() -> pd.DataFrame:
    """Return the file of plans as a frame with index (task, plan): each plan as JSON text, and the costs that were
    predicted before the measurements.
    """
    return pd.read_parquet(DATA / "plans.parquet").set_index(["task", "plan"])


def plans_of(task: str) -> dict[str, ns.Plan]:
    """Return the plans of a task by name."""
    return {name: plan for (of_task, name), plan in _plans().items() if of_task == task}


@cache
def _plans() -> dict[tuple[str, str], ns.Plan]:
    return {key: ns.Plan.from_json(json.loads(text)) for key, text in _plan_frame()["text"].items()}


@cache
def _steps() -> dict[tuple[str, str], dict[str, Trained]]:
    """Return the training steps by (way, task) and by name of the plan, each put together from the measured ranks. If
    some ranks were not measured, the step comes from the other ranks alone.
    """
    found: dict[tuple[str, str], dict[str, Trained]] = {}
    for (way, task, name), ranks in _ranks():
        if not name.startswith(AGAIN):
            found.setdefault((way, task), {})[name] = step_of(ranks, _plans()[task, name])
    return found


def _built_twice() -> Iterator[tuple[tuple[str, str], float, float]]:
    """For every plan that was built twice, yield (way, task) and the mean local work of the ranks in the second and
    in the first build, in ms.
    """
    total_ms = {key: np.mean([np.sum(ms) for ms in ranks["ms"]]) for key, ranks in _ranks()}
    for (way, task, name), ms in total_ms.items():
        if name.startswith(AGAIN):
            yield (way, task), ms, total_ms[way, task, name.removeprefix(AGAIN)]


def _ranks() -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    for key, ranks in pd.read_parquet(DATA / "steps.parquet").groupby(["way", "task", "plan"]):
        yield (str(key[0]), str(key[1]), str(key[2])), ranks


def step_of(ranks: pd.DataFrame, plan: ns.Plan) -> Trained:
    """Return the training step of a plan, put together from the measured ranks and from predicted exchanges. Time in
    which a device waits for the host or for the straggler hides exchanges.
    """
    rows = [
        PlanMeasurement(0, 0, int(its.rank), phase, float(ms), None, until)
        for its in ranks.itertuples()
        for phase, until, ms in zip(its.phases, its.until, its.ms, strict=True)
    ]
    local = dict(zip(LOCAL_PHASES, MirroredStep.of(rows, PIPELINE).slowest_ms.tolist(), strict=True))
    cost = simulator_of(WHOLE).cost(plan.task, plan)
    exchanges_ms = sum(float(cost.ms(name).min()) for name in (FORWARD, BACKWARD))
    busy_ms = float((cost.ready_ms - cost.backward).max())
    idle_ms = max(sum(local.values()) - local["dense"] - busy_ms, 0.0)
    step_ms = sum(local.values()) + max(exchanges_ms - idle_ms, 0.0)
    return Trained(step_ms, local["dense"], float(ranks["host_ms"].mean()))
