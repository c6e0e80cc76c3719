"""How the compute model's error falls as samples are added, on tables never seen in training.

usage: learning_curve.py DATA [INIT]    (DATA: a data directory; INIT: a bundle to fit further)

Beside the default model stands the papers' network (with the batch size as an input, or it couldn't learn from several)
on the same samples; with INIT, the bundle's model fitted further instead.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from shared import silent

from neuroshard.models import CostModels, SumModel
from neuroshard.models.card import Accuracy
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.records import DataDirectory
from neuroshard.records.noise import pass_repeatability
from neuroshard.stages.pretrain.fitting import ComputeFitter
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.result import accuracy_of, predict_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.words.form import IN_COLUMNS

_COUNTS = (100, 200, 400, 800, 1600, 3200, 6400, 12800)
_SEEDS = (0, 1)
_PAPER = {
    "compute_model": "paper",
    "compute_model.features": "paper_batch",
    "compute_model.training.epochs": 300,
}


def main() -> None:
    measured = Measured.of([DataDirectory(Path(sys.argv[1]))], ()).compute[IN_COLUMNS]
    noise = pass_repeatability(measured.everything)
    unseen = f"{len(measured.test)} samples of unseen tables, {len(_SEEDS)} seeds"
    print(f"repeatability: mean {noise.mean():.1%}; error on {unseen}")
    default, start = _fitter({}), None
    others = {"papers' network": _fitter(_PAPER)}
    if len(sys.argv) > 2:
        start = CostModels.load(sys.argv[2]).compute
        others = {"fitted further": _fitter({"experiment": "pretrain_adapt"})}
        print(f"{sys.argv[2]} as it is: {_row(start, measured)}")
    print(
        "| training samples | from nothing: MAPE | tau | " + " | ".join(f"{name}: MAPE | tau" for name in others) + " |"
    )
    print("| --- " * (3 + 2 * len(others)) + "|")
    for count in [n for n in _COUNTS if n < len(measured.train)] + [len(measured.train)]:
        some = measured.limited(count)
        cells = [_cells([default.fit(some, None, seed, silent) for seed in _SEEDS], measured)]
        for other in others.values():
            cells.append(_cells([other.fit(some, start, seed, silent) for seed in _SEEDS], measured))
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


def _fitter(given: Mapping[str, str | int]) -> ComputeFitter:
    fitter: ComputeFitter = instantiate_config(config_of("pretrain", given).compute_model)
    return fitter


def _cells(models: list[SumModel], measured: SplitMeasurements) -> str:
    metrics = [_metrics(model, measured) for model in models]
    mape = sorted(metric.mape for metric in metrics)
    tau = sorted(metric.kendall_tau for metric in metrics)
    middle = len(metrics) // 2
    return f"{mape[middle]:.1%} ({mape[0]:.1%} to {mape[-1]:.1%}) | {tau[middle]:.3f}"


def _row(model: object, measured: SplitMeasurements) -> str:
    metrics = _metrics(model, measured)
    return f"MAPE {metrics.mape:.1%}, tau {metrics.kendall_tau:.3f}"


def _metrics(model: object, measured: SplitMeasurements) -> Accuracy:
    assert isinstance(model, SumModel)
    predicted = predict_compute(model, measured.test)
    return accuracy_of(predicted.predicted_ms, predicted.measured_ms)


if __name__ == "__main__":
    main()
