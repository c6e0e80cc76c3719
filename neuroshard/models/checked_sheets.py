"""How near datasheets come to the published points that they stand on, and to points that are left out."""

from dataclasses import dataclass, replace

import numpy as np

from neuroshard.models.cost_models import CostModels
from neuroshard.models.published_points import Curves, KernelPoint, Widths, kernel_points, rising
from neuroshard.models.roofline import FORWARD_CALL_MS, RooflineComm, RooflineCompute
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.grouping import grouped


@dataclass(frozen=True, eq=False)
class Check:
    """Published times of one kind beside predicted ones, ms: (P,) each.

    Attributes:
        kind: such as "alltoall, 8 devices".
        what: (P,) each point, in words.
        published, predicted: (P,) ms.
        left_out: (P,) ms as predicted from the other points; NaN of the first and last of a curve, and where a figure
            was calibrated on the point by hand.
    """

    kind: str
    what: tuple[str, ...]
    published: FloatArray
    predicted: FloatArray
    left_out: FloatArray

    def __str__(self) -> str:
        seen, left_out = (np.abs(ms / self.published - 1) for ms in (self.predicted, self.left_out))
        told = f"{len(self.what)} published, off by {seen.mean():.1%} on average, {seen.max():.1%} at most"
        if np.isnan(left_out).all():
            return f"{told}; no test: the datasheet's figures were set by such points"
        return f"{told}; from the other points {np.nanmean(left_out):.1%}, {np.nanmax(left_out):.1%}"


def checks(models: CostModels) -> tuple[Check, ...]:
    """Every kind of point that there is of a datasheet: kernels of its own GPU, and the collectives that it takes."""
    compute, comm = models.compute, models.forward
    assert isinstance(compute, RooflineCompute)
    assert isinstance(comm, RooflineComm)
    assert models.name is not None
    sheet = models.name.partition(":")[2].partition("+")[0]
    return (*_of_kernels(compute, sheet), *_of_curves(comm.curves))


def _of_kernels(model: RooflineCompute, sheet: str) -> list[Check]:
    its = (point for point in kernel_points() if point.sheet == sheet)
    kinds = grouped(its, lambda point: f"{'backward' if point.backward else 'forward'}, {point.home.tier.value}")
    return [_of_kind(model, kind, points) for kind, points in kinds.items()]


def _of_kind(model: RooflineCompute, kind: str, points: list[KernelPoint]) -> Check:
    times = [(point.ms, model.point_ms(point), _left_out_ms(model, point)) for point in points]
    what = tuple(f"{point.dim} columns, {point.lookups:,.0f} lookups, {point.optimizer}" for point in points)
    return Check(kind, what, *np.array(times).T)


def _left_out_ms(model: RooflineCompute, point: KernelPoint) -> float:
    rest = Widths.of((one for one in kernel_points() if one is not point), FORWARD_CALL_MS)
    return replace(model, widths=rest).point_ms(point) if rest != model.widths else float("nan")


def _of_curves(curves: Curves) -> list[Check]:
    found = []
    for collective, by_count in curves.points.items():
        for count, published in by_count.items():
            left = np.full(len(curves.sizes), np.nan)
            for i in range(1, len(left) - 1):
                without = {collective: {count: rising(np.delete(published, i))}}
                left[i] = Curves(np.delete(curves.sizes, i), without)(collective, count, curves.sizes[i : i + 1])[0]
            what = tuple(f"{size:,.0f} bytes" for size in curves.sizes)
            predicted = curves(collective, count, curves.sizes)
            found.append(Check(f"{collective}, {count} devices", what, published, predicted, left))
    return found
