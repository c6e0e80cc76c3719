"""How near published measurements are to a cost that is arithmetic on a datasheet."""

from enum import IntEnum


class Coverage(IntEnum):
    """How near published points are to a cost.

    Attributes:
        COVERED: between points of the same kind of device and of call.
        EXTRAPOLATED: beyond them, or they are of a relative: another GPU, another type of weights.
        GUESSED: no point is of such a call.
    """

    COVERED = 0
    EXTRAPOLATED = 1
    GUESSED = 2

    def __str__(self) -> str:
        return self.name.lower()
