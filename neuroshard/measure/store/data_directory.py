"""A data directory: `manifest.json`, `tables.parquet`, and Parquet chunks under `compute/`, `comm/` and `local/`.

Chunks are written atomically, so a killed run resumes with the first missing chunk. Repeated measurements are stored in
additional chunks; nothing is replaced, and the fastest measurement of each sample counts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from neuroshard.measure.store._parquet_schema import (
    COMM_CODEC,
    LOCAL_CODEC,
    RowCodec,
    compute_codec,
    read_tables,
    tables_rows,
)
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.run_directory import RunDirectory, begun_otherwise, check_same, write_own
from neuroshard.measure.store.samples import CommSample, ComputeSample, LocalSample, Measurement, Sample
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.parquet import read_rows, read_table, write_table
from neuroshard.plumbing.schema import Seed, of_format, parse, shown
from neuroshard.tables import Table
from neuroshard.words.fingerprint import Fingerprint, versions

_FORMAT = "neuroshard-data-2"
_NAME = "manifest.json"
_SAMPLES = "samples"
_TABLES = "tables.parquet"
_CHUNK = re.compile(r"part-\d{5,}\.parquet")
MEASURED = "measured"  # data directory inside the directory of a run that measures plans
_MEASURE_AGAIN = "Delete the file, and repeat the same `neuroshard collect` command to measure its samples again"
_RESTORE = "Restore the file from a copy, or delete the directory and run `neuroshard collect` again"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Manifest:
    """The hardware, versions and settings of a run that measures samples; the manifest is stored in `manifest.json`.

    Attributes:
        hardware: the fields of the machine's `Fingerprint`.
        versions: versions of Python and of the packages that affect times, at the start of the run.
        config: every setting that decides what is measured; a run can be resumed only with equal settings.
        seed: seed of the run.
    """

    hardware: dict[str, Any]
    versions: dict[str, str]
    config: dict[str, Any]
    seed: Seed

    @classmethod
    def of_plans(cls, here: Fingerprint, hardware: Mapping[str, Any]) -> "Manifest":
        """Return the manifest of a run that measures plans.
        The run holds out samples for validation, not tables, because the tables of a plan are fixed.
        """
        return cls(asdict(here), versions(), {**hardware, "held_out": _SAMPLES}, 0)

    @property
    def holds_out_tables(self) -> bool:
        """True if the run holds out tables for testing: no table of the test samples occurs in other samples."""
        return self.config.get("held_out") != _SAMPLES

    def save(self, directory: Path) -> None:
        """Write the manifest into a data directory."""
        write_json(directory / _NAME, {"format": _FORMAT} | asdict(self))

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Return the manifest of a data directory; raise UserError if the manifest is missing or malformed."""
        path = directory / _NAME
        where = f"data manifest {path}"
        return parse(of_format(read_json(path, "data manifest"), _FORMAT, where), cls, where)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return True if `directory` has a manifest, because a run that measures was started there."""
        return (directory / _NAME).exists()

    def check_hardware(self, here: Fingerprint, directory: Path) -> None:
        """Raise UserError if the data in the directory was measured on other hardware than this machine's.
        `here` describes the hardware of this machine.
        """
        if not here.same_hardware(self.hardware):
            there = f"{_text(self.hardware.get('kind'))} ({_text(self.hardware.get('device'))})"
            raise UserError(
                "data-other-hardware",
                f"the data in the directory '{directory}' was measured on {there}",
                limit=f"this machine is {here.kind} ({here.device}), and a directory has data of one type of machine",
                remedy="Choose another directory with out=DIRECTORY",
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same when the run is resumed."""
        return self.config | {"seed": self.seed}


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


