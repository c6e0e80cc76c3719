"""Choices of a form for each table, and sums over the tables of a form: of many choices, or of many changes of one."""

from dataclasses import dataclass

import numpy as np

from neuroshard.plumbing.arrays import BoolArray, FloatArray, IntArray

Numbers = FloatArray | IntArray | BoolArray


@dataclass(frozen=True, eq=False)
class Members:
    """The tables that each of B choices has in some form, (B, T)."""

    tables: BoolArray

    def total(self, numbers: Numbers) -> FloatArray:
        """(B, ...) the sum of such numbers (T, ...)."""
        total: FloatArray = np.tensordot(self.tables.astype(np.float64), numbers, 1)
        return total

    def largest(self, numbers: FloatArray) -> FloatArray:
        """(B, Q) the largest of such numbers (T, Q), none below 0; 0 where there are no tables.

        Choices that are looked at together differ in few tables: only those are looked at choice by choice.
        """
        always = self.tables.all(axis=0)
        sometimes = self.tables.any(axis=0) & ~always
        chosen, some, least = self.tables[:, sometimes], numbers[sometimes], numbers[always].max(axis=0, initial=0.0)
        each = (np.where(chosen, number, 0.0).max(axis=1, initial=0.0) for number in some.T)
        found: FloatArray = np.maximum(np.stack(list(each), axis=1), least)
        return found


@dataclass(frozen=True, eq=False)
class MembersAfter:
    """The tables that one choice has in some form, after each of B changes of a table alone.

    Attributes:
        before: (T,) which it has.
        table: (B,) that changes.
        more: (B,) 1 where it gets the form, -1 where it had it, 0 where neither.
    """

    before: BoolArray
    table: IntArray
    more: IntArray

    def total(self, numbers: Numbers) -> FloatArray:
        """(B, ...) the sum of such numbers (T, ...)."""
        total: FloatArray = self.before.astype(np.float64) @ numbers.reshape(len(numbers), -1)
        after = total + self.more[:, None] * numbers.reshape(len(numbers), -1)[self.table]
        return after.reshape(len(self.table), *numbers.shape[1:])

    def largest(self, numbers: FloatArray) -> FloatArray:
        """(B, Q) the largest of such numbers (T, Q), none below 0; 0 where there are no tables."""
        its = np.where(self.before[:, None], numbers, 0.0)
        where = its.argmax(axis=0)
        first = its.max(axis=0)
        its[where, np.arange(len(where))] = 0.0
        leaves = (self.table[:, None] == where) & (self.more < 0)[:, None]
        joins = np.where((self.more > 0)[:, None], numbers[self.table], 0.0)
        found: FloatArray = np.maximum(np.where(leaves, its.max(axis=0), first), joins)
        return found


@dataclass(frozen=True, eq=False)
class Forms:
    """B choices of a form for each table, (B, T)."""

    forms: IntArray

    def __len__(self) -> int:
        """How many choices these are."""
        return len(self.forms)

    def some(self, part: slice) -> "Forms":
        """Take the choices of a part."""
        return Forms(self.forms[part])

    def at(self, form: int) -> Members:
        """Which tables have a form."""
        return Members(self.forms == form)


@dataclass(frozen=True, eq=False)
class Changes:
    """One choice (T,) after each of B changes alone, (B, 2): a table and its new form."""

    before: IntArray
    changes: IntArray

    def __len__(self) -> int:
        """How many choices these are."""
        return len(self.changes)

    @property
    def forms(self) -> IntArray:
        """(B, T) the choices themselves."""
        after = np.repeat(self.before[None], len(self.changes), axis=0)
        after[np.arange(len(self.changes)), self.changes[:, 0]] = self.changes[:, 1]
        return after

    def some(self, part: slice) -> "Changes":
        """Take the choices of a part."""
        return Changes(self.before, self.changes[part])

    def at(self, form: int) -> MembersAfter:
        """Which tables have a form."""
        table, new = self.changes.T
        more = (new == form).astype(np.int64) - (self.before[table] == form)
        return MembersAfter(self.before == form, table, more)


Choices = Forms | Changes


def total_by_form(choices: Choices, numbers: Numbers) -> FloatArray:
    """(B, ...) sums over all tables of what each counts in its form, (T, F, ...)."""
    total: FloatArray = np.sum([choices.at(form).total(numbers[:, form]) for form in range(numbers.shape[1])], axis=0)
    return total
