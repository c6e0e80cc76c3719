"""Times that a user measured, as points such as are published, and the datasheet that they correct.

Kernels by the width of a row, forward and backward apart; the link to the host by one factor; collectives by the bytes.
Collectives that weren't measured take the typical factor of those that were.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from neuroshard.models.published_points import Curves, ExchangePoint, KernelPoint, Optimizer, Widths, typical
from neuroshard.models.roofline import RooflineComm, RooflineCompute
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import Name, of_format, parse
from neuroshard.words.placement import Tier

_FILE, _FORMAT = "datasheet.json", "neuroshard-datasheet-1"
_LAUNCHED = 0.2  # of a call's fixed time: a point that took less than that besides tells nothing of bytes


@dataclass(frozen=True)
class Calibration:
    """Measured times, and the datasheet that they correct.

    Attributes:
        sheet: its name, such as "h100".
        optimizer: that its kernels update with.
        kernels, exchanges: what was measured.
    """

    sheet: Name
    optimizer: Optimizer
    kernels: tuple[KernelPoint, ...] = ()
    exchanges: tuple[ExchangePoint, ...] = ()

    def save(self, directory: Path) -> None:
        """Write the points where `CostModels.load` finds them."""
        write_json(directory / _FILE, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def load(cls, directory: Path) -> "Calibration":
        """Read what `save` wrote.

        Raises:
            UserError: it is missing or malformed.
        """
        where = f"calibration {directory / _FILE}"
        return parse(of_format(read_json(directory / _FILE, "calibration"), _FORMAT, where), cls, where)


def is_calibration(directory: Path) -> bool:
    """Tell whether `neuroshard calibrate` wrote its points there."""
    return (directory / _FILE).is_file()


def with_kernels(compute: RooflineCompute, points: Sequence[KernelPoint]) -> RooflineCompute:
    """Return the model, corrected by calls that were measured."""
    on_device = [one for one in points if one.home.tier is Tier.DEVICE]
    forward, backward = (
        _by_width(compute, [one for one in on_device if one.backward is back]) for back in (False, True)
    )
    known = bool(forward.row_bytes and backward.row_bytes)
    link = typical([one.ms / compute.point_ms(one) for one in points if one.home.tier is not Tier.DEVICE])
    host = compute.host and replace(compute.host, link_gb_per_s=compute.host.link_gb_per_s / link)
    return replace(compute, measured=(forward, backward), host=host, published=compute.published or known)


def _by_width(compute: RooflineCompute, points: Sequence[KernelPoint]) -> Widths:
    """Compute how many times as long calls took as the model says, without their fixed time, by the bytes of a row."""
    factors: list[tuple[float, float]] = []
    for point in points:
        call_ms = compute.backward_call_ms if point.backward else compute.forward_call_ms
        if point.ms > (1 + _LAUNCHED) * call_ms:
            factors.append((point.row_bytes, (point.ms - call_ms) / (compute.point_ms(point) - call_ms)))
    return Widths.typical(factors)


def with_exchanges(comm: RooflineComm, points: Sequence[ExchangePoint]) -> RooflineComm:
    """Return the model, corrected by collectives that were measured: on one host its curves, else the network."""

    def slower(point: ExchangePoint) -> float:
        """Compute by what factor the collective took longer than the model says."""
        return point.ms / comm.point_ms(point)

    inside = [one for one in points if one.devices <= comm.devices_per_host]
    between = [slower(one) for one in points if one.devices > comm.devices_per_host]
    curves = {}
    for name, by_count in comm.curves.points.items():
        its = [one for one in inside if one.collective == name] or inside
        factors = Widths.typical((one.size_bytes, slower(one)) for one in its)(comm.curves.sizes)
        curves[name] = {count: ms * factors for count, ms in by_count.items()}
    network = comm.network_gb_per_s / typical(between)
    return replace(comm, curves=Curves(comm.curves.sizes, curves), network_gb_per_s=network)
