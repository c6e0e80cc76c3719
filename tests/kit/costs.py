"""Costs of plans made from given numbers, in tests."""

import numpy as np

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, Cost, Part, When


def cost_of(compute, forward, backward, margin=None):
    """Make the cost of a plan from the ms (D,) of each part on each device; `margin` (D,) is that of compute."""
    margins = (None, None, None) if margin is None else (margin, np.zeros_like(margin), np.zeros_like(margin))
    named = zip((COMPUTE, FORWARD, BACKWARD), (compute, forward, backward), margins, strict=True)
    return Cost(tuple(Part(name, When[name.upper()], ms, its) for name, ms, its in named))
