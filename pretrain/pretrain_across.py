"""The pretrain run over several machines: one compute model that they share, as a bundle to start others from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from rich.progress import Progress

from neuroshard.cost.parts import BACKWARD, COMPUTE, FORWARD, INPUT
from neuroshard.models import Card, CommModel, CostModels
from neuroshard.models.bundle import check_place
from neuroshard.models.card import ModelTest
from neuroshard.models.shared import SharedCompute
from neuroshard.models.trust import Ranges
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.progress import progress_bar
from neuroshard.plumbing.schema import PathName, PositiveCount, Seed, parse
from neuroshard.plumbing.threads import torch_threads
from neuroshard.records import DataDirectory
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.pretrain.across import Across
from neuroshard.stages.pretrain.fit_all import bar
from neuroshard.stages.pretrain.fitting import CommFitter
from neuroshard.stages.pretrain.measurements import Measured, StepExchange, columns_of
from neuroshard.stages.pretrain.pretrain import save_or_keep
from neuroshard.stages.pretrain.result import PretrainResult, predict_compute, tested
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.words.collective import Collective
from neuroshard.words.fingerprint import Fingerprint, versions


@dataclass(frozen=True)
@checked
class PretrainAcross:
    """Everything `neuroshard pretrain experiment=pretrain_across` needs; the names are those of `Pretrain`.

    Attributes:
        data: data directories, each of one machine; exchanges are learned from the first alone.
        out: where the bundle goes.
        compute_model, comm_model: the forms of the models, and how they are fitted.
        max_samples: of each kind and machine for training; None takes all.
        max_tables: in a compute sample for training; None takes all.
        init, forms, host_tiers, keep_worse: not for several machines: shared models begin from nothing, and are of
            columns in device memory.
        seed: of the initial weights and the order of samples.
    """

    data: PathName | tuple[PathName, ...]
    out: PathName
    compute_model: Across
    comm_model: CommFitter
    init: PathName | None = None
    max_samples: PositiveCount | None = None
    max_tables: PositiveCount | None = None
    forms: tuple[str, ...] | None = None
    host_tiers: PathName | None = None
    seed: Seed = 0
    keep_worse: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.data, str) or len(set(self.data)) < max(2, len(self.data)):
            raise UserError("models across machines: give two data directories or more, data=[data/one,data/other]")
        if not isinstance(self.compute_model, Across):
            raise UserError("models across machines: choose compute_model=across")
        if self.init is not None or self.forms:
            raise UserError("models across machines begin from nothing and are of columns: leave init and forms out")
        if self.host_tiers is not None:
            raise UserError(
                "models across machines are of device memory: leave host_tiers out, and add it to a machine's"
            )

    def run(self) -> PretrainResult:
        """Fit the models, test them on each machine's unseen tables, write the bundle.

        Raises:
            UserError: `out` can't hold a bundle; a directory is no data directory, or of another kind of hardware than
                the first; a split is empty, or a table is in different ones.
        """
        check_place(Path(self.out))
        with RunDirectory(Path(self.out)).held(["bundle.json"]), torch_threads(1):
            directories = [DataDirectory(Path(path)) for path in self.data]
            _check_kinds(directories)
            machines = [one.combining(self.max_tables).limited(self.max_samples) for one in columns_of(directories)]
            first = Measured.of(directories[:1], ()).limited(self.max_samples, self.max_tables)
            models = self._fitted(machines, first)
            metrics = self._tests(models.compute, machines)
            save_or_keep(Path(self.out), models, self._card(metrics))
        return PretrainResult(Path(self.out), metrics)

    def _fitted(self, machines: Sequence[SplitMeasurements], first: Measured) -> CostModels:
        """The compute model of all machines, and models of what the first one exchanges."""
        with progress_bar() as progress:
            told = bar(progress, COMPUTE, self.compute_model.epochs)
            shared = self.compute_model.fit_machines(machines, self.data, self.seed, told)
            exchanges = {one.part: self._exchange(first, one, progress) for one in first.exchanges}
        swapped = [m.sample for m in first.comm[Collective.ALL_TO_ALL].train]
        ranges = reduce(Ranges.joined, [Ranges.of([m.sample for m in one.train], swapped) for one in machines])
        both = exchanges[FORWARD], exchanges[BACKWARD]
        return CostModels(shared, *both, None, ranges, input=exchanges.get(INPUT))

    def _exchange(self, first: Measured, one: StepExchange, progress: Progress) -> CommModel:
        told = bar(progress, one.part, self.comm_model.epochs)
        return self.comm_model.fit(first.comm[one.collective], one.repeats, None, self.seed, told)

    def _tests(self, shared: Any, machines: Sequence[SplitMeasurements]) -> dict[str, ModelTest]:
        """Of each machine, by its directory: the model with its numbers, and margins of its own."""
        assert isinstance(shared, SharedCompute)
        found = {}
        for index, (name, its) in enumerate(zip(self.data, machines, strict=True)):
            model = shared.machine(index)
            margin = predict_compute(model, its.valid).margin()
            found[name] = tested(predict_compute(model, its.test), margin, its.everything)
        return found

    def _card(self, metrics: dict[str, ModelTest]) -> Card:
        """Of no machine; what is known of each stands under training."""
        return Card(
            versions=versions(),
            training={
                "compute_model": type(self.compute_model).__name__,
                "comm_model": type(self.comm_model).__name__,
                "settings": {name: value for name, value in asdict(self).items() if name != "out"},
                "machines": {name: asdict(test) for name, test in metrics.items()},
            },
        )


def _check_kinds(directories: Sequence[DataDirectory]) -> None:
    """Raise UserError unless all were measured on hardware of one kind, CPUs or GPUs."""
    kinds = [parse(one.manifest().hardware, Fingerprint, f"hardware of {one.path}").kind for one in directories]
    for directory, kind in zip(directories, kinds, strict=True):
        if kind != kinds[0]:
            raise UserError(
                f"{directory.path} was measured on {kind}, {directories[0].path} on {kinds[0]}; "
                "machines that share a model are of one kind"
            )
