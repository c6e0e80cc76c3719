"""Step times with NeuroShard's plans relative to step times with TorchRec's plans, for each model and in summary:
two tables of `results.py`.

Nothing is measured here: ratios on CPUs come from docs/results/steps.csv, ratios on GPUs from `benchmarks/data`.
"""

from pathlib import Path

import gpu_steps
import h100
import pandas as pd
from shared import COLUMN_WISE, DEFAULT_PLANNER, Made, facts

STEPS = Path(__file__).resolve().parents[1] / "docs" / "results" / "steps.csv"
CPU, MUCH, LITTLE = "CPU, two processes", "H100, 4 to 14 ms of dense compute", "H100, hardly any dense compute"
BASELINES = {CPU: DEFAULT_PLANNER, MUCH: COLUMN_WISE, LITTLE: COLUMN_WISE}
ANY_TYPE, COLUMNS = "ratio", "ratio, column-wise only"
NOISE, LEAST, MOST = "two builds of one plan differ by", "lowest of 6 builds", "highest of 6 builds"
_RANK_STEPS = "one rank's training step after another, on one GPU; exchanges predicted"
_MEASURED = {CPU: "training steps, six builds", MUCH: _RANK_STEPS, LITTLE: _RANK_STEPS}
_H200 = "H200, kernels alone"


def headline(_work: Path, _small: bool) -> Made:
    """Return the table of all models: the ratio of step times, the range of the ratio over builds, and the noise.
    Models are grouped by panel of the picture.
    """
    frame = pd.concat([_on_cpu(), _on_h100(MUCH, gpu_steps.MUCH), _on_h100(LITTLE, gpu_steps.LITTLE)])
    machines = f"{facts(STEPS)['machine']}; one NVIDIA H100 80GB HBM3"
    return Made(
        frame.round(4), "Step times on NeuroShard's plans relative to the baseline's; below 1 is faster.", machines
    )


def _on_cpu() -> pd.DataFrame:
    steps = pd.read_csv(STEPS, comment="#").iloc[:-1]  # but the mean
    span = steps["lowest to highest of 6 builds"].str.split(" to ", expand=True).astype(float)
    return pd.DataFrame(
        {
            "panel": CPU,
            "model": steps["tables of the model"],
            ANY_TYPE: steps[f"trained step / {DEFAULT_PLANNER}"].astype(float),
            LEAST: span[0],
            MOST: span[1],
            COLUMNS: steps["column-wise only"].astype(float),
            NOISE: steps["two equal plans differ by"].str.rstrip("%").astype(float) / 100,
        }
    )


def _on_h100(panel: str, way: str) -> pd.DataFrame:
    rows = [(panel, one.model, one.default, one.columns, one.noise) for one in gpu_steps.ratios(way)]
    return pd.DataFrame(rows, columns=["panel", "model", ANY_TYPE, COLUMNS, NOISE])


def summary(work: Path, small: bool) -> Made:
    """Return a table that summarises the ratios of step times, one row for each machine and
    choice of sharding types.
    """
    made = headline(work, small)
    rows = []
    for panel, its in made.frame.groupby("panel", sort=False):
        noise, said = _noise(its[NOISE]), (_MEASURED[panel], BASELINES[panel])
        rows.append(_row(panel, "any sharding type", *said, its[ANY_TYPE], noise))
        if panel != MUCH:  # there 12 of the 16 models were measured so, and nearly all plans are column-wise only
            rows.append(_row(panel, "column-wise only", *said, its[COLUMNS], noise))
    for panel, way in ((MUCH, gpu_steps.MUCH), (LITTLE, gpu_steps.LITTLE)):
        ratios = pd.Series(dict(gpu_steps.to_torchrec_default(way)))
        noises = pd.Series({its.task: its.noise for its in gpu_steps.ratios(way)})[ratios.index]
        said = _MEASURED[panel], DEFAULT_PLANNER
        rows.append(_row(panel, "any sharding type", *said, ratios, _noise(noises)))
    kernels = "kernels of each plan's slowest device, on one GPU"
    rows.append(_row(_H200, "any sharding type", kernels, COLUMN_WISE, h100.kernel_ratios(), "not measured twice"))
    return Made(pd.DataFrame(rows), made.noise, f"{made.machine}; one NVIDIA H200")


def _noise(noises: pd.Series) -> str:
    return f"{noises.mean():.1%}, at most {noises.max():.1%}"


def _row(where: str, types: str, measured: str, baseline: str, ratios: pd.Series, noise: str) -> dict[str, str]:
    return {
        "where": where,
        "NeuroShard's tables": types,
        "measured": measured,
        "baseline": baseline,
        "models": f"{len(ratios)}",
        "mean": f"{ratios.mean():.2f}",
        "median": f"{ratios.median():.2f}",
        "range": f"{ratios.min():.2f} to {ratios.max():.2f}",
        "noise": noise,
    }
