"""What decides between a search's best plans by measuring them, and how it is had by name."""

from typing import Protocol

from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import unknown_name
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.task import Task


class Verifier(Protocol):
    """Measures a search's finalists. Holds settings only."""

    def decided(self, searcher: Searcher, task: Task, simulator: Simulator) -> Found:
        """Find a task's finalists and measure them; the best one, with what measuring them said.

        Raises:
            InfeasibleError: the search finds no plan.
            UserError: the simulator's models can't serve the task, or its plans can't be measured here.
        """
        ...


def verifier_of(name: str, model: str, device: str, finalists: int, passes: int) -> Verifier | None:
    """What `neuroshard search verify=NAME` decides by; None where that is "none".

    Args:
        name: of a file of `conf/verify/`.
        model: name or path of cost models, whose exchanges are added where steps are measured without.
        device: "cpu" or "cuda": what plans run on.
        finalists: plans that are measured, at most.
        passes: over all of them, 2 at least.

    Raises:
        UserError: there is no such way, or a setting is out of range.
    """
    if name not in choices("verify"):
        raise unknown_name("verify", name, choices("verify"))
    given = {"verify": name, "model": model, "hardware": device, "finalists": finalists, "passes": passes}
    found: Verifier | None = instantiate_config(config_of("search", given).verify)
    return found
