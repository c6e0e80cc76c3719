"""The refine run: searches propose, hardware answers, models learn; round by round, until the budget is spent."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from rich.progress import Progress

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import is_follower
from neuroshard.lab.recorder import meters_of
from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.trust import DataSummary, versions_caveat
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.plumbing.schema import NonNegative, PathName, PositiveCount, Seed, parse
from neuroshard.plumbing.threads import blas_threads
from neuroshard.records import DataDirectory, Manifest
from neuroshard.records.run_directory import RunDirectory
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.records.store import MEASURED
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.pretrain.fit import Fit
from neuroshard.stages.pretrain.fitting import CommFitter, ComputeFitter
from neuroshard.stages.pretrain.measurements import SplitMeasurements
from neuroshard.stages.pretrain.refine.candidates import Candidates, DrawsCalls, DrawsExchanges, RoundSamples
from neuroshard.stages.pretrain.refine.refined import Refined
from neuroshard.stages.pretrain.refine.rounds import Round, Shares, rounds_in, well_predicted
from neuroshard.stages.pretrain.refine.run_samples import RunSamples
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions
from neuroshard.words.placement import Tier

Minutes = Annotated[float, Meta(gt=0, le=1e6)]
_DEFAULT = 200


@dataclass(frozen=True)
class Decided:
    """A budget that a clock decided: measurements in all, from how long some of them took."""

    measurements: PositiveCount
    measured: PositiveCount
    seconds: NonNegative


@dataclass(frozen=True)
@checked
class Refine:
    """Everything `neuroshard refine` needs.

    Attributes:
        model: where the models start: installed (`neuroshard models`), or a bundle's directory.
        tasks: whose plans the models are to predict well.
        searchers: what proposes plans; those that are alike count once. Each proposes those too that it finds where it
            takes every predicted gain for true.
        hardware: what answers.
        calls, exchanges: how random combinations and exchanges are drawn.
        compute_model, comm_model: the kinds of the models, and how they are fitted further.
        shares: what a round's measurements are spent on.
        samples: kernel calls and exchanges to measure, second measurements included; None: as many as minutes allow, or
            200.
        minutes: to spend, about; converted to samples at the first round's rate; None: samples count.
        enough: times the noise: a run ends early when a round's proposals are predicted so well; 0 spends the whole
            budget.
        seed: fixes everything that is not measured.
        out: directory for the bundle and all measurements; a run that was stopped resumes there.
        clock: what minutes are counted with.
    """

    model: PathName
    tasks: tuple[Task, ...]
    searchers: Sequence[Searcher]
    hardware: Hardware
    calls: DrawsCalls
    exchanges: DrawsExchanges
    compute_model: ComputeFitter
    comm_model: CommFitter
    out: PathName
    shares: Shares = field(default_factory=Shares)
    samples: PositiveCount | None = None
    minutes: Minutes | None = None
    enough: NonNegative = 1.5
    seed: Seed = 0
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.samples is not None and self.minutes is not None:
            raise UserError(f"refine: samples={self.samples} and minutes={self.minutes:g} are both given; give one")

    def run(self) -> Refined | None:
        """Refine the models, or go on where a run in `out` was stopped; None in processes that only take part.

        Raises:
            UserError: the models can't be fitted further or can't serve the tasks, this is other hardware than the
                tasks are for or the run was begun on, nothing could be measured, or `out` holds another run.
            InfeasibleError: no task has a plan.
        """
        start = CostModels.load(self.model)
        self._fit.check(start)
        for task in self.tasks:
            start.check(task)
            self.hardware.check_hosts(task.topology)
        self._candidates.check(start)
        self.hardware.check_tiers(Tier(tier) for tier in self.calls.tiers)
        self.hardware.check()
        if is_follower():
            self.hardware.follow()
            return None
        directory = RunDirectory(Path(self.out))
        with directory.held(), blas_threads(1), progress_bar() as progress:
            if caveat := versions_caveat(start.versions, start.hardware):
                printer(progress)(f"warning: the models {self.model!r} were {caveat}")
            done, began = rounds_in(Path(self.out)).read(), self.clock()
            first = None if done else self._choose(done, start)  # tasks without a plan leave nothing behind
            directory.begin(self._depends(start), self.tasks)
            records = DataDirectory(directory.path / MEASURED)
            manifest = Manifest.of_plans(self.hardware.fingerprint, asdict(self.hardware), self.seed)
            records.begin(manifest, self._candidates.recorded)
            with meters_of(self.hardware, printer(progress)) as meters:
                samples = RunSamples.of(records, self.hardware, meters, self.seed)
                meters.join(task.topology for task in self.tasks)
                return self._refined(start, done, first, samples, progress, began)

    def _refined(
        self,
        start: CostModels,
        done: Sequence[Round],
        first: RoundSamples | None,
        samples: RunSamples,
        progress: Progress,
        began: float,
    ) -> Refined:
        """Measure all rounds after those that are done, the first maybe chosen already; then finish with the bundle."""
        rounds, chosen = list(done), first
        while (measurements := self._next(rounds)) > 0:
            advance = partial(progress.advance, progress.add_task(f"round {len(rounds) + 1}", total=measurements))
            models = samples.learned(self._fit, start, rounds)
            chosen = chosen or self._choose(rounds, models, *samples.known(rounds))
            one = Round(len(rounds), measurements, *samples.measure(rounds, chosen, models, advance))
            rounds.append(one)
            self._decide(rounds, int(sum(task.completed for task in progress.tasks)), self.clock() - began)
            rounds_in(Path(self.out)).keep(one.number, one)
            chosen = None
        return self._finished(start, rounds, samples)

    def _finished(self, start: CostModels, rounds: Sequence[Round], samples: RunSamples) -> Refined:
        """Say what ended the run, and write the bundle, if it wasn't."""
        noise = f"the last round's proposals were predicted within {self.enough:g} times the noise"
        why = noise if well_predicted(rounds, self.enough) else "the budget is spent"
        path = Path(self.out)
        result = Refined(path, path / "models", tuple(rounds), why)
        if not (result.models / "bundle.json").exists():
            models = samples.learned(self._fit, start, rounds)
            result.save()
            save_bundle(result.models, models, self._card(start, result, samples))
        return result

    def _next(self, rounds: Sequence[Round]) -> int:
        """Count the measurements of the next round; none if the run is over."""
        if well_predicted(rounds, self.enough):
            return 0
        total, most = self._total(), self.shares.measurements
        return most if total is None else min(most, total - sum(one.measurements for one in rounds))

    def _total(self) -> int | None:
        """Count the measurements of a run in all; None until a round has shown how many fit in the minutes.

        Raises:
            UserError: what was decided is damaged.
        """
        if self.minutes is None:
            return self.samples or _DEFAULT
        path = Path(self.out) / "budget.json"
        return parse(read_json(path, "budget"), Decided, f"budget {path}").measurements if path.exists() else None

    def _decide(self, rounds: Sequence[Round], measured: int, seconds: float) -> None:
        """Decide an open budget by how long this process took for so many measurements; 0 decide nothing."""
        if self._total() is not None or not measured or self.minutes is None:
            return
        spent = sum(one.measurements for one in rounds)
        fitting = int(self.minutes * 60 * measured / max(seconds, 1e-9))
        decided = Decided(min(max(spent, fitting), 1 << 31), measured, seconds)
        write_json(Path(self.out) / "budget.json", asdict(decided))

    def _choose(
        self,
        rounds: Sequence[Round],
        models: CostModels,
        calls: Sequence[ComputeSample] = (),
        exchanges: Sequence[CommSample] = (),
    ) -> RoundSamples:
        """Choose what the round after these, which measured such samples, measures first."""
        rng = np.random.default_rng([self.seed, len(rounds)])
        return self._candidates.of_round(self._next(rounds), models, calls, exchanges, rng)

    @property
    def _fit(self) -> Fit:
        return Fit(self.compute_model, self.comm_model, self.seed)

    @property
    def _fitters(self) -> dict[str, Any]:
        return {"compute_model": _described(self.compute_model), "comm_model": _described(self.comm_model)}

    @cached_property
    def _candidates(self) -> Candidates:
        every = [one for searcher in self.searchers for one in (searcher, searcher.believing())]
        different = tuple(one for i, one in enumerate(every) if one not in every[:i])
        return Candidates(
            self.tasks, different, self.calls, self.exchanges, self.shares, self.hardware.devices_per_host
        )

    def _depends(self, start: CostModels) -> dict[str, Any]:
        """Collect what measurements depend on, besides the tasks."""
        searchers = self._candidates.searchers
        return {
            "model": self.model,
            "reads": [*([start.digest] if start.digest else []), *(one for s in searchers for one in s.reads())],
            "searchers": [_described(one) for one in searchers],
            **self._fitters,
            "calls": _described(self.calls),
            "exchanges": _described(self.exchanges),
            "shares": asdict(self.shares),
            "samples": self.samples,
            "minutes": self.minutes,
            "enough": self.enough,
            "seed": self.seed,
        }

    def _card(self, start: CostModels, result: Refined, samples: RunSamples) -> Card:
        calls, exchanges = samples.calls.measured(result.rounds), samples.exchanges.measured(result.rounds)
        data = DataSummary(
            directory=result.path.name,
            seed=self.seed,
            compute_samples=SplitMeasurements.of(calls).sizes,
            comm_samples=SplitMeasurements.of(exchanges).sizes,
            batch_sizes=tuple(sorted({m.sample.batch_size for m in calls} | {m.sample.batch_size for m in exchanges})),
            num_devices=tuple(sorted({m.sample.num_devices for m in exchanges})),
        )
        training = {
            "refined_from": self.model,
            "digest": start.digest,
            **self._fitters,
            "measurements": sum(one.measurements for one in result.rounds),
            "rounds": len(result.rounds),
            "ended": result.why,
        }
        return Card(self.hardware.fingerprint, versions(), data, training)


def _described(component: Any) -> dict[str, Any]:
    """Describe a component by its settings, and its class."""
    settings: dict[str, Any] = asdict(component) if is_dataclass(component) and not isinstance(component, type) else {}
    return settings | {"class": type(component).__name__}
