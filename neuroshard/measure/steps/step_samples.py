"""Settings and phases of timed training steps, and the ranks to measure as mirrored steps.
In a mirrored step, one process runs one rank of a larger job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import check_name
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import Count, PositiveCount
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.tasks.task import Task

# Training pipelines, each with the phases of local work (`LOCAL_PHASES`) in which exchanges begin that no rank waits
# for at once.
PIPELINES: Mapping[str, tuple[str, ...]] = {"none": (), "sparse_dist": ("input",)}
_MOST_RANKS = 8  # up to this number, all ranks of a plan are measured
PHASES = (
    "input exchange",
    "lookups",
    "output exchange",
    "dense",
    "gradient exchange",
    "backward",
    "data-parallel all-reduce",
    "data-parallel optimizer",
)
STEP, LOOKUPS_ALONE = "step", "lookups, one device after another"  # further phases of plan measurements


@dataclass(frozen=True)
@checked
class StepProtocol:
    """The settings for timing training steps, and for the dense network that the steps contain.

    A step's time depends not only on the plan, but also on the places of memory allocations and on the order in which
    models were built (steps of equal plans differed by a fifth). So freed memory is kept, and every plan is built again
    in each of `builds` groups of new processes, each time in another order. Within a build the plans alternate: in each
    of `turns` rounds every plan, in a new random order, trains one untimed step and then `steps` steps that are timed
    together; all ranks start at once.

    Attributes:
        builds: number of times that the models of all plans are set up, in fresh processes and a new order; larger
            values reduce noise and take longer; search ignores this setting and uses passes.
        turns: number of times that each plan is timed after each set-up of the models; the plans alternate in random
            order; larger values reduce noise and take longer.
        steps: number of training steps that are timed together, after one untimed step, each time that a plan is timed;
            larger values take longer.
        dense: list of widths of the hidden layers of the dense network that stands in for yours, such as [64]; [] only
            adds up the outputs of the tables, without a dense network.
        pipeline: none | sparse_dist: training pipeline; none finishes one batch before the next, and sparse_dist
            (TorchRec's TrainPipelineSparseDist) sends the indices of a batch during the previous step.
        ballast: number of rows of a square matrix that the device multiplies by itself in every step, to imitate a
            larger dense network (8192 rows take about 23 ms on an H100); 0 multiplies no matrix.
    """

    builds: PositiveCount = 6
    turns: PositiveCount = 8
    steps: PositiveCount = 3
    dense: tuple[PositiveCount, ...] = (64,)
    pipeline: str = "none"
    ballast: Count = 0

    def __post_init__(self) -> None:
        check_name("pipeline", self.pipeline, PIPELINES)

    def remarks(self, tasks: Iterable[Task]) -> tuple[Message, ...]:
        """Return warnings about tasks that count memory for another training pipeline than the timed steps use.
        A training pipeline is, for example, sparse_dist. Tasks with the same pipeline share one warning.
        """
        counted = dict.fromkeys(task.memory.pipeline for task in tasks)
        return tuple(
            Message(
                "steps-pipeline-differs",
                f"steps are measured with pipeline={self.pipeline}",
                limit=f"the task counts memory for memory.pipeline={other}"
                + ("" if other in PIPELINES else ", but steps with this pipeline cannot be measured"),
                remedy=f"Set protocol.pipeline={other}" if other in PIPELINES else "",
            )
            for other in counted
            if other not in (None, self.pipeline)
        )

    @property
    def timing(self) -> TimingProtocol:
        """The schedule by which the steps of each plan are timed: one untimed warm-up, and then `turns` timed rounds.
        The schedule begins after the models of all plans are built.
        """
        return TimingProtocol(warmup=1, rounds=self.turns, repeats_per_round=1, flush_bytes=0)


@dataclass(frozen=True)
@checked
class Stretch:
    """A stretch: a part of the local work of a rank in a step, which belongs to one phase and contains no exchange. The
    stretch ends when the next phase or an exchange begins.

    Attributes:
        phase: one of `LOCAL_PHASES`; or `HOST`, the time to launch the step, which comes last.
        until: the collective at which the stretch ends; "" if another phase begins.
    """

    phase: str
    until: str


def measured_ranks(plan: Plan) -> tuple[int, ...]:
    """Return the ranks of a plan on which mirrored steps are measured, in ascending order.
    If the plan has at most 8 ranks, these are all ranks. Otherwise, these are only the ranks with the most or the least
    work or memory.

    Of more than 8 ranks, up to 5 are measured: the ranks that look up the most bytes, write the most outputs, have the
    most shards, have the most bytes, or look up the fewest bytes. Of equal ranks, the first is measured.
    """
    size = plan.task.topology.num_devices
    if size <= _MOST_RANKS:
        return tuple(range(size))
    held, loads = plan.device_loads, plan.device_loads.loads
    looked_up = held.totals(loads.lookups * loads.dim * loads.bytes_per_element)
    each = looked_up, held.totals(loads.output_bytes), held.counts, plan.device_bytes
    most = [int(np.argmax(amounts)) for amounts in each]
    return tuple(sorted({*most, int(np.argmin(looked_up))}))
