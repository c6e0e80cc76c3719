"""TorchRec training steps with the plans of several methods, for many kinds of models; the defaults of the search were
chosen by these measurements.

usage: python benchmarks/training_steps.py OUT [MODEL ...]

Two processes; `neuroshard evaluate measure=steps` with its protocol, beside the plan of TorchRec's default planner
as a job on a CPU uses it. A run that was stopped goes on. Let nothing else run.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from shared import CPU, DEFAULT_PLANNER, Made, evaluated

import neuroshard as ns
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.plans.plan import Plan
from neuroshard.searching.searcher import searcher_of
from neuroshard.stages.augment.local import PlanAugmentation
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.evaluate.verification import Verify
from neuroshard.stages.search.methods.torchrec_default import torchrec_default
from neuroshard.stages.search.runs.search import Search
from neuroshard.tables.sources.criteo import criteo
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.model_choice import ModelChoice

DEVICES, BATCH_SIZE, MEMORY = 2, 2048, "6GiB"
Tables = tuple[ns.Table, ...]
# Costs of kernels and exchanges alone, and of whole steps.
KERNELS, STEPS = ModelChoice("cpu"), ModelChoice("cpu", framework="torchrec")


def _table(name: str, rows: int, dim: int, lookups: float, **fields: object) -> ns.Table:
    return ns.Table(name, rows, dim, lookups, ns.zipf_reuse(rows, round(BATCH_SIZE * lookups)), **fields)


def drawn(seed: int, count: int, rows: tuple[float, float], dims: Sequence[int], lookups: tuple[int, int]) -> Tables:
    """Return `count` drawn tables; the logarithms (base 10) of the numbers of rows are uniform within `rows`."""
    rng = np.random.default_rng(seed)
    return tuple(
        _table(f"t{i}", int(10 ** rng.uniform(*rows)), int(rng.choice(dims)), float(rng.integers(*lookups)))
        for i in range(count)
    )


def several_features(tables: Tables) -> Tables:
    return tuple(replace(t, features=1 + i % 3) for i, t in enumerate(tables))


def _sequences() -> Tables:
    return (
        *drawn(8, 12, (3, 5.3), (32,), (2, 12)),
        *(_table(f"s{i}", 30_000 * (i + 1), 32, 10.0, pooled=False) for i in range(4)),
    )


# Values of each feature of Criteo's Kaggle data set, of which one is looked up in a sample.
_KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652),
    *(2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


MODELS: dict[str, Callable[[], Tables]] = {
    "widths": lambda: drawn(1, 60, (2, 5.5), (16, 32, 64, 128), (1, 12)),
    "dcn": lambda: tuple(replace(t, rows=min(t.rows, 300_000)) for t in criteo(BATCH_SIZE)),
    "kaggle": lambda: tuple(_table(f"c{i}", min(rows, 1_000_000), 16, 1.0) for i, rows in enumerate(_KAGGLE)),
    "hot": lambda: (_table("hot", 500_000, 64, 120.0), *drawn(2, 16, (3, 5.5), (32, 64), (1, 8))),
    "small": lambda: drawn(3, 80, (1, 3.7), (16, 32), (1, 6)),
    "few_small": lambda: drawn(13, 20, (1, 3.5), (16, 32), (1, 6)),
    "many_small": lambda: drawn(11, 60, (1, 4.2), (16, 32), (1, 8)),
    "narrow": lambda: drawn(4, 40, (3, 6), (4, 8, 16), (2, 20)),
    "wide": lambda: drawn(5, 8, (4, 5.5), (128, 256), (2, 10)),
    "few": lambda: (_table("large", 2_000_000, 64, 20.0), _table("mid", 50_000, 64, 6.0), _table("tiny", 200, 64, 2.0)),
    "papers": lambda: tuple(t for t in dlrm_like(batch_size=BATCH_SIZE, dim=32, seed=3) if t.rows < 1_000_000)[:24],
    "features": lambda: several_features(drawn(7, 20, (2.5, 5.3), (16, 32, 64), (3, 12))),
    "small_features": lambda: several_features(drawn(31, 30, (1.5, 4.5), (16, 32, 64), (3, 12))),
    "to_30k_rows": lambda: drawn(20, 30, (1, 4.5), (16, 32, 64), (1, 8)),
    "to_100k_rows": lambda: drawn(23, 50, (1.5, 5), (16, 32, 64), (1, 5)),
    "many_to_100k_rows": lambda: drawn(25, 60, (2, 5), (16, 32), (2, 10)),
    "sequences": _sequences,
}


Method = Callable[[ns.Task, Path], Plan]  # Path: a folder of its own, where it measures


def _simulator(models: ModelChoice) -> ns.Simulator:
    """Return a simulator with these cost models. For whole steps it counts the input dist, which no pipeline hides
    here; for kernels alone it does not, as in the papers.
    """
    return ns.Simulator(ns.CostModels.of(models), count_input=models == STEPS)


def _by(models: ModelChoice, searcher: str = "neuroshard", **settings: object) -> Method:
    return lambda task, _: ns.search(task, _simulator(models), searcher, **settings)


def _verified(task: ns.Task, folder: Path) -> Plan:
    """Return the plan that `NeuroShardPlanner(verify="steps", pipeline="none")` would choose."""
    verify = Verify(CPU, candidate_plans=4, passes=4, measure=StepMeasurer())
    searcher = searcher_of("neuroshard")
    where = "verified", str(folder)
    result = Search(STEPS.name, (task,), searcher, *where, count_input=True, verify=verify, **STEPS.settings).run()
    assert result is not None
    return result.saved.plans()[0]


DEFAULT: Mapping[str, Method] = {"default": _by(STEPS)}
BESIDE: Mapping[str, Method] = {**DEFAULT, "columns": _by(STEPS, sharding_types=["column_wise"]), "verified": _verified}
SEARCHES: Mapping[str, Method] = {
    **DEFAULT,
    "every_gain": _by(STEPS, acceptance=None),
    "kernels_alone": _by(KERNELS),
    "kernels_every_gain": _by(KERNELS, acceptance=None),
    "published": _by(KERNELS, "neuroshard_published"),
    "size_lookup_greedy": _by(KERNELS, "size_lookup_greedy"),
    "dim_greedy": _by(KERNELS, "dim_greedy"),
}
RANDOM = 8  # further plans, of all sharding types; of few small tables several plans make all data-parallel
SAID = {  # of methods, on the page
    "default": "default",
    "kernels_alone": "default, by `model=cpu`",
    "published": "published search",
    "size_lookup_greedy": "size-lookup greedy",
    "dim_greedy": "dim greedy",
}


# What docs/results/cpu_steps.md quotes, in its words.
QUOTED = {
    "few_small": "20 small ones",
    "small": "80 small ones",
    "dcn": "26 of DLRM-DCNv2, rows capped at 300,000",
    "sequences": "12 pooled ones, 4 sequence tables",
    "widths": "60 of several widths",
    "papers": "24 of the papers' kind",
    "hot": "one of 120 lookups and 16 others",
    "small_features": "30 that one to three features read",
    "to_30k_rows": "30 of 10 to 30,000 rows",
    "to_100k_rows": "50 of 30 to 100,000 rows",
    "many_to_100k_rows": "60 of 100 to 100,000 rows",
}


PREDICTED = ["few_small", "small", "widths", "dcn", "papers", "sequences"]  # that are trained on many plans


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    for model in names:
        _trained(model, out, SEARCHES, StepProtocol(), RANDOM)


def beside_torchrec(work: Path, small: bool) -> Made:
    """Return a table of training steps with NeuroShard's plans relative to the plan of TorchRec's default planner:
    a table of `results.py`.
    """
    protocol = _BRIEF if small else StepProtocol()
    rows, ratios, foreseen = [], [], []
    for model in ["few_small"] if small else QUOTED:
        frame = _trained(model, work, BESIDE, protocol).set_index("plan")
        row, torchrec = frame.loc["default"], frame.loc["torchrec_planner"]
        span = f"{row.beside_first_least:.2f} to {row.beside_first_most:.2f}"
        ratios.append(row.beside_first)
        foreseen.append(row.steps_beside_first)
        rows.append(
            {
                "tables of the model": QUOTED[model],
                f"{DEFAULT_PLANNER}: step, ms": f"{torchrec.step_ms:.1f}",
                "of it dense": f"{torchrec.dense_share:.0%}",
                f"predicted step / {DEFAULT_PLANNER}": f"{row.steps_beside_first:.2f}",
                f"trained step / {DEFAULT_PLANNER}": f"{row.beside_first:.2f}",
                f"lowest to highest of {protocol.builds} builds": span,
                "column-wise only": f"{frame.loc['columns'].beside_first:.2f}",
                "verified": f"{frame.loc['verified'].beside_first:.2f}",
                "two equal plans differ by": f"{row.floor:.1%}",
            }
        )
    mean = {"tables of the model": "**mean**", f"trained step / {DEFAULT_PLANNER}": f"**{np.mean(ratios):.3f}**"}
    off = np.abs(np.array(foreseen) / np.array(ratios) - 1).mean()
    return Made(pd.DataFrame([*rows, mean]).fillna(""), f"Predicted ratios are off by {off:.1%} on average.")


def predicted_steps(work: Path, small: bool) -> Made:
    """Return a table of the errors of predicted costs, of whole steps and of kernels alone, compared with training
    steps of many plans: a table of `results.py`.
    """
    rows = [{"tables of the model": model, **judged(its)} for model, its in _on_many_plans(work, small)]
    return Made(pd.DataFrame(rows), _AS_MEASURED)


def steps_by_method(work: Path, small: bool) -> Made:
    """Return a table of the training steps with each method's plans relative to TorchRec's default planner, from the
    same runs: a table of `results.py`.
    """
    ratios = pd.DataFrame({model: its.set_index("plan")["beside_first"] for model, its in _on_many_plans(work, small)})
    ratios = ratios.loc[[name for name in SAID if name in ratios.index]].assign(mean=lambda its: its.mean(axis=1))
    cells = ratios.map(lambda ratio: f"{ratio:.2f}").rename(index=SAID, columns={"mean": "**mean**"})
    return Made(cells.rename_axis("plan by").reset_index(), f"Trained step / that of {DEFAULT_PLANNER}.")


def step_plans(work: Path, small: bool) -> Made:
    """Return the predicted and the trained step of every plan, relative to TorchRec's default planner, from which a
    picture is drawn: a table of `results.py`.
    """
    frame = pd.concat([its.assign(model=model) for model, its in _on_many_plans(work, small)])
    drawn = frame[["model", "plan", "steps_beside_first", "beside_first"]]
    named = {
        "steps_beside_first": f"predicted step / {DEFAULT_PLANNER}",
        "beside_first": f"trained step / {DEFAULT_PLANNER}",
    }
    return Made(drawn.rename(columns=named).round(4), _AS_MEASURED)


_BRIEF = StepProtocol(builds=2, turns=2)
_AS_MEASURED = f"Every plan is compared with that of {DEFAULT_PLANNER}; the dense part of a step is as measured."


def _on_many_plans(work: Path, small: bool) -> Iterator[tuple[str, pd.DataFrame]]:
    """Train some models with plans of every method and with random plans; yield each model's name and the frame of its
    steps. Several tables share the runs.
    """
    runs, protocol, searches = work.with_name("predicted_steps"), StepProtocol(), SEARCHES
    if small:
        protocol, searches = _BRIEF, DEFAULT
    for model in ["few_small"] if small else PREDICTED:
        yield QUOTED[model], _trained(model, runs, searches, protocol, RANDOM)


def judged(frame: pd.DataFrame) -> dict[str, str]:
    """Return the cells that say how well predicted costs, of whole steps and of kernels alone, agree with the
    trained steps of one model.
    """
    every, frame = frame, frame.drop_duplicates("method")  # plans that several methods found
    cells = {"plans": str(len(frame)), "two equal plans differ by": f"{frame['floor'].iloc[0]:.1%}"}
    cells["tau between builds"] = f"{frame['builds_agree'].iloc[0]:.2f}"
    trained = frame["beside_first"]
    for name, models in (("steps", STEPS), ("kernels", KERNELS)):
        cells[f"`{models}`: mean error"] = f"{(frame[f'{name}_beside_first'] / trained - 1).abs().mean():.1%}"
        cells[f"`{models}`: tau"] = f"{kendalltau(frame[f'{name}_ms'], trained).statistic:.2f}"
        cells[f"`{models}`: tau beyond noise"] = f"{_tau_beyond(frame, name):.2f}"
    default = every.set_index("plan").loc["default", "beside_first"]
    return cells | {
        f"NeuroShard / {DEFAULT_PLANNER}": f"{default:.2f}",
        f"best plan / {DEFAULT_PLANNER}": f"{trained.min():.2f}",
    }


def _tau_beyond(frame: pd.DataFrame, name: str) -> float:
    """Return Kendall's tau between predicted and trained steps over the pairs of plans whose trained steps differ by
    more than two builds of one plan do.
    """
    trained, predicted = frame["beside_first"].to_numpy(), frame[f"{name}_ms"].to_numpy()
    one, other = np.triu_indices(len(frame), 1)
    apart = np.abs(np.log(trained[one] / trained[other])) > np.log1p(frame["floor"].iloc[0])
    agree = np.sign(trained[one] - trained[other]) * np.sign(predicted[one] - predicted[other])
    return float(agree[apart].mean())


def _trained(
    model: str, out: Path, searches: Mapping[str, Method], protocol: StepProtocol, random: int = 0
) -> pd.DataFrame:
    """Train a model with each method's plan, and return a frame with one row per method, TorchRec's default planner
    first. Methods that found the same plan have the same value of `method`.

    A step has a dense part, which no cost knows: predicted ratios count it as measured on the first plan.
    """
    task = ns.Task(MODELS[model](), ns.Topology(DEVICES, MEMORY), BATCH_SIZE)
    planned = _planned(out / model, task, searches, random)
    files = list(dict.fromkeys(planned.values()))
    result = evaluated(files, None, out / model / "steps", StepMeasurer(protocol))
    frame, dense = pd.DataFrame(result.frames["results"]), pd.DataFrame(result.frames["phases"])["dense"]
    frame = frame.assign(dense_share=(dense / frame["step_ms"]).to_numpy())
    plans = [Plan.load(file) for file in files]
    for name, models in (("steps", STEPS), ("kernels", KERNELS)):
        simulator, share = _simulator(models), frame["dense_share"].iloc[0]
        cost_ms = np.array([simulator.cost(task, plan).total_ms for plan in plans])
        step_ms = cost_ms + cost_ms[0] * share / (1 - share)
        frame = frame.assign(**{f"{name}_ms": cost_ms, f"{name}_beside_first": step_ms / step_ms[0]})
    agree = [kendalltau(*both).statistic for both in combinations(result.tasks[0].ratios.T, 2)]
    by_file = frame.assign(builds_agree=np.mean(agree), file=files).set_index("file")
    return by_file.loc[list(planned.values())].assign(plan=list(planned))


def _planned(folder: Path, task: ns.Task, searches: Mapping[str, Method], random: int) -> dict[str, str]:
    """Save the plan of each method, TorchRec's first; return the path of each method's plan. Methods that found
    the same plan share a file.
    """
    sim = _simulator(STEPS)
    plans = {"torchrec_planner": torchrec_default(task, sim)}
    plans |= {name: search(task, folder / name) for name, search in searches.items()}
    plans |= {f"random_{n}": PlanAugmentation().placed(task, np.random.default_rng([7, n])) for n in range(random)}
    planned: dict[str, str] = {}
    for name, plan in plans.items():
        same = next((other for other in planned if plans[other].placements == plan.placements), name)
        planned[name] = planned.get(same, str(folder / f"{name}.json"))
        if same == name:
            sim.predicted(plan).save(planned[name])
    return planned


if __name__ == "__main__":
    main()
