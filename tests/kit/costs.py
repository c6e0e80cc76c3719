"""Costs made of numbers."""

import numpy as np

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, Cost, Part, When


def cost_of(compute, forward, backward, margin=None):
    """The cost of a plan whose devices (D,) take so long in each part; the margin is that of their compute."""
    margins = (None, None, None) if margin is None else (margin, np.zeros_like(margin), np.zeros_like(margin))
    named = zip((COMPUTE, FORWARD, BACKWARD), (compute, forward, backward), margins, strict=True)
    return Cost(tuple(Part(name, When[name.upper()], ms, its) for name, ms, its in named))
