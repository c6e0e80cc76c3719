"""Training steps: how they are timed, and what one build of a plan took."""

from collections.abc import Mapping
from dataclasses import dataclass

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import unknown_name
from neuroshard.plumbing.schema import PositiveCount
from neuroshard.plumbing.timing import TimingProtocol

# How batches follow each other, and in which phases of local work (`LOCAL_PHASES`) something is sent that nobody waits
# for at once.
PIPELINES: Mapping[str, tuple[str, ...]] = {"none": (), "sparse_dist": ("input",)}
PHASES = (
    "input exchange",
    "lookups",
    "output exchange",
    "dense",
    "gradient exchange",
    "backward",
    "all-reduce of copies",
    "optimizer of copies",
)


@dataclass(frozen=True)
@checked
class StepProtocol:
    """How training steps are timed, and beside what dense part.

    What decides about a step besides its plan: where the allocator put its memory, and in which order models were built
    (equal plans differed by a fifth). So memory that was freed is kept, every plan is built anew in each of `builds`
    groups of fresh processes, each time in another order, and within a build the plans take turns: in each of `turns`
    rounds every plan, in a fresh random order, trains one step untimed and then `steps` that are timed together, all
    ranks starting at once.

    Attributes:
        builds: of every plan, each in fresh processes and in another order.
        turns: of every plan in a build.
        steps: that are timed together in a turn, after one that isn't.
        dense: widths of the stand-in's hidden layers over all outputs; [] only sums them up.
        pipeline: none | sparse_dist: how batches follow each other; sparse_dist: TorchRec's TrainPipelineSparseDist,
            which sends a batch's indices while the batch before it trains.
    """

    builds: PositiveCount = 6
    turns: PositiveCount = 8
    steps: PositiveCount = 3
    dense: tuple[PositiveCount, ...] = (64,)
    pipeline: str = "none"

    def __post_init__(self) -> None:
        if self.pipeline not in PIPELINES:
            raise unknown_name("pipeline", self.pipeline, PIPELINES)

    @property
    def timing(self) -> TimingProtocol:
        """The visits of one build."""
        return TimingProtocol(warmup=1, rounds=self.turns, repeats_per_round=1, flush_bytes=0)


@dataclass(frozen=True)
@checked
class BuildTimes:
    """What one build of a plan took.

    Attributes:
        step_ms: (R,) of a step, in each turn.
        phase_ms: (P,) of a step, mean over ranks and turns; waiting for other ranks included. They add up to a step.
        alone_ms: of the lookups, mean over ranks and turns, where one rank after another looks up: in a step they share
            caches and memory's bandwidth, if the ranks are processes of one machine.
        error: what stopped it; then there are no times.
    """

    step_ms: tuple[float, ...] = ()
    phase_ms: tuple[float, ...] = ()
    alone_ms: float = 0.0
    error: str | None = None
