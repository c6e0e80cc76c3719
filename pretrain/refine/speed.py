"""How fast the machine was in each round."""

from collections.abc import Sequence

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.pretrain.refine.rounds import Part, Round, repeated
from neuroshard.stages.pretrain.speed import Pair, slowness_of


def slowness(rounds: Sequence[Round], part: Part) -> FloatArray:
    """(R,) how many times as long as in the typical round the part's measurements took in each, batches as one."""
    again = ((its.number, one) for its in rounds for one in repeated([its], part))
    pairs = [Pair(one.before, number, one.first_ms or 0.0, one.again_ms or 0.0) for number, one in again]
    return slowness_of(len(rounds), pairs)
