"""What a data directory holds and how it came about."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import Seed, of_format, parse, shown
from neuroshard.words.fingerprint import Fingerprint, versions

_FORMAT = "neuroshard-data-1"
_NAME = "manifest.json"
_SAMPLES = "samples"


@dataclass(frozen=True)
class Manifest:
    """The circumstances of a collect run.

    Attributes:
        hardware: the machine, as `Fingerprint.to_json` gives it.
        versions: of Python and the packages that a timing depends on, when the run was begun.
        config: every setting that decides what is measured; a run goes on only with the same ones.
        seed: of the run.
    """

    hardware: dict[str, Any]
    versions: dict[str, str]
    config: dict[str, Any]
    seed: Seed

    @classmethod
    def of_plans(cls, here: Fingerprint, hardware: Mapping[str, Any], seed: int = 0) -> "Manifest":
        """Of a run that measures plans on hardware with these settings; of given tables it holds out samples only."""
        return cls(here.to_json(), versions(), {**hardware, "held_out": _SAMPLES}, seed)

    @property
    def holds_out_tables(self) -> bool:
        """Whether samples to test with are of tables that no other samples are of."""
        return self.config.get("held_out") != _SAMPLES

    def save(self, directory: Path) -> None:
        """Write it into a data directory."""
        write_json(directory / _NAME, {"format": _FORMAT} | asdict(self))

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """The manifest of a data directory.

        Raises:
            UserError: there is none, or it is malformed.
        """
        path = directory / _NAME
        where = f"data manifest {path}"
        return parse(of_format(read_json(path, "data manifest"), _FORMAT, where), cls, where)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether a run was begun in `directory`."""
        return (directory / _NAME).exists()

    def check_hardware(self, here: Fingerprint, directory: Path) -> None:
        """Raise UserError unless the directory was measured on hardware like `here`."""
        if not here.same_hardware(self.hardware):
            there = f"{_text(self.hardware.get('kind'))} ({_text(self.hardware.get('device'))})"
            raise UserError(
                f"{directory} was measured on {there}, this is {here.kind} ({here.device}); give another out=DIRECTORY"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What a run that goes on must have in common with it."""
        return self.config | {"seed": self.seed}


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)
