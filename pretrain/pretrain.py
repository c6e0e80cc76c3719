"""The pretrain run: fit the three cost models to a data directory, write a bundle."""

import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.progress import Progress

from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.hardware.fingerprint import Fingerprint, versions
from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.bundle import check_place
from neuroshard.models.card import DataSummary, ModelName, ModelTest, ModelTests
from neuroshard.models.trust import Ranges
from neuroshard.plans.form import Form
from neuroshard.progress import progress_bar
from neuroshard.records import DataDirectory, Manifest
from neuroshard.records.samples import BACKWARD, FORWARD
from neuroshard.run_directory import RunDirectory
from neuroshard.schema import PathName, PositiveCount, Seed, parse
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter, OnEpoch, batch_sizes, check_start
from neuroshard.stages.pretrain.result import PretrainResult, margins_of, tested
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.threads import torch_threads
from neuroshard.traffic import Collective


@dataclass(frozen=True)
@checked
class Pretrain:
    """Everything `neuroshard pretrain` needs.

    Attributes:
        data: a data directory that `neuroshard collect` wrote.
        out: where the bundle goes.
        compute_model, comm_model: the forms of the models, and how they are fitted.
        init: a bundle whose models are fitted further instead of new ones; None starts from nothing.
        max_samples: of each kind for training; None takes all. Validation and test keep theirs.
        max_tables: in a compute sample for training; None takes all, 1 does without augmented combinations.
        seed: of the initial weights and the order of samples.
    """

    data: PathName
    out: PathName
    compute_model: ComputeFitter
    comm_model: CommFitter
    init: PathName | None = None
    max_samples: PositiveCount | None = None
    max_tables: PositiveCount | None = None
    seed: Seed = 0

    def run(self) -> PretrainResult:
        """Fit the three models, set their margins on validation samples, test them on unseen tables, write the bundle.

        Raises:
            UserError: `out` can't hold a bundle, `data` is no data directory, a split is empty, or `init` is of
                other forms.
        """
        check_place(Path(self.out))
        with RunDirectory(Path(self.out)).held(["bundle.json"]), torch_threads(1):
            start = None if self.init is None else CostModels.load(self.init)
            directory = DataDirectory(Path(self.data))
            manifest = directory.manifest()
            columns = [m for m in directory.compute().read() if m.sample.form is Form.COLUMNS]
            compute = SplitMeasurements.of(columns, "compute samples", directory.path)
            compute = compute.combining(self.max_tables).limited(self.max_samples)
            pooled = [m for m in directory.comm().read() if m.sample.collective is Collective.ALL_TO_ALL]
            comm = SplitMeasurements.of(pooled, "exchanges", directory.path).limited(self.max_samples)
            fitted = self._fit(compute, comm, start)
            margins = margins_of(fitted, compute, comm)
            metrics = tested(fitted, margins, compute, comm)
            card = self._card(manifest, compute, comm, metrics)
            _save(Path(self.out), replace(fitted, margins=margins), card)
        return PretrainResult(Path(self.out), metrics)

    def _fit(self, compute: SplitMeasurements, comm: SplitMeasurements, start: CostModels | None) -> CostModels:
        """The three models, without margins."""
        starts = [None] * 3 if start is None else [start.compute, start.forward, start.backward]
        check_start(starts[0], self.compute_model)
        for one in starts[1:]:
            check_start(one, self.comm_model)
        with progress_bar() as progress:
            compute_model = self.compute_model.fit(
                compute, starts[0], self.seed, _bar(progress, "compute", self.compute_model.epochs)
            )
            forward, backward = (
                self.comm_model.fit(
                    comm, direction, starts[1 + direction], self.seed, _bar(progress, name, self.comm_model.epochs)
                )
                for direction, name in ((FORWARD, "forward"), (BACKWARD, "backward"))
            )
        sizes = {*batch_sizes(compute.everything), *batch_sizes(comm.everything)}
        ranges = Ranges.of([m.sample for m in compute.train], [m.sample for m in comm.train])
        if start is not None and start.ranges is not None:
            ranges = ranges.joined(start.ranges)
        return CostModels(compute_model, forward, backward, sizes.pop() if len(sizes) == 1 else None, ranges)

    def _card(
        self,
        manifest: Manifest,
        compute: SplitMeasurements,
        comm: SplitMeasurements,
        metrics: dict[ModelName, ModelTest],
    ) -> Card:
        return Card(
            hardware=parse(manifest.hardware, Fingerprint, f"hardware of {self.data}"),
            versions=manifest.versions | versions(),
            data=DataSummary(
                directory=Path(self.data).name,
                seed=manifest.seed,
                compute_samples=compute.sizes,
                comm_samples=comm.sizes,
                batch_sizes=tuple(sorted({*batch_sizes(compute.everything), *batch_sizes(comm.everything)})),
                num_devices=tuple(sorted({len(m.sample.dims) for m in comm.everything})),
            ),
            training={
                "compute_model": type(self.compute_model).__name__,
                "comm_model": type(self.comm_model).__name__,
                "settings": {name: value for name, value in asdict(self).items() if name != "out"},
            },
            metrics=ModelTests(**metrics),
        )


def _save(path: Path, models: CostModels, card: Card) -> None:
    """Write the bundle; where that fails, elsewhere, so that the training isn't lost.

    Raises:
        UserError: it couldn't be written to `path`; says where it is instead.
    """
    try:
        save_bundle(path, models, card)
    except OSError as error:
        why = f"can't write the bundle to {path} ({error.strerror or error}); what was there before is unchanged"
        kept = _kept_elsewhere(models, card)
        if kept is None:
            raise UserError(
                f"{why}, the fitted models are lost: nor is there room in {tempfile.gettempdir()}"
            ) from None
        raise UserError(f"{why}, the fitted models are in {kept}: make room and move them") from None


def _kept_elsewhere(models: CostModels, card: Card) -> Path | None:
    """The directory for temporary files that the bundle went to; None if that can't be written to either."""
    made = []
    try:
        made.append(Path(tempfile.mkdtemp(prefix="neuroshard-")))
        save_bundle(made[0], models, card)
    except OSError:
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
        return None
    return made[0]


def _bar(progress: Progress, name: str, epochs: int) -> OnEpoch:
    task = progress.add_task(name, total=epochs)
    return lambda epoch, loss: progress.update(
        task, completed=epoch + 1, description=f"{name}: validation loss {loss:.4g}"
    )
