"""What several benchmarks need."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Made:
    """A table for readers: its cells as they are shown, and what is known of its noise, in a sentence.

    Attributes:
        machine: where it was measured; None: here.
    """

    frame: pd.DataFrame
    noise: str
    machine: str | None = None
