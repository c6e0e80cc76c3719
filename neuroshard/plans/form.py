"""How a table is laid out over devices."""

from enum import StrEnum

from neuroshard.errors import unknown_name


class Form(StrEnum):
    """Ways to lay out a table; kernels of different forms are called one after the other.

    Attributes:
        COLUMNS: whole, or in shards of columns that have all rows.
        ROWS: in equal blocks of rows, one on each device of a group: all devices, or those of one host.
        COPIES: whole on every device.
    """

    COLUMNS = "columns"
    ROWS = "rows"
    COPIES = "copies"

    @classmethod
    def _missing_(cls, value: object) -> "Form":
        raise unknown_name("form", str(value), cls)


FORMS = tuple(Form)  # in the order of whatever has one number for each
