"""What augmentation is worth: the compute model fitted to samples without one kind of it, and to as many with all.

usage: ablation.py DATA    (DATA: a data directory measured with any_width_share above 0 and several batch sizes)

Errors are on all test samples, whose tables training never saw.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from shared import silent

from neuroshard.records import DataDirectory
from neuroshard.records.samples import ComputeSample
from neuroshard.stages.pretrain.fit_additive import Additive
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.result import accuracy_of, predict_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.tables import halvings
from neuroshard.words.form import IN_COLUMNS

_TRAINING = TrainingSettings(
    epochs=300, batch_size=64, learning_rate=3e-3, schedule="cosine", loss="absolute_relative", patience=300
)
_SEEDS = (0, 1, 2)
_FEW = 4  # tables in small samples, of which enough have no width but halvings of 128


def main() -> None:
    measured = Measured.of([DataDirectory(Path(sys.argv[1]))], ()).compute[IN_COLUMNS]
    print("| training samples | number | MAPE | as many of all kinds: MAPE |")
    print("| --- | --- | --- | --- |")
    _row("one table each", measured, lambda sample: len(sample.tables) == 1, _any)
    _row(f"up to {_FEW} tables", measured, _small, _any)
    _row(f"up to {_FEW} tables, halved widths only", measured, lambda s: _small(s) and _halved(s), _small)
    _row("one batch size (4,096)", measured, lambda sample: sample.batch_size == 4096, _any)


def _any(_sample: ComputeSample) -> bool:
    return True


def _small(sample: ComputeSample) -> bool:
    return len(sample.tables) <= _FEW


def _halved(sample: ComputeSample) -> bool:
    return all(table.dim in halvings(128) for table in sample.tables)


def _row(
    name: str,
    measured: SplitMeasurements,
    kept: Callable[[ComputeSample], bool],
    all_kinds: Callable[[ComputeSample], bool],
) -> None:
    some = [m for m in measured.train if kept(m.sample)]
    others = [m for m in measured.train if all_kinds(m.sample)][: len(some)]
    without, beside = (_mape(replace(measured, train=train)) for train in (some, others))
    print(f"| {name} | {len(some)} | {without:.1%} | {beside:.1%} |", flush=True)


def _mape(measured: SplitMeasurements) -> float:
    """The median over seeds."""
    errors = []
    for seed in _SEEDS:
        model = Additive(training=_TRAINING).fit(measured, None, seed, silent)
        predicted = predict_compute(model, measured.test)
        errors.append(accuracy_of(predicted.predicted_ms, predicted.measured_ms).mape)
    return float(np.median(errors))


if __name__ == "__main__":
    main()
