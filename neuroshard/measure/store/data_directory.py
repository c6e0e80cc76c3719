"""A data directory: `manifest.json`, `tables.parquet`, and Parquet chunks under `compute/`, `comm/` and `local/`.

A killed run resumes with the first missing chunk. Repeated measurements are stored in additional chunks; nothing is
replaced, and the fastest measurement of each sample counts (`noise.fastest`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from neuroshard.measure.store._parquet_schema import (
    COMM_CODEC,
    LOCAL_CODEC,
    RowCodec,
    compute_codec,
    read_tables,
    tables_rows,
)
from neuroshard.measure.store.parts import Codec, Parts
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
MEASURED = "measured"  # data directory inside the directory of a run that measures plans
_MEASURE_AGAIN = "Delete the file, and repeat the same `neuroshard collect` command to measure its samples again"
_RESTORE = "Restore the file from a copy, or delete the directory and run `neuroshard collect` again"
Chunks: TypeAlias = Parts[Sequence[Measurement[Sample]]]  # the measurements of one type of sample


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
        """Return the manifest of a run that measures plans. The manifest records that only samples are held out for
        testing models: tables of test samples may also occur in other samples. Tables cannot be held out, because the
        plans determine the tables.
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
        """Return True if `directory` has a manifest.
        A run that measures samples writes the manifest at the start of the run.
        """
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
        """The settings of the run, including the seed. A killed run can be resumed only with equal settings."""
        return self.config | {"seed": self.seed}


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


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
        if not path.exists():
            raise UserError(
                "data-file-missing",
                f"the data file {path} does not exist",
                remedy=f"Check that {path.parent} is a data directory, such as `neuroshard collect` makes",
            )
        try:
            rows = read_rows(path, "data file")
        except UserError as error:
            raise error.changed(remedy=_RESTORE) from None
        try:
            return read_tables(rows)
        except UserError as error:
            raise error.at(str(path)).changed(remedy=_RESTORE) from None

    def compute(self) -> Chunks[ComputeSample]:
        """Return the chunks with the measurements of kernel calls."""
        return _chunks(self.path / "compute", compute_codec(self.tables()))

    def comm(self) -> Chunks[CommSample]:
        """Return the chunks with the measurements of exchanges."""
        return _chunks(self.path / "comm", COMM_CODEC)

    def local(self) -> Chunks[LocalSample]:
        """Return the chunks with the measurements of local work in training steps."""
        return _chunks(self.path / "local", LOCAL_CODEC)


def _chunks(folder: Path, rows: RowCodec[Sample]) -> Chunks[Sample]:
    """Return the chunks in a folder.
    The codec `rows` converts the rows of the chunks to measurements.
    """

    def read(path: Path) -> Sequence[Measurement[Sample]]:
        table = read_table(path, "data file")
        try:
            return rows.measurements(table)
        except UserError as error:
            raise error.at(str(path)) from None
        except ValueError as error:
            raise UserError(
                "data-chunk-malformed",
                "the file does not contain measurements",
                where=str(path),
                limit=str(error),
                remedy=_MEASURE_AGAIN,
            ) from None

    return Parts(
        folder, Codec("part", ".parquet", lambda path, of: write_table(path, rows.table(of)), read, _MEASURE_AGAIN, 5)
    )
