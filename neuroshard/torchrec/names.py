"""The names that users write for the tables of a model: plain names, or names with the path of the module in front."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from glob import escape

from torchrec.distributed.planner.types import ParameterConstraints

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.torchrec.parameters import Parameter


@dataclass(frozen=True)
class TableNames:
    """Translate table names that users write into the names in a task, which is the input of NeuroShard's search.
    `tables` is a dictionary of all tables that NeuroShard plans, by the name in the task.

    Tasks use the plain name of a table if no other table of the model has that name, and `path.name` otherwise.
    """

    tables: Mapping[str, Parameter]

    @cached_property
    def _by_path(self) -> dict[str, str]:
        """A dictionary from the name `path.name` of each table to the name that tasks use for the table."""
        return {parameter.qualified_name: name for name, parameter in self.tables.items()}

    @cached_property
    def _by_plain(self) -> dict[str, list[str]]:
        """A dictionary with the plain names of all tables (names without the path of the module) as keys.
        Several tables can have the same plain name. Each value is the list of the names that tasks use for these
        tables.
        """
        return grouped(self.tables, lambda name: self.tables[name].name)

    def in_task(self, name: str, where: str) -> str:
        """Return the name that tasks use for the table `name`; if no table has the name, return the name unchanged.

        Raises:
            UserError: several tables of the model have the name; `where` is the place in the error.
        """
        if name in self.tables or name in self._by_path:
            return self._by_path.get(name, name)
        if name in self._by_plain:
            raise UserError(
                "table-name-ambiguous",
                f"several tables of the model have the name {name!r}",
                where=where,
                remedy=f"Write the path of the module in front: {' or '.join(map(repr, self._by_plain[name]))}",
            )
        return name

    def in_rules(self, rules: Constraints) -> Constraints:
        """Return a copy of the rules in which each table has the name that tasks use, not the name that the user
        wrote. Raise UserError if a name is ambiguous.
        """
        return Constraints(
            tuple(task_rule for rule in rules.rules for task_rule in self._rules(rule)),
            tuple(replace(shard, table=self._in_rule(shard.table)) for shard in rules.pinned),
            tuple(tuple(map(self._in_rule, group)) for group in rules.together),
            tuple(tuple(map(self._in_rule, group)) for group in rules.apart),
        )

    def in_statistics(self, known: Mapping[str, Table]) -> dict[str, Table]:
        """Return a copy of the dict `known` in which the keys are the names that tasks use for the tables.
        In `known`, the keys are the names that users write, and the values are tables with statistics. Raise
        UserError if a name is ambiguous, or if two names stand for the same table.
        """
        found: dict[str, Table] = {}
        for name, table in known.items():
            own = self.in_task(name, "tables")
            if own in found:
                raise UserError(
                    "statistics-same-table",
                    f"{found[own].name!r} and {name!r} are the same table of the model",
                    where="tables",
                    remedy="Remove one of the two names from tables=",
                )
            found[own] = table
        return found

    def _in_rule(self, name: str) -> str:
        return self.in_task(name, "rules")

    def _rules(self, rule: TableRule) -> list[TableRule]:
        """Translate a rule with table names of the user into one or more rules with the table names of tasks.
        A table has a name with the path of the module and a name without the path; tasks use only one of these names.

        A rule for one name gives one rule. A rule for a pattern, such as "tower.*", remains if the pattern matches a
        name that tasks use, or no table at all. Each table that the pattern matches only by the other name gets a
        separate rule.
        """
        if not rule.is_wild:
            return [replace(rule, tables=self._in_rule(rule.tables))]
        named = ((name, {name, table.name, table.qualified_name}) for name, table in self.tables.items())
        matching = [
            name for name, all_names in named if any(fnmatchcase(table_name, rule.tables) for table_name in all_names)
        ]
        others = [name for name in matching if not fnmatchcase(name, rule.tables)]
        kept = [rule] if len(others) < len(matching) or not others else []
        return [*kept, *(replace(rule, tables=escape(name)) for name in others)]


def by_plain_name(
    constraints: Mapping[str, ParameterConstraints], parameters: Sequence[Parameter]
) -> dict[str, ParameterConstraints]:
    """Return a copy of `constraints` with more keys: for each table, the value of the key `path.name` is also stored
    under the plain name of the table.

    TorchRec looks up constraints under the plain name. If several tables have the same plain name, this name is not
    added, because TorchRec's planner plans each of these tables separately.
    """
    count = Counter(parameter.name for parameter in parameters)
    plain = {
        parameter.name: constraints[parameter.qualified_name]
        for parameter in parameters
        if parameter.qualified_name in constraints and count[parameter.name] == 1
    }
    return {**constraints, **plain}
