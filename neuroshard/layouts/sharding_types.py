"""The names of sharding types in settings and rules.
The names are TorchRec's. Each name belongs to one of the families column-wise, row-wise and data-parallel.
"""

from collections.abc import Collection, Iterable

from neuroshard.layouts import LAYOUTS
from neuroshard.plumbing.errors import check_name
from neuroshard.words.form import FORMS, Form

TABLE_WISE, COLUMN_WISE, TABLE_COLUMN_WISE = "table_wise", "column_wise", "table_column_wise"
ROW_WISE, TABLE_ROW_WISE, GRID_SHARD = "row_wise", "table_row_wise", "grid_shard"

_CASES = {  # sharding types, and the types that they include as special cases
    COLUMN_WISE: (TABLE_WISE, TABLE_COLUMN_WISE),
    TABLE_COLUMN_WISE: (TABLE_WISE,),
    GRID_SHARD: (TABLE_ROW_WISE,),
}
_FORM_OF: dict[str, Form] = {name: form for form, layout in LAYOUTS.items() for name in layout.type_names}
SHARDING_TYPES = tuple(_FORM_OF)  # all names; the names of one layout follow each other


def sharding_types_named(names: Iterable[str]) -> tuple[str, ...]:
    """Check that every name is the name of a sharding type, and return the names as a tuple, in the same order.

    Raises:
        UserError: a name is unknown; the error names the most similar name.
    """
    types = tuple(map(str, names))
    for name in types:
        check_name("sharding type", name, SHARDING_TYPES)
    return types


def forms_of(types: Iterable[str]) -> tuple[Form, ...]:
    """Return the families of these sharding types, without duplicates.
    The families are always in the same order: column_wise, row_wise, data_parallel.
    """
    found = {_FORM_OF[name] for name in types}
    return tuple(form for form in FORMS if form in found)


def types_of(*forms: Form) -> tuple[str, ...]:
    """Return the names of all sharding types of the given families.
    The family row-wise, for example, has the names row_wise, table_row_wise and grid_shard.
    """
    return tuple(name for name in SHARDING_TYPES if _FORM_OF[name] in forms)


def with_cases(types: Collection[str]) -> frozenset[str]:
    """Return `types` and all sharding types that are special cases of a type in `types`.
    For example, table_wise is a special case of column_wise.
    """
    return frozenset(types).union(*(cases for name, cases in _CASES.items() if name in types))


def may_split(types: Collection[str], num_hosts: int) -> bool:
    """Return True if tables of these sharding types may be split by columns.

    `table_column_wise` keeps all shards on one host, which the constraints of a task cannot express. So if there are
    several hosts, a table that may be `table_column_wise` but not `column_wise` is not split: a whole table is allowed.
    """
    return COLUMN_WISE in types or (num_hosts == 1 and TABLE_COLUMN_WISE in types)


def rows_on_all(types: Collection[str], num_hosts: int) -> bool:
    """Return True if the rows of a table of these sharding types may be spread over all devices."""
    return ROW_WISE in types or (num_hosts == 1 and rows_on_one_host(types))


def rows_on_one_host(types: Collection[str]) -> bool:
    """Return True if the rows of a table of these sharding types may be spread over the devices of one host."""
    return TABLE_ROW_WISE in types or GRID_SHARD in types