@dataclass(frozen=True)
class Chunks(Generic[Sample]):
    """The measurements of one type of sample in a data directory, in numbered chunks."""

    directory: Path
    codec: RowCodec[Sample]

    def path(self, number: int) -> Path:
        """Return the path of chunk `number`."""
        return self.directory / f"part-{number:05d}.parquet"

    def has(self, number: int) -> bool:
        """Return True if chunk `number` is complete."""
        return self.path(number).exists()

    @property
    def end(self) -> int:
        """The number for the next chunk: the first number after all existing chunks."""
        return 1 + max((int(path.stem.removeprefix("part-")) for path in self._paths), default=-1)

    def write(self, number: int, measurements: Sequence[Measurement[Sample]]) -> None:
        """Write chunk `number` atomically."""
        write_table(self.path(number), self.codec.table(measurements))

    def read(self) -> list[Measurement[Sample]]:
        """Return the measurements of all chunks, in order.
        If a sample was measured repeatedly, only the fastest measurement is returned, as in `fastest`.

        Raises:
            UserError: a chunk is corrupt.
        """
        return fastest(self.each())

    def each(self) -> list[list[Measurement[Sample]]]:
        """Return one list for each chunk, in order, with all measurements of the chunk.
        Raise UserError if a chunk is corrupt.
        """
        return [self._read(path) for path in self._paths]

    @property
    def _paths(self) -> list[Path]:
        """The paths of all chunks, in order; files with other names, such as copies made by a user, are left out."""
        return sorted(path for path in self.directory.glob("part-*.parquet") if _CHUNK.fullmatch(path.name))

    def _read(self, path: Path) -> list[Measurement[Sample]]:
        table = _read_parquet(path, read_table, _MEASURE_AGAIN)
        try:
            return self.codec.measurements(table)
        except UserError as error:
            raise error.at(str(path)).changed(remedy=_MEASURE_AGAIN) from None
        except ValueError as error:
            raise UserError(
                "data-chunk-malformed",
                "the file does not contain measurements",
                where=str(path),
                limit=str(error),
                remedy=_MEASURE_AGAIN,
            ) from None


@dataclass(frozen=True)
class DataDirectory:
    """A directory with the data of one collect run, or of one run that measures plans."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> "DataDirectory":
        """Return the data directory at `path`.
        If `path` belongs to an evaluate or search run, return the data directory inside `path` with the run's
        measurements.
        """
        return cls(path if Manifest.exists(path) or not Manifest.exists(path / MEASURED) else path / MEASURED)

    def begin(self, manifest: Manifest, tables: Sequence[Table]) -> None:
        """Start a run in this directory, or check that a run that was started in this directory can be resumed.

        Raises:
            UserError: the run has other hardware, settings or tables; or there is another file of tables.
        """
        if Manifest.exists(self.path):
            begun = self.manifest()
            begun.check_hardware(Fingerprint(**manifest.hardware), self.path)
            check_same(self.path, begun.settings, manifest.settings)
            if not self._holds(tables):
                raise begun_otherwise(self.path, "other tables")
            return
        RunDirectory(self.path).check_free()
        write_own(self.path / _TABLES, partial(self.write_tables, tables), partial(self._holds, tables))
        manifest.save(self.path)

    def _holds(self, tables: Sequence[Table]) -> bool:
        """Return True if the tables that are stored in this directory equal `tables`."""
        return list(self.tables().values()) == list(tables)

    def write_tables(self, tables: Sequence[Table]) -> None:
        """Write `tables`, which are all tables that are measured in this directory.
        Call this method before the measurements are written.
        """
        write_table(self.path / _TABLES, tables_rows(tables))

    def manifest(self) -> Manifest:
        """Return the manifest of this directory."""
        return Manifest.load(self.path)

    def tables(self) -> dict[str, Table]:
        """Return the measured tables, by name, with the widths that `tables.parquet` stores."""
        path = self.path / _TABLES
        rows = _read_parquet(path, read_rows, _RESTORE)
        try:
            return read_tables(rows)
        except UserError as error:
            raise error.at(str(path)).changed(remedy=_RESTORE) from None

    def compute(self) -> Chunks[ComputeSample]:
        """Return the chunks with the measurements of kernel calls."""
        return Chunks(self.path / "compute", compute_codec(self.tables()))

    def comm(self) -> Chunks[CommSample]:
        """Return the chunks with the measurements of exchanges."""
        return Chunks(self.path / "comm", COMM_CODEC)

    def local(self) -> Chunks[LocalSample]:
        """Return the chunks with the measurements of local work in training steps."""
        return Chunks(self.path / "local", LOCAL_CODEC)


def _read_parquet(path: Path, read: Callable[[Path, str], _Read], remedy: str) -> _Read:
    """Return the content of a file in a data directory.
    If the file is damaged, raise UserError with the remedy `remedy`.
    """
    if not path.exists():
        raise UserError(
            "data-file-missing",
            f"the data file {path} does not exist",
            remedy=f"Check that {path.parent} is a data directory, such as `neuroshard collect` makes",
        )
    try:
        return read(path, "data file")
    except UserError as error:
        raise error.changed(remedy=remedy) from None
