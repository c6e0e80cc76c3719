"""The calibrate run: what traces of a training job say of a machine corrects the datasheet that is nearest to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

from neuroshard.models import CostModels
from neuroshard.models.bundle import check_place
from neuroshard.models.calibration import Calibration, with_exchanges, with_kernels
from neuroshard.models.published_points import ExchangePoint, KernelPoint
from neuroshard.models.roofline import RooflineComm, RooflineCompute
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import PathName
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.pretrain.traces import read_traces

Point = KernelPoint | ExchangePoint
_SHEET = "roofline:"


@dataclass(frozen=True)
class Sheet:
    """A datasheet's models of kernels and of collectives on the way forward."""

    compute: RooflineCompute
    comm: RooflineComm

    @classmethod
    def load(cls, name: str) -> "Sheet":
        """Load a datasheet by its name.

        Raises:
            UserError: there is none of that name.
        """
        models = CostModels.load(name)
        compute, comm = models.compute, models.forward
        if not (name.startswith(_SHEET) and isinstance(compute, RooflineCompute) and isinstance(comm, RooflineComm)):
            raise UserError(f"model={name} is no datasheet; calibrate one, such as model=roofline:h100")
        return cls(compute, comm)

    def corrected(self, points: Sequence[Point]) -> "Sheet":
        """Correct the datasheet by points."""
        kernels = [one for one in points if isinstance(one, KernelPoint)]
        exchanges = [one for one in points if isinstance(one, ExchangePoint)]
        return Sheet(with_kernels(self.compute, kernels), with_exchanges(self.comm, exchanges))

    def ms(self, point: Point) -> float:
        """Predict the ms of a call or a collective."""
        return self.compute.point_ms(point) if isinstance(point, KernelPoint) else self.comm.point_ms(point)


@dataclass(frozen=True)
@checked
class Calibrate:
    """Everything `neuroshard calibrate` needs.

    Attributes:
        traces: files that PyTorch's profiler wrote (record_shapes=True), of one rank each; the more ranks, the better
            are collectives told from waiting.
        out: directory for the calibrated datasheet; model=DIRECTORY takes it.
        model: the datasheet of the GPU that is most like the one of the traces, roofline:NAME.
    """

    traces: Annotated[tuple[PathName, ...], Meta(min_length=1)]
    out: PathName
    model: str

    def run(self) -> "CalibrateResult":
        """Read the traces, correct the datasheet, write the points.

        Raises:
            UserError: there is no such datasheet, a file is no trace, or the traces hold no call and no collective.
        """
        out = Path(self.out)
        check_place(out)
        sheet = Sheet.load(self.model)
        points = read_traces([Path(path) for path in self.traces])
        if not points.kernels and not points.exchanges:
            raise UserError(
                f"{', '.join(self.traces)}: no call of FBGEMM's with the sizes of its tensors, and no collective of "
                f"NCCL's{_why(points.skipped)}; profile training steps with record_shapes=True"
            )
        name, _, optimizer = self.model.removeprefix(_SHEET).partition("+")
        updated_by = [one.optimizer for one in points.kernels if one.backward]
        calibration = Calibration(name, optimizer or next(iter(updated_by), "sgd"), points.kernels, points.exchanges)
        with RunDirectory(out).held(["datasheet.json"]):
            calibration.save(out)
        return CalibrateResult(out, sheet, calibration, points.skipped)


@dataclass(frozen=True)
class CalibrateResult:
    """A calibrated datasheet, and how far it was off; calls of which no points were made, by why."""

    path: Path
    sheet: Sheet
    calibration: Calibration
    skipped: dict[str, int]

    def show(self, console: Console) -> None:
        """Print a row for every point, the errors on average, and what was left out."""
        points: list[Point] = [*self.calibration.kernels, *self.calibration.exchanges]
        measured = np.array([one.ms for one in points])
        calibrated, without = self.sheet.corrected(points), [[o for o in points if o is not one] for one in points]
        by_sheet = np.array([self.sheet.ms(one) for one in points])
        corrected = np.array([calibrated.ms(one) for one in points])
        left_out = np.array([self.sheet.corrected(its).ms(one) for its, one in zip(without, points, strict=True)])
        figures = (
            Column(name, justify="right") for name in ("measured ms", "datasheet", "calibrated", "from other points")
        )
        title = f"Measured, and off by, with roofline:{self.calibration.sheet}"
        grid = Grid("call or collective", *figures, title=title)
        for point, ms, *predicted in zip(points, measured, by_sheet, corrected, left_out, strict=True):
            grid.add_row(str(point), f"{ms:.3f}", *(f"{one / ms - 1:+.0%}" for one in predicted))
        console.print(grid)
        console.print(
            f"off on average: the datasheet {_error(by_sheet, measured)}, calibrated {_error(corrected, measured)}; "
            f"each point predicted from the others {_error(left_out, measured)}, as sizes that weren't measured may be",
            soft_wrap=True,
        )
        if self.skipped:
            console.print(f"left out{_why(self.skipped)}", soft_wrap=True)
        console.print(f"calibrated datasheet: model={self.path}", soft_wrap=True)


def _error(predicted: FloatArray, measured: FloatArray) -> str:
    return f"{np.abs(predicted / measured - 1).mean():.1%}"


def _why(skipped: dict[str, int]) -> str:
    """Say of which calls no points were made, and why."""
    told = [f"{count} calls: {why}" for why, count in skipped.items()]
    return f" ({'; '.join(told)})" if told else ""
