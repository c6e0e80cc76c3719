"""The pretrain run: fits cost models to the measurements of a data directory and writes a bundle (a directory with the
cost models and a model card).
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from neuroshard.measure.store import DataDirectory, Manifest
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.bundle import DataSummary, ModelTest, ModelTests, check_place
from neuroshard.models.datasheets import exchanges_of
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.progress import progress_bar
from neuroshard.plumbing.schema import PathName, PositiveCount, Seed, parse
from neuroshard.plumbing.threads import torch_threads
from neuroshard.stages.pretrain.fit import Fit, predicted_parts, tests_of
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.pieces import nearest, pieces_of
from neuroshard.stages.pretrain.result import Predicted, PretrainResult
from neuroshard.words.collective import Collective
from neuroshard.words.fingerprint import Fingerprint, versions
from neuroshard.words.form import call_named


@dataclass(frozen=True)
@checked
class Pretrain:
    """The settings of `neuroshard pretrain`, and the command itself (`run`).

    Attributes:
        data: a directory that neuroshard collect wrote, or in which evaluate or a verified search measured plans;
            or several directories, such as [data/cpu,data/more].
        out: directory that the fitted models are written to; later commands load this directory with model=.
        compute_model, comm_model: the kinds of the models, and how they are fitted.
        init: cost models to fine-tune: an installed name such as cpu, or a directory that `neuroshard pretrain` wrote;
            from a list, such as [cpu,models/other], the models of the most similar machine are used; None trains new
            models.
        min_finetune_samples: minimum number of training samples at which a kernel-time model given by init= is
            fine-tuned; with fewer samples, `pretrain` only fits one factor that multiplies the predictions of this
            model. Fine-tuned to a few hundred random combinations, models chose plans whose steps took longer.
        max_samples: maximum number of training samples for each model (of a kind of kernel call, a collective, or
            training steps); None uses all samples.
        max_tables: maximum number of tables in the kernel calls that are used for training; calls with more tables are
            left out, 1 uses single tables only, and None uses all calls.
        calls: list of kinds of kernel calls to fit models to, in addition to column_wise: sharding types, with the
            prefix sequence_ for sequence tables, such as [row_wise,sequence_column_wise]; None fits all kinds in the
            data.
        exchanges: name of analytic models of a GPU, such as roofline:h100 (`neuroshard models` lists them), that
            predict exchanges if the data has none, as from a machine with one device; None fits models to measured
            exchanges.
        host_tiers: name of analytic models of a GPU, such as roofline:h100 (`neuroshard models` lists them), that
            predict lookups in host memory if the data has none; None predicts such lookups only if they were measured.
        seed: seed of the initial weights and of the order of the training samples.
        allow_regression: true writes the models even if they have larger errors on the test samples than the models
            given by init=; false stops with an error instead.
    """

    data: PathName | Annotated[tuple[PathName, ...], Meta(min_length=1)]
    out: PathName
    compute_model: ComputeFitter
    comm_model: CommFitter
    init: PathName | Annotated[tuple[PathName, ...], Meta(min_length=1)] | None = None
    min_finetune_samples: PositiveCount = 1000
    max_samples: PositiveCount | None = None
    max_tables: PositiveCount | None = None
    calls: tuple[str, ...] | None = None
    exchanges: PathName | None = None
    host_tiers: PathName | None = None
    seed: Seed = 0
    allow_regression: bool = False

    def __post_init__(self) -> None:
        for name in self.calls or ():
            call_named(name)

    def run(self) -> PretrainResult:
        """Fit the models to training samples, set their error margins on validation samples, test the models on unseen
        tables, and write the bundle (a directory with the models and a model card).

        Raises:
            UserError: `out` cannot take a bundle; `data` is not a data directory; a split has no column-wise samples,
                no all-to-alls or no samples of one of `calls`; or the models of `init` are of other kinds than the
                fitted models, or better.
        """
        check_place(Path(self.out))
        with RunDirectory(Path(self.out)).held(["bundle.json"]), torch_threads(1), progress_bar() as bars:
            starts = [CostModels.load(path) for path in _several(self.init)]
            given, margin = ({}, None) if self.exchanges is None else exchanges_of(self.exchanges)
            learning = self.seed, self.min_finetune_samples, given, margin, self.host_tiers, bars
            fit = Fit(self.compute_model, self.comm_model, *learning)
            for start_models in starts:
                fit.check(start_models)
            directories = [DataDirectory.at(Path(path)) for path in _several(self.data)]
            manifest = _common(directories)
            if given and any(m.repeats for directory in directories for m in fastest(directory.comm().each())):
                raise UserError(
                    "exchanges-already-measured",
                    f"exchanges={self.exchanges} is set, but data contains measured exchanges",
                    limit="the setting 'exchanges' is only for data without measured exchanges",
                    remedy=f"Leave out exchanges={self.exchanges}",
                )
            calls = None if self.calls is None else [call_named(name) for name in self.calls]
            needed = () if given else (Collective.ALL_TO_ALL,)
            found = Measured.of(directories, calls, needed).limited(self.max_samples, self.max_tables)
            start = nearest(starts, found.level.parts)
            measured = found.fittable(() if start is None else pieces_of(start))
            fitted = fit.learned(measured) if start is None else start.update(measured, fit)
            after = predicted_parts(fitted, measured, "test")
            metrics = tests_of(fitted, after, measured)
            before = {} if start is None else predicted_parts(start, measured, "test")
            if start is not None and not self.allow_regression:
                self._check_better(start.name, before, after, metrics)
            card = self._card(manifest, measured, metrics, start)
            save_or_keep(Path(self.out), fitted, card)
        mape = {part: predicted.relative_error() for part, predicted in before.items()}
        left_out = {part: sizes for part, sizes in found.sizes.items() if part not in measured.sizes}
        return PretrainResult(Path(self.out), metrics, mape, left_out)

    def _check_better(
        self,
        start: str | None,
        before: dict[str, Predicted],
        after: dict[str, Predicted],
        metrics: dict[str, ModelTest],
    ) -> None:
        """Raise UserError if the new models predict some part of a step clearly worse than the earlier models do.
        A part is predicted clearly worse if the mean relative error on the test samples is more than 1.1 times the
        earlier error, and if a paired t-test finds that the difference is significant.
        """
        worse = [
            f"{part} {metrics[part].test.mape:.1%} instead of {predicted.relative_error():.1%} "
            f"(noise of the measurements {metrics[part].noise_mean:.1%})"
            for part, predicted in before.items()
            if after[part].is_beaten_by(predicted)
        ]
        if worse:
            raise UserError(
                "pretrain-models-worse",
                f"the fitted cost models have larger errors than init={start} on the same test samples: "
                f"{', '.join(worse)}",
                limit=f"nothing was written to the directory '{self.out}'",
                remedy=f"Do one of these: collect more samples on a quieter machine; use the cost models '{start}' "
                "unchanged; or set allow_regression=true to write the fitted cost models anyway",
            )

    def _card(
        self, manifest: Manifest, measured: Measured, metrics: dict[str, ModelTest], start: CostModels | None
    ) -> Card:
        """Return the model card: hardware, versions, data, settings and test results."""
        compute, comm = measured.columns, measured.all_to_alls
        return Card(
            hardware=parse(manifest.hardware, Fingerprint, f"hardware of {_several(self.data)[0]}"),
            versions=versions() | manifest.versions,
            data=DataSummary(
                directory=" and ".join(Path(path).name for path in _several(self.data)),
                seed=manifest.seed,
                compute_samples=compute.sizes,
                comm_samples=comm.sizes,
                batch_sizes=tuple(sorted(filter(None, measured.batch_sizes))),
                num_devices=tuple(sorted({m.sample.num_devices for m in comm.everything})),
                other_samples=measured.sizes,
            ),
            training={
                "compute_model": type(self.compute_model).__name__,
                "comm_model": type(self.comm_model).__name__,
                "settings": {name: value for name, value in asdict(self).items() if name != "out"},
            }
            | ({} if start is None else {"digest": start.digest})
            | ({} if measured.slowness is None else {"slowness": measured.slowness}),
            metrics=ModelTests.of(metrics),
            moved_gb_per_s=compute.moved_gb_per_s,
        )


def _common(directories: Sequence[DataDirectory]) -> Manifest:
    """Return the manifest of the first of several data directories. A manifest describes the hardware, versions and
    settings of the measurements. All directories must have been measured on the same type of machine.

    Raises:
        UserError: the machines differ, or a directory is not a data directory.
    """
    first, *others = (directory.manifest() for directory in directories)
    here = parse(first.hardware, Fingerprint, f"hardware of {directories[0].path}")
    for directory, other in zip(directories[1:], others, strict=True):
        if not here.same_hardware(other.hardware):
            raise UserError(
                "data-hardware-differs",
                f"the data in '{directory.path}' were measured on other hardware than the data in "
                f"'{directories[0].path}'",
                limit="cost models are fitted to data from one type of machine",
                remedy="Set data to directories that were measured on the same hardware",
            )
    return first


def _several(paths: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the paths as a tuple; a single path may be given as text, and None means no paths."""
    return (paths,) if isinstance(paths, str) else paths or ()


def save_or_keep(path: Path, models: CostModels, card: Card) -> None:
    """Write the bundle (the fitted models and the model card) to `path`. If this fails, write the bundle to a temporary
    directory, so that the training is not lost.

    Raises:
        UserError: the bundle could not be written to `path`; the error names the other directory.
    """
    try:
        save_bundle(path, models, card)
        return
    except OSError as error:
        what = f"the model bundle can't be written to the directory '{path}' ({error.strerror or error})"
    unchanged, kept = "the earlier content of this directory is unchanged", None
    try:
        kept = Path(tempfile.mkdtemp(prefix="neuroshard-"))
        save_bundle(kept, models, card)
    except OSError:
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
        raise UserError(
            "bundle-lost",
            what,
            limit=f"{unchanged}, but the fitted cost models are lost, because writing to the directory "
            f"'{tempfile.gettempdir()}' failed, too",
            remedy="Make room on the disk, or choose another directory with out=DIRECTORY; then run "
            "`neuroshard pretrain` again",
        ) from None
    raise UserError(
        "bundle-kept-elsewhere",
        what,
        limit=f"{unchanged}, and the fitted cost models are in the directory '{kept}'",
        remedy=f"Make room on the disk, and move the files from '{kept}' to '{path}'",
    )
