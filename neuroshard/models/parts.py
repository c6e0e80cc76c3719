"""Names of what a set of cost models is made of: what metrics, margins and ranges are kept by."""

from neuroshard.plans.form import IN_COLUMNS, Call
from neuroshard.traffic import Collective

INPUT = "input"
EXCHANGES = "exchanges"  # all of them, of whatever collective
COMPUTE, FORWARD, BACKWARD = "compute", "forward", "backward"


def compute_part(call: Call) -> str:
    """Kernel calls: "compute" of columns, "compute.rows", "compute.copies", "compute.sequence_columns", and so on."""
    return COMPUTE if call == IN_COLUMNS else f"{COMPUTE}.{call.name}"


def exchange_part(direction: str, collective: Collective) -> str:
    """One collective in one direction, "forward" or "backward": alone for all-to-alls, "forward.reduce_scatter"; the
    input, which comes once in a step, is "input".
    """
    if collective is Collective.INPUT:
        return INPUT
    return direction if collective is Collective.ALL_TO_ALL else f"{direction}.{collective.name.lower()}"
