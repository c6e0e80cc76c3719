"""Searches of which some may find no plan: the plans that were found, and the first error."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.options.option_table import Choice


@dataclass(frozen=True, eq=False)
class Attempts:
    """The plans that some searches found.

    Attributes:
        found: the plans, in the order of the searches.
        error: error of the first search that found no plan; None if every search found a plan.
    """

    found: tuple[Found, ...] = ()
    error: UserError | None = None

    @classmethod
    def of(
        cls,
        searches: Iterable[Callable[[], Found]],
        most: int | None = None,
        errors: type[UserError] = InfeasibleError,
    ) -> "Attempts":
        """Run searches in order until `most` plans are found; None runs all searches.

        Searches that raise `errors` found no plan.
        """
        found, error = list[Found](), None
        for search in searches:
            try:
                found.append(search())
            except errors as why:
                error = error or why
            if len(found) == most:
                break
        return cls(tuple(found), error)

    @classmethod
    def of_choices(cls, choices: Iterable[Choice], columns: ImprovedSearch, most: int | None = None) -> "Attempts":
        """Place the column-wise tables of choices in order, with `columns`, until `most` plans are found."""
        return cls.of((partial(_placed, choice, columns) for choice in choices), most)

    def plans(self) -> tuple[Found, ...]:
        """Return the plans; raise the first error if there are none."""
        if not self.found and self.error is not None:
            raise self.error from None
        return self.found


def _placed(choice: Choice, columns: ImprovedSearch) -> Found:
    """Find a plan with the sharding types of a choice by placing its column-wise tables with `columns`.

    Raises:
        InfeasibleError: no plan was found.
    """
    options = choice.options
    found = columns.found(options.fixed_load(choice.types), options.simulator)
    return found if options.task is options.asked else found.of(options.asked)
