"""Times that a user measured, as points of the kinds that are published, and the datasheet that they correct."""

from dataclasses import asdict, dataclass
from pathlib import Path

from neuroshard.models.published_points import ExchangePoint, KernelPoint, Optimizer
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import Name, of_format, parse

_FILE, _FORMAT = "datasheet.json", "neuroshard-datasheet-1"


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
    """Whether `neuroshard calibrate` wrote its points there."""
    return (directory / _FILE).is_file()
