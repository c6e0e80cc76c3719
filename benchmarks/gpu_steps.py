"""TorchRec's steps on plans of several methods, mirrored rank by rank on two GPUs: two tables of docs/h100.md.

Batch 65,536, without the dense network; exchanges are predicted. The models knew none of the eleven tasks then; seven
of them are among what they are fitted to now.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from shared import markdown, simulator_of, total_ms

import neuroshard as ns
from neuroshard.hardware.mirror_meters import MirroredStep
from neuroshard.hardware.step_samples import LocalStep, Stretch
from neuroshard.records.samples import LOCAL_PHASES
from neuroshard.stages.search.runs.in_mirror import ExchangesOfStep
from neuroshard.words.form import FORMS

DATA = Path(__file__).resolve().parent / "data" / "gpu_steps"
KERNELS, WHOLE = "h100", "h100+torchrec"
FIRST, PIPED, OTHER = ("h100", "none"), ("h100", "sparse_dist"), ("h200", "none")  # GPU and pipeline
AGAIN = "again:"  # before the name of a plan that was built a second time
TABLES = {
    "hot2": "24, one of them hot",
    "few2": "4",
    "mixed2": "30 of all sizes and widths",
    "papers4_11": "31 of the papers'",
    "papers4_13": "18 of the papers'",
    "small4": "60 of up to 3,000 rows",
    "narrow4": "30 of 4 to 16 columns",
    "wide4": "10 of 128 to 512 columns",
    "papers8_12": "30 of the papers'",
    "papers8_14": "45 of the papers'",
    "dcn8": "26 of DLRM-DCNv2",
}
HELD_OUT = "few2", "papers4_13", "narrow4", "wide4"  # which models still don't know
METHODS = {
    "default": f"default, by `{WHOLE}`",
    "columns": "the same, columns alone",
    "published": f"published search, by `{KERNELS}`",
    "kernels_alone": f"default, by `{KERNELS}`",
    "size_lookup_greedy": "size-lookup greedy",
    "torchrec_all_forms": "TorchRec's planner, all its forms",
}


def by_task() -> str:
    """Compare the step on the default's plan with that on the plan of TorchRec's planner, task by task."""
    foreseen, rows = _of_plans()["foreseen_ms"], []
    for task, said in TABLES.items():
        plan, base = _plans()[task, "default"], _steps().loc[(*FIRST, task, "torchrec")]
        forms = ", ".join(str(plan.forms.count(form)) for form in FORMS)
        ratios = (
            foreseen[task, "default"] / foreseen[task, "torchrec"],
            *(_of_default(its, task) for its in (FIRST, OTHER)),
        )
        told = f"{base.step_ms:.2f}", f"{base.kernels_ms:.2f}", forms, *map(_ratio, ratios)
        rows.append((said, f"{plan.task.topology.num_devices}", *told))
    columns = "tables", "GPUs", "step on TorchRec's plan, ms", "of it kernels", "default: columns, rows, copies"
    return markdown((*columns, "its step / TorchRec's: predicted", "H100", "H200"), rows)


def by_method() -> str:
    """Compare steps on each method's plans with those on TorchRec's, and tell how near predictions come."""
    rows = []
    for name, said in METHODS.items():
        first, *others = (_beside_torchrec(its).xs(name, level="plan") for its in (FIRST, PIPED, OTHER))
        span = f"{first.min():.2f} to {first.max():.2f}"
        rows.append((said, f"{first.mean():.3f}", span, *(f"{its.mean():.3f}" for its in others)))
    columns = "plan by", "H100: step / that on TorchRec's plan", "lowest to highest", "in a pipeline, four tasks"
    steps = _steps().loc[FIRST]["step_ms"]
    again = steps.index.get_level_values("plan").str.startswith(AGAIN)
    known = steps[~again]
    differ = [abs(ms / known[task, name.removeprefix(AGAIN)] - 1) for (task, name), ms in steps[again].items()]
    best = known.xs("default", level="plan") / known.groupby("task").min() - 1
    now = pd.Series([total_ms(simulator_of(WHOLE), _plans()[key]) for key in known.index], known.index)
    held_out = known.index.get_level_values("task").isin(HELD_OUT)
    foreseen = _of_plans()["foreseen_ms"].reindex(known.index)
    return (
        markdown((*columns, "H200"), rows)
        + f"\nOn the H100 the default's steps are {best.mean():.1%} above the best of each task's plans in the mean. "
        f"Equal plans differ by\n{np.mean(differ):.1%} in the mean, {np.max(differ):.1%} at most. "
        f"Before these steps were measured, `{WHOLE}` was off by\n{_off(foreseen, known)}.\nFitted to seven of the "
        f"tasks as well, it is off by {_off(now, known)};\non the other four alone by "
        f"{_off(now[held_out], known[held_out])}.\n"
    )


def _off(predicted_ms: pd.Series, ms: pd.Series) -> str:
    """Say how far predictions are off in the mean, and how far ratios of a task's plans are."""
    off = predicted_ms / ms
    ratios = np.log(off) - np.log(off).groupby("task").transform("mean")
    return f"{(off - 1).abs().mean():.1%}, and by {ratios.abs().mean():.1%} in ratios of a task's plans"


def _of_default(way: tuple[str, str], task: str) -> float:
    return float(_beside_torchrec(way).get((task, "default"), np.nan))


def _ratio(ratio: float) -> str:
    return "" if np.isnan(ratio) else f"{ratio:.2f}"


def _beside_torchrec(way: tuple[str, str]) -> pd.Series:
    """Compute steps over those on the plans of TorchRec's planner, by task and plan."""
    ms = _steps().loc[way]["step_ms"]
    return ms / ms.groupby("task").transform(lambda its: its.xs("torchrec", level="plan").iloc[0])


@cache
def _of_plans() -> pd.DataFrame:
    """Read the plans as texts, and what was predicted of them before they were measured, by task and name."""
    return pd.read_parquet(DATA / "plans.parquet").set_index(["task", "plan"])


@cache
def _plans() -> dict[tuple[str, str], ns.Plan]:
    return {key: ns.Plan.from_json(json.loads(text)) for key, text in _of_plans()["text"].items()}


@cache
def _steps() -> pd.DataFrame:
    """Put steps together from their ranks: ms of each, and of its kernels, by GPU, pipeline, task and plan."""
    rows, key = {}, ["gpu", "pipeline", "task", "plan"]
    for which, ranks in pd.read_parquet(DATA / "steps.parquet").groupby(key):
        gpu, pipeline, task, name = map(str, which)
        rows[gpu, pipeline, task, name] = _step(ranks, _plans()[task, name.removeprefix(AGAIN)], pipeline)
    index = pd.MultiIndex.from_tuples(rows, names=key)
    return pd.DataFrame(list(rows.values()), index, columns=["step_ms", "kernels_ms"])


def _step(ranks: pd.DataFrame, plan: ns.Plan, pipeline: str) -> tuple[float, float]:
    steps = [
        LocalStep(its.rank, tuple(map(Stretch, its.phases, its.until)), tuple(its.ms)) for its in ranks.itertuples()
    ]
    slowest_ms = MirroredStep.of(steps, pipeline).slowest_ms.tolist()
    local = dict(zip(LOCAL_PHASES, slowest_ms, strict=True))
    exchanges = ExchangesOfStep.of(simulator_of(KERNELS).models, plan.traffic)
    return sum(slowest_ms) - local["dense"] + exchanges.waited_ms, local["lookups"] + local["backward"]
