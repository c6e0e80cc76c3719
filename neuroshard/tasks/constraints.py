"""Constraints that plans must meet in addition to memory limits, such as allowed devices, sharding types and tiers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, ClassVar

from neuroshard.layouts import LAYOUTS, Layout
from neuroshard.layouts.sharding_types import (
    SHARDING_TYPES,
    TABLE_WISE,
    forms_of,
    may_split,
    sharding_types_named,
    types_of,
    with_cases,
)
from neuroshard.layouts.widths import equal_parts, fewest_parts
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import (
    DIM_MULTIPLE,
    MAX_DEVICES,
    MAX_DIM,
    MAX_SHARD_DIM,
    CacheShare,
    as_fields,
    padded,
    parse,
    shown,
)
from neuroshard.tables import Table
from neuroshard.words.form import CUT_FORMS, FORMS, Forms
from neuroshard.words.placement import DEFAULT_CACHED, TIERS, Tier, TierAssignment

_RARE = ("tiers", "cache_load_factor", "min_blocks", "equal_widths")  # fields that files leave out if they are default
_WILD = frozenset("*?[")  # the wildcards of patterns


@dataclass(frozen=True)
class TableRule:
    """Limits for every table whose name matches a pattern, such as "user_*".

    If several rules match a table, all of them apply.

    Attributes:
        tables: the pattern, or the name of one table.
        devices: the devices that may have shards of the table; None allows all.
        min_shards, max_shards: minimum and maximum number of devices that the table is spread over; None sets no limit.
            max_shards=1 never splits the table.
        min_dim: minimum number of columns of every shard, if the table is split; None sets no limit. For a table wider
            than 2,048 columns, which must be split, min_dim is at most 2,048.
        sharding_types: sharding types that the table may have: table_wise, column_wise (which allows a whole table,
            too), table_column_wise, row_wise, table_row_wise, grid_shard, data_parallel; None allows all.
        tiers: tiers that the table may be in: device, uvm_caching, uvm; None allows all.
        cache_load_factor: share of the table's rows that the cache has room for, if the table is in tier uvm_caching;
            None leaves the share open.
        min_blocks: minimum number of devices that the rows of the table are spread over; None sets no limit.
        equal_widths: True if the shards of a split table must have one width: two halves, or as many parts as
            `min_shards` asks for. The default search tries such shards also without this rule.
    """

    tables: str
    devices: tuple[int, ...] | None = None
    min_shards: int | None = None
    max_shards: int | None = None
    min_dim: int | None = None
    sharding_types: tuple[str, ...] | None = None
    tiers: tuple[str, ...] | None = None
    cache_load_factor: CacheShare | None = None
    min_blocks: int | None = None
    equal_widths: bool = False

    def __post_init__(self) -> None:
        if self.tiers is not None:
            object.__setattr__(self, "tiers", tuple(Tier(tier) for tier in self.tiers))
        if self.devices is not None:
            object.__setattr__(self, "devices", tuple(self.devices))
        if self.sharding_types is not None:
            object.__setattr__(self, "sharding_types", sharding_types_named(self.sharding_types))
        for name in ("min_shards", "max_shards", "min_dim", "min_blocks"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(
                    "rule-limit-too-small",
                    f"{name} of the rule for {self.tables!r} is {value!r}",
                    where="constraints",
                    limit=f"{name} must be a whole number, 1 or more",
                    remedy=f"Set {name} to a whole number, 1 or more",
                )

    @classmethod
    def keeping(cls, table: str, assignment: TierAssignment) -> "TableRule":
        """Return a rule that fixes the tier and the cache load factor of one table to the values in `assignment`.
        The argument `table` is the exact name of the table, not a pattern.
        """
        return cls(escape(table), tiers=(assignment.tier,), cache_load_factor=assignment.cache_load_factor)

    @property
    def is_wild(self) -> bool:
        """True if the pattern of the rule has wildcards, such as "user_*"."""
        return bool(_WILD.intersection(self.tables))

    def concerns(self, names: Collection[str]) -> bool:
        """Return True if the rule applies to at least one of the table names in `names`.

        A set or dict of names makes this check fast.
        """
        return self.tables in names or (self.is_wild and any(fnmatchcase(name, self.tables) for name in names))


@dataclass(frozen=True)
class PinnedShard:
    """A shard that every plan must contain, on one of the given devices.

    Attributes:
        table: name of the table.
        dim: number of columns of the shard, a multiple of 4 and at most 2,048.
        devices: devices of which one must have the shard, and no other columns of the table.
    """

    most_columns: ClassVar[int] = MAX_SHARD_DIM

    table: str
    dim: int
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if not isinstance(self.dim, int) or self.dim < DIM_MULTIPLE or self.dim % DIM_MULTIPLE:
            raise UserError(
                "pin-dim-not-multiple",
                f"dim of a pinned shard of table {self.table!r} is {self.dim!r}",
                where="constraints",
                limit=f"dim must be a positive multiple of {DIM_MULTIPLE}",
                remedy=f"Set dim to {DIM_MULTIPLE}, {2 * DIM_MULTIPLE}, {3 * DIM_MULTIPLE} or a higher multiple",
            )
        if self.dim > self.most_columns:
            raise UserError(
                "pin-dim-too-wide",
                f"dim of a pinned shard of table {self.table!r} is {self.dim}",
                where="constraints",
                limit=f"a shard can have at most {MAX_SHARD_DIM} columns",
                remedy="Pin several narrower shards, each to a different device",
            )


@dataclass(frozen=True)
class PinnedColumns(PinnedShard):
    """A constraint that puts up to 65,536 columns of a table on one of the given devices.
    The device may have the columns in several shards, unlike in a `PinnedShard`.

    Searches use this class; users do not.
    """

    most_columns: ClassVar[int] = MAX_DIM

    @classmethod
    def on(cls, table: str, dim: int, devices: tuple[int, ...]) -> PinnedShard:
        """Return a constraint that puts `dim` columns of a table on one of the devices in `devices`.
        The constraint is a `PinnedShard` if the columns fit in one shard, and a `PinnedColumns` otherwise.
        """
        return (cls if dim > MAX_SHARD_DIM else PinnedShard)(table, dim, devices)


@dataclass(frozen=True)
class TableLimits:
    """Limits for the shards of one table, which follow from all rules for the table.

    A sequence table can only be whole, in two equal halves, or row-wise.

    Attributes:
        devices: devices that may have shards of the table.
        min_shards, max_shards: number of devices that columns of the table are spread over; a data-parallel table
            counts as one shard.
        min_blocks, max_blocks: number of devices that rows of the table are spread over.
        min_dim: minimum number of columns on each device.
        sharding_types: sharding types that the table may have.
        tiers: tiers that the table may be in; only tier device if no allowed sharding type works in host memory.
        cache_load_factor: share of the table's rows that fit in its cache; None for any share.
        equal_widths: True if all shards must have the same width.
    """

    devices: tuple[int, ...]
    min_shards: int
    max_shards: int
    min_blocks: int
    max_blocks: int
    min_dim: int
    sharding_types: frozenset[str]
    tiers: frozenset[Tier] = frozenset(Tier)
    cache_load_factor: float | None = None
    equal_widths: bool = False

    @cached_property
    def forms(self) -> Forms:
        """The families (`Form`) of the table's allowed sharding types.
        The three families are column-wise, row-wise and data-parallel.
        """
        return frozenset(forms_of(self.sharding_types))

    @property
    def free(self) -> bool:
        """True if the table may be table-wise or column-wise.
        Then each shard of the table can be placed on any allowed device, independently of the table's other shards.
        """
        return any(LAYOUTS[form].free for form in self.forms)

    def may_count(self, layout: Layout, devices: int) -> bool:
        """Return True if the limits for the number of shards allow the table to be on `devices` devices.
        `layout` is the family of the table's sharding type: column-wise, row-wise or data-parallel.
        """
        least, most = self._counts(layout)
        return least <= layout.num_shards(devices) <= most

    def counts_of(self, layout: Layout) -> tuple[int, int]:
        """Return the minimum and maximum number of shards that the limits allow for the table.
        `layout` is the family of the table's sharding type: column-wise, row-wise or data-parallel. For the row-wise
        family, the numbers count blocks of rows.

        The maximum is at most the number of allowed devices, unless this number is below the minimum.
        """
        least, most = self._counts(layout)
        return least, min(most, max(least, len(self.devices)))

    def _counts(self, layout: Layout) -> tuple[int, int]:
        return (self.min_blocks, self.max_blocks) if layout.blocks else (self.min_shards, self.max_shards)

    @property
    def tier_assignment(self) -> TierAssignment:
        """The memory tier and the cache load factor of the table, if no search chooses a tier.
        The tier is the fastest tier that the limits allow. The cache load factor is None unless the tier is
        uvm_caching.
        """
        tier = min(self.tiers, key=TIERS.index)
        return TierAssignment(tier, (self.cache_load_factor or DEFAULT_CACHED) if tier is Tier.UVM_CACHING else None)

    def allows_tier(self, assignment: TierAssignment) -> bool:
        """Return True if the limits of the table allow the memory tier and the cache load factor in `assignment`."""
        return assignment.tier in self.tiers and (
            assignment.cache_load_factor is None or self.cache_load_factor in (None, assignment.cache_load_factor)
        )


@dataclass(frozen=True)
class Constraints:
    """Constraints that every plan of a task must meet; they refer to tables by name or by a pattern of names.

    Attributes:
        rules: limits for tables whose names match a pattern.
        pinned: shards with a fixed width that must be on given devices.
        together: groups of names; the tables of a group are on one device, and are not split.
        apart: groups of names; no device has shards of two tables of a group.
    """

    rules: tuple[TableRule, ...] = ()
    pinned: tuple[PinnedShard, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("rules", "pinned"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("together", "apart"):
            object.__setattr__(self, name, tuple(tuple(group) for group in getattr(self, name)))

    def with_rules(self, rules: Iterable[TableRule]) -> "Constraints":
        """Return a copy of the constraints with `rules` added after the present rules."""
        return replace(self, rules=(*self.rules, *rules))

    def limits(self, table: Table, num_devices: int, num_hosts: int = 1) -> TableLimits:
        """Return the limits of a table; each limit is set by the strictest of the rules that match the table.

        Args:
            table: the table.
            num_devices: number of devices of the topology.
            num_hosts: number of hosts of the topology, or of domains if fast links connect several hosts.

        Raises:
            UserError: the rules contradict each other or the topology.
        """
        rules = self.rules_of(table.name)
        together = table.name in self.group_of
        whole = self.pinned_whole(table) if together else []  # a pin of one table decides the device of its group
        only = [rule.devices for rule in rules if rule.devices is not None] + [shard.devices for shard in whole]
        equal = _equal_widths(table, rules)
        min_shards = max((rule.min_shards or 1 for rule in rules), default=1)
        if table.dim > MAX_SHARD_DIM:
            _check_wide(table, rules, num_hosts)
            min_shards = equal_parts(table.dim, min_shards) if equal and table.pooled else min_shards
        most = 1 if together else min((rule.max_shards for rule in rules if rule.max_shards), default=MAX_DEVICES)
        types = _sharding_types(rules)
        is_whole = TABLE_WISE in types and not may_split(types, num_hosts)
        min_dim = table.dim if is_whole else _min_dim(table, rules, equal, min_shards)
        tiers = frozenset(tier for tier in Tier if all(rule.tiers is None or tier in rule.tiers for rule in rules))
        possible = FORMS if table.pooled and Tier.DEVICE in tiers else CUT_FORMS
        forms = frozenset(forms_of(types)).intersection(possible)
        limits = TableLimits(
            devices=tuple(sorted(set(range(num_devices)).intersection(*only))) if only else tuple(range(num_devices)),
            min_shards=min_shards,
            max_shards=min(most, table.dim // min_dim),
            min_blocks=max([min_shards, *(rule.min_blocks or 1 for rule in rules)]),
            max_blocks=most,
            min_dim=min_dim,
            sharding_types=types.intersection(types_of(*forms)),
            tiers=tiers if forms.intersection(CUT_FORMS) else tiers.intersection({Tier.DEVICE}),
            cache_load_factor=_cached_share(table, rules),
            equal_widths=equal,
        )
        _check_limits(table, limits, together, num_devices)
        return limits

    @cached_property
    def pins(self) -> dict[str, list[PinnedShard]]:
        """A dict from the name of a table to the list of the pinned shards of this table.
        A pinned shard must be in every plan, on one of some given devices. Tables without pinned shards are not in the
        dict.
        """
        return grouped(self.pinned, lambda shard: shard.table)

    @cached_property
    def group_of(self) -> dict[str, tuple[str, ...]]:
        """A dict from the name of a table to its group: the names of all tables that must be together on one device.
        Tables without a group are left out.
        """
        return {name: group for group in reversed(self.together) for name in group}

    @cached_property
    def _of_name(self) -> dict[str | None, list[TableRule]]:
        """A dict from the name of a table to the rules for exactly this table.
        The key None has all rules with wildcards, such as a rule for "user_*".

        Jobs have a rule for each of thousands of tables, so the rules of one table must be quick to find.
        """
        return grouped(self.rules, lambda rule: None if rule.is_wild else rule.tables)

    def rules_of(self, name: str) -> list[TableRule]:
        """Return the rules that match a table's name."""
        wild = self._of_name.get(None, [])
        return [rule for rule in wild if fnmatchcase(name, rule.tables)] + self._of_name.get(name, [])

    def pinned_whole(self, table: Table) -> list[PinnedShard]:
        """Return those pinned shards of a table that have all columns of the table.
        A pinned shard must be in every plan, on one of some given devices.
        """
        return [shard for shard in self.pins.get(table.name, []) if shard.dim == table.dim]

    def of(self, tables: Sequence[Table]) -> "Constraints":
        """Return only the constraints that concern the given tables.
        These are rules that match a table, pinned shards of the tables, and groups of tables that must, or must not,
        share a device. A group is reduced to the given tables, and left out if fewer than two tables remain.
        """
        names = {table.name for table in tables}
        together, apart = (
            tuple(kept for group in groups if len(kept := tuple(name for name in group if name in names)) > 1)
            for groups in (self.together, self.apart)
        )
        return Constraints(
            tuple(rule for rule in self.rules if rule.concerns(names)),
            tuple(shard for shard in self.pinned if shard.table in names),
            together,
            apart,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the constraints as JSON-ready fields."""
        return asdict(self) | {"rules": [as_fields(rule, _RARE) for rule in self.rules]}


def _cached_share(table: Table, rules: Sequence[TableRule]) -> float | None:
    """Return the cache load factor that the rules set for a table, or None if no rule sets a cache load factor.

    Raises:
        UserError: two rules set different factors.
    """
    shares = {rule.cache_load_factor for rule in rules if rule.cache_load_factor is not None}
    if len(shares) > 1:
        raise UserError(
            "rules-cache-load-factors",
            f"the rules for table {table.name!r} set cache_load_factor to {min(shares)} and to {max(shares)}",
            where="constraints",
            limit="a table can have only one cache_load_factor",
            remedy="Set the same cache_load_factor in all rules for the table",
        )
    return shares.pop() if shares else None


def _equal_widths(table: Table, rules: Sequence[TableRule]) -> bool:
    """Return True if all shards of a table must have the same width.

    This is so if a rule has equal_widths, or if the table needs several shards and the minimum width is more than half
    of the maximum width of a shard, 2,048: then only equal parts are possible.
    """
    least = max((rule.min_dim or 0 for rule in rules), default=0)
    return any(rule.equal_widths for rule in rules) or (table.dim > MAX_SHARD_DIM and 2 * least > MAX_SHARD_DIM)


def _sharding_types(rules: Sequence[TableRule]) -> frozenset[str]:
    """Return the sharding types that all rules allow."""
    named = (rule.sharding_types for rule in rules if rule.sharding_types is not None)
    return frozenset(SHARDING_TYPES).intersection(*map(with_cases, named))


def _check_wide(table: Table, rules: Sequence[TableRule], num_hosts: int) -> None:
    """Raise UserError if a rule does not let a wide table be split into shards of at most 2,048 columns.
    `table` has more than 2,048 columns, so the table needs several shards. `rules` are the rules that match the table.
    """
    parts, width = fewest_parts(table.dim), f"table {table.name!r} has {table.dim} columns"
    widest = f"a shard can have at most {MAX_SHARD_DIM} columns"
    for rule in rules:
        if rule.max_shards is not None and rule.max_shards < parts:
            raise UserError(
                "wide-table-max-shards",
                f"{width}, and a rule for {rule.tables!r} allows {number_of(rule.max_shards, 'shard')}",
                where="constraints",
                limit=f"{widest}, so the table needs {number_of(parts, 'shard')}",
                remedy=f"Set max_shards to {parts} or more (in ParameterConstraints: allow column_wise), or make the "
                "table narrower",
            )
        if rule.min_dim is not None and rule.min_dim > min(MAX_SHARD_DIM, table.dim // parts):
            least = table.dim // parts // DIM_MULTIPLE * DIM_MULTIPLE
            raise UserError(
                "wide-table-min-dim",
                f"{width}, and a rule for {rule.tables!r} sets min_dim (the minimum number of columns of a shard) to "
                f"{rule.min_dim}",
                where="constraints",
                limit=f"{widest}, so the table needs {parts} or more shards, and min_dim can be at most {least}",
                remedy=f"Set min_dim (in ParameterConstraints: min_partition) to {least} or less, or make the table "
                "narrower",
            )
        if rule.sharding_types is not None and not may_split(rule.sharding_types, num_hosts):
            raise UserError(
                "wide-table-sharding-types",
                f"{width}, and a rule for {rule.tables!r} allows only {' and '.join(rule.sharding_types)}",
                where="constraints",
                limit=f"{widest}, so the table needs a sharding type that splits columns",
                remedy="Allow column_wise in this rule, or make the table narrower",
            )


def _min_dim(table: Table, rules: Sequence[TableRule], equal: bool, min_shards: int) -> int:
    """Return the minimum number of columns that a shard of a table may have.
    The result is a multiple of 4, or the number of all columns if the table cannot be split. `rules` are the rules that
    match the table. `equal` is True if all shards must have the same width. `min_shards` is the minimum number of
    shards.
    """
    minimums = (rule.min_dim for rule in rules if rule.min_dim)
    least = max([_narrowest(table, equal, min_shards), *minimums])
    return min(padded(least), table.dim)


def _narrowest(table: Table, equal: bool, min_shards: int) -> int:
    """Return the number of columns of the narrowest shard into which a table can be split.
    `equal` is True if all shards of the table must have the same width. `min_shards` is the minimum number of shards,
    and matters only if `equal` is True. The result does not depend on the setting `min_dim` of rules.

    A sequence table is whole or in two equal halves. With `equal`, a table is in `min_shards` (at least 2) equal parts,
    and the narrowest shard is such a part. A sequence table of more than 2,048 columns can be halved only if its number
    of equal parts is even. If a table cannot be split in this way, the result is all of its columns.
    """
    if table.pooled and not equal:
        return DIM_MULTIPLE
    shards = max(min_shards, 2) if table.pooled else 2
    if not table.pooled and table.dim > MAX_SHARD_DIM and equal_parts(table.dim) % 2:
        return table.dim
    return table.dim if table.dim % (shards * DIM_MULTIPLE) else table.dim // shards


def _check_limits(table: Table, limits: TableLimits, together: bool, num_devices: int) -> None:
    """Raise UserError if `limits`, which follow from all rules for a table, clearly allow no placement of the table.
    This is so if no device, sharding type, tier or number of shards is allowed, or if all allowed sharding types need
    every device, but some devices are not allowed. Other contradictions are not checked here.
    `together` is True if the table must be together with other tables on one device.
    """
    if not limits.devices:
        raise UserError(
            "table-no-device",
            f"no device is allowed by all rules and pins for table {table.name!r}",
            where="constraints",
            limit=f"the topology has devices 0 to {num_devices - 1}",
            remedy="Allow the same device in all rules and pins for the table",
        )
    if not limits.forms:
        not_copied = "sequence tables" if not table.pooled else "tables in host memory"
        restricted = not table.pooled or Tier.DEVICE not in limits.tiers
        raise UserError(
            "table-no-sharding-type",
            f"the rules for table {table.name!r} together allow no sharding type that the table can have"
            if restricted
            else f"no sharding type is allowed by all rules for table {table.name!r}",
            where="constraints",
            limit=f"{not_copied} cannot be data_parallel" if restricted else "",
            remedy="Allow the same sharding type, such as column_wise, in all rules for the table",
        )
    if not limits.tiers:
        raise UserError(
            "table-no-tier",
            f"no tier is allowed by all rules for table {table.name!r}",
            where="constraints",
            remedy="Allow the same tier, such as device, in all rules for the table",
        )
    if all(LAYOUTS[form].everywhere for form in limits.forms) and len(limits.devices) < num_devices:
        raise UserError(
            "table-needs-all-devices",
            f"the rules allow table {table.name!r} on only {len(limits.devices)} of {number_of(num_devices, 'device')}",
            where="constraints",
            limit=f"the only sharding type that the rules allow is {' or '.join(sorted(limits.forms))}, which puts the "
            "table on every device",
            remedy="Allow column_wise for the table, or allow the table on all devices",
        )
    counts = [(limits.min_shards, min(limits.max_shards, len(limits.devices)))]
    if not limits.free:  # a table that cannot be column-wise is limited by its blocks of rows, not by column shards
        counts = [limits.counts_of(LAYOUTS[form]) for form in sorted(limits.forms)]
    if all(least > most for least, most in counts):
        limit = "tables in a group of `together` cannot be split" if together else ""
        if table.dim > MAX_SHARD_DIM:
            limit += f"{', and ' if limit else ''}a shard can have at most {MAX_SHARD_DIM} columns"
        least, most = counts[0]
        allowed = number_of(len(limits.devices), "device")
        raise UserError(
            "table-shard-counts",
            f"table {table.name!r} ({table.dim} columns, at least {limits.min_dim} in a shard, {allowed} allowed) "
            f"needs {number_of(least, 'shard')}, but can have at most {most}",
            where="constraints",
            limit=limit,
            remedy="Do one of these: lower min_shards, min_blocks or min_dim; raise max_shards; "
            + ("allow more devices; or remove the table from `together`" if together else "or allow more devices"),
        )


def constraints(
    rules: Sequence[Mapping[str, Any]] = (),
    pinned: Sequence[Mapping[str, Any]] = (),
    together: Sequence[Sequence[str]] = (),
    apart: Sequence[Sequence[str]] = (),
) -> Constraints:
    """Convert plain lists from a config to `Constraints`, and return these constraints.

    Args:
        rules: list of limits for tables whose names match a pattern, such as [{tables: user_*, devices: [0, 1],
            max_shards: 4}]; docs/how-to/constraints.md lists all limits.
        pinned: list of shards that every plan must contain: the table, the shard's number of columns (dim; all columns
            keep the table whole), and the devices of which one must have the shard, such as [{table: user_id, dim: 32,
            devices: [0]}].
        together: list of groups of tables; all tables of a group are placed on one device and are not split, such as
            [[user_id, user_country]].
        apart: list of groups of tables; no device gets two tables of the same group, such as [[user_id, item_id]].

    Raises:
        UserError: a field is unknown, missing or of the wrong type.
    """
    content = {"rules": rules, "pinned": pinned, "together": together, "apart": apart}
    return parse(content, Constraints, "constraints")


def load_constraints(path: str) -> Constraints:
    """Read a YAML or JSON file that has the fields of `Constraints`, and return the constraints.

    Args:
        path: path of a YAML or JSON file with the fields rules, pinned, together and apart, or some of them;
            constraints=FILE.yaml is short for constraints.path=FILE.yaml.

    Raises:
        UserError: the file is missing or malformed.
    """
    from neuroshard.plumbing.plain_yaml import read_yaml  # slow to import: not with this module

    content = read_yaml(Path(path), "constraints")
    if not isinstance(content, dict):
        raise UserError(
            "constraints-file-no-fields",
            f"the file contains {shown(content)}",
            where=path,
            limit="constraints must be a mapping with at least one of the fields rules, pinned, together and apart",
            remedy="Write at least one of these fields",
        )
    return parse(content, Constraints, path)
