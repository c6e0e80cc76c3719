"""The verdict at the end of collect, pretrain and train-policy: is the result fit for use, and if not, what to do."""

from dataclasses import dataclass

from rich.console import Console

from neuroshard.plumbing.progress import print_lines


@dataclass(frozen=True)
class UseVerdict:
    """A verdict on whether the result of a command, such as a pre-trained cost model, is fit for use.

    Attributes:
        fit: True if the result can be used for the next step.
        reason: why, as a clause without a full stop.
        advice: what to do, as a clause without a full stop; empty if there is nothing to do.
    """

    fit: bool
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        """Return the verdict as one sentence: "Fit for use" or "Not fit for use", then the reason and the advice."""
        opening = "Fit for use" if self.fit else "Not fit for use"
        return ": ".join(filter(None, (opening, self.reason, self.advice))) + "."

    def show(self, console: Console) -> None:
        """Print on one line of the console whether the result is fit for use, why, and what to do."""
        print_lines(console, [str(self)])
