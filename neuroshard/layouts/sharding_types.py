"""Sharding types by name: TorchRec's words, as settings and rules have them. Each is a case of one layout."""

from collections.abc import Collection, Iterable

from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.errors import check_name
from neuroshard.words.form import FORMS, Form

TABLE_WISE, COLUMN_WISE, TABLE_COLUMN_WISE = "table_wise", "column_wise", "table_column_wise"
ROW_WISE, TABLE_ROW_WISE, GRID_SHARD = "row_wise", "table_row_wise", "grid_shard"

_CASES = {  # sharding types, and those that they include
    COLUMN_WISE: (TABLE_WISE, TABLE_COLUMN_WISE),
    TABLE_COLUMN_WISE: (TABLE_WISE,),
    GRID_SHARD: (TABLE_ROW_WISE,),
}
_FORM_OF: dict[str, Form] = {name: form for form, layout in LAYOUTS.items() for name in layout.type_names}
SHARDING_TYPES = tuple(_FORM_OF)  # every name, those of one layout next to each other


def sharding_types_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return sharding types of these names, in their order.

    Raises:
        UserError: a name is unknown; the error names the most similar name.
    """
    types = tuple(map(str, names))
    for name in types:
        check_name("sharding type", name, SHARDING_TYPES)
    return types


def forms_of(types: Iterable[str]) -> tuple[Form, ...]:
    """Return the families (`Form`) of these sharding types, each once."""
    found = {_FORM_OF[name] for name in types}
    return tuple(form for form in FORMS if form in found)


def types_of(*forms: Form) -> tuple[str, ...]:
    """Return all sharding types of these families."""
    return tuple(name for name in SHARDING_TYPES if _FORM_OF[name] in forms)


def with_cases(types: Collection[str]) -> frozenset[str]:
    """Add the sharding types that are cases of others: whoever allows column_wise allows whole tables, too."""
    return frozenset(types).union(*(cases for name, cases in _CASES.items() if name in types))


def may_split(types: Collection[str], num_hosts: int) -> bool:
    """Return True if tables of these sharding types may be split by columns.

    `table_column_wise` keeps the shards on one host. Plans have no rule for that, so if there are several hosts a
    table that may be `table_column_wise`, but not `column_wise`, is left whole, which is a case of it.
    """
    return COLUMN_WISE in types or (num_hosts == 1 and TABLE_COLUMN_WISE in types)


def rows_on_all(types: Collection[str], num_hosts: int) -> bool:
    """Return True if the rows of a table of these sharding types may be spread over all devices."""
    return ROW_WISE in types or (num_hosts == 1 and rows_on_one_host(types))


def rows_on_one_host(types: Collection[str]) -> bool:
    """Return True if the rows of a table of these sharding types may be spread over the devices of one host."""
    return TABLE_ROW_WISE in types or GRID_SHARD in types
