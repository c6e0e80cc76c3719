"""Whether one communication model serves any number of devices: its error beside that of a model of the same form that
was fitted to one number only, and that of one that never saw a number.

usage: device_counts.py DATA    (DATA: a data directory with exchanges between several numbers of devices)
"""

import sys
from collections.abc import Callable
from pathlib import Path

from shared import silent

from neuroshard.models import CommModel
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.records import DataDirectory
from neuroshard.records.noise import pass_repeatability
from neuroshard.records.samples import BACKWARD, FORWARD
from neuroshard.stages.pretrain.fitting import CommFitter
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.result import accuracy_of, predict_comm
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.words.collective import Collective

_DIRECTIONS = (FORWARD, BACKWARD)


def main() -> None:
    measured = Measured.of([DataDirectory(Path(sys.argv[1]))], ()).comm[Collective.ALL_TO_ALL]
    fitter: CommFitter = instantiate_config(config_of("pretrain", {}).comm_model)
    counts = sorted({len(m.sample.dims) for m in measured.everything})
    everything = _fitted(fitter, measured)
    print("| devices | one for all | for this number only | never saw this number | two passes differ, mean |")
    print("| --- | --- | --- | --- | --- |")
    for count in counts:
        only = _kept(measured, lambda devices, count=count: devices == count)
        others = _kept(measured, lambda devices, count=count: devices != count)
        cells = [_errors(models, only) for models in (everything, _fitted(fitter, only), _fitted(fitter, others))]
        noise = pass_repeatability(only.everything)
        print(f"| {count} | {' | '.join(cells)} | {noise.mean():.1%} |", flush=True)


def _fitted(fitter: CommFitter, measured: SplitMeasurements) -> list[CommModel]:
    return [fitter.fit(measured, direction, None, 0, silent) for direction in _DIRECTIONS]


def _kept(measured: SplitMeasurements, keep: Callable[[int], bool]) -> SplitMeasurements:
    parts = (measured.train, measured.valid, measured.test, measured.everything)
    return SplitMeasurements(*([m for m in part if keep(len(m.sample.dims))] for part in parts))


def _errors(models: list[CommModel], measured: SplitMeasurements) -> str:
    """MAPE on test exchanges, forward / backward."""
    predicted = [predict_comm(model, measured.test, d) for model, d in zip(models, _DIRECTIONS, strict=True)]
    return " / ".join(f"{accuracy_of(p.predicted_ms, p.measured_ms).mape:.1%}" for p in predicted)


if __name__ == "__main__":
    main()
