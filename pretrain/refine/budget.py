"""How much is measured: as many samples as are asked for, or as fit in some minutes by the first round's watch."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import NonNegative, PositiveCount, parse
from neuroshard.stages.pretrain.refine.rounds import Round

Clock = Callable[[], float]  # seconds from some moment on
_DEFAULT = 200


@dataclass(frozen=True)
class Decided:
    """A budget that a clock decided: measurements in all, from how long some of them took."""

    measurements: PositiveCount
    measured: PositiveCount
    seconds: NonNegative


@dataclass(frozen=True)
class Budget:
    """The budget of a run: `samples`, or what `minutes` come to, written to `path` once known; with neither, 200.

    A process that measured nothing of the first round knows no rate: the next round tells it.
    """

    samples: int | None
    minutes: float | None
    path: Path

    def measurements(self) -> int | None:
        """Count the measurements of a run in all; None until a round has shown how long they take.

        Raises:
            UserError: what was decided is damaged.
        """
        if self.minutes is None:
            return self.samples or _DEFAULT
        if not self.path.exists():
            return None
        return parse(read_json(self.path, "budget"), Decided, f"budget {self.path}").measurements

    def decide(self, rounds: Sequence[Round], measured: int, seconds: float) -> None:
        """Decide an open budget by how long this process took for so many measurements; 0 decide nothing."""
        if self.measurements() is not None or not measured or self.minutes is None:
            return
        spent = sum(one.measurements for one in rounds)
        fitting = int(self.minutes * 60 * measured / max(seconds, 1e-9))
        write_json(self.path, asdict(Decided(min(max(spent, fitting), 1 << 31), measured, seconds)))


class Watch:
    """A count of what this process measures, and how long it takes; shown as a bar for each round."""

    def __init__(self, clock: Clock, progress: Progress) -> None:
        self.measured = 0
        self._clock, self._began = clock, clock()
        self._progress = progress
        self._bars: list[TaskID] = []

    @property
    def seconds(self) -> float:
        """The seconds since this watch was made."""
        return self._clock() - self._began

    def bar(self, text: str, total: int) -> None:
        """Begin the bar of another round: what is measured from now on belongs to it."""
        self._bars.append(self._progress.add_task(text, total=total))

    def advance(self, count: int) -> None:
        """Count so many more as measured."""
        self.measured += count
        for bar in self._bars[-1:]:
            self._progress.advance(bar, count)
