"""The names that people give to a model's tables: plain, or behind the path of their module."""

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
    """Tables that are planned here, by their names in tasks; people may write other names of the same tables.

    Tasks use the plain name of a table if no other table of the model has it, else `path.name`.
    """

    tables: Mapping[str, Parameter]

    @cached_property
    def _by_path(self) -> dict[str, str]:
        """The name in tasks by `path.name`."""
        return {parameter.qualified_name: name for name, parameter in self.tables.items()}

    @cached_property
    def _by_plain(self) -> dict[str, list[str]]:
        """The names in tasks by the plain name."""
        return grouped(self.tables, lambda name: self.tables[name].name)

    def in_task(self, name: str, where: str) -> str:
        """Return the name that a table has in tasks; a name of no table as it is.

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
        """Replace names in rules by those that tasks use; raise UserError if one is ambiguous."""
        return Constraints(
            tuple(one for rule in rules.rules for one in self._rules(rule)),
            tuple(replace(shard, table=self._in_rule(shard.table)) for shard in rules.pinned),
            tuple(tuple(map(self._in_rule, group)) for group in rules.together),
            tuple(tuple(map(self._in_rule, group)) for group in rules.apart),
        )

    def in_statistics(self, known: Mapping[str, Table]) -> dict[str, Table]:
        """Put statistics under the names that tasks use; raise UserError if one is ambiguous or given twice."""
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
        """Return a rule with the names of tasks: a pattern may match a table by any of its names."""
        if not rule.is_wild:
            return [replace(rule, tables=self._in_rule(rule.tables))]
        named = ((name, {name, its.name, its.qualified_name}) for name, its in self.tables.items())
        matching = [name for name, all_names in named if any(fnmatchcase(one, rule.tables) for one in all_names)]
        others = [name for name in matching if not fnmatchcase(name, rule.tables)]
        kept = [rule] if len(others) < len(matching) or not others else []
        return [*kept, *(replace(rule, tables=escape(name)) for name in others)]


def by_plain_name(
    constraints: Mapping[str, ParameterConstraints], parameters: Sequence[Parameter]
) -> dict[str, ParameterConstraints]:
    """Add constraints under the plain names of tables that `path.name` names: TorchRec knows no other names.

    Names that several tables have are left out; TorchRec's planner is asked for each of these tables by itself.
    """
    count = Counter(parameter.name for parameter in parameters)
    plain = {
        its.name: constraints[its.qualified_name]
        for its in parameters
        if its.qualified_name in constraints and count[its.name] == 1
    }
    return {**constraints, **plain}
