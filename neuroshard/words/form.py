"""The three families of sharding types (`Form`), and the types of kernel calls for tables of each family."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neuroshard.plumbing.errors import check_name
from neuroshard.words.placement import TIERS, Tier, Word


class Form(Word):
    """A family of sharding types that are handled alike. There are three families, and each sharding type belongs to
    one: table_row_wise, for example, belongs to the family row_wise.

    The tables of a family are placed by the same rules and share kernel calls. A family has the name of its basic
    sharding type: column_wise also includes table_wise and table_column_wise, and row_wise also includes table_row_wise
    and grid_shard.

    Attributes:
        COLUMN_WISE: the table is whole, or split by columns into shards that have all rows.
        ROW_WISE: the table is split into equal blocks of rows, one block on each device of a group: all devices, or the
            devices of one host.
        DATA_PARALLEL: every device has the whole table.
    """

    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    DATA_PARALLEL = "data_parallel"

    @classmethod
    def _idea(cls) -> str:
        return "sharding type"


FORMS = tuple(Form)  # arrays with one entry per family are in this order
Forms = frozenset[Form]  # the families that a model, a system or a rule allows


def forms_named(names: Iterable[str]) -> tuple[Form, ...]:
    """Return the families of sharding types (members of `Form`) with these names, such as "row_wise", in the order of
    the names.

    Raises:
        UserError: a name is not the name of a family.
    """
    return tuple(map(Form, names))


@dataclass(frozen=True, order=True)
class Call:
    """A type of kernel call. All tables in a call have the same family of sharding types (`Form`) and the same memory
    tier, and either all or none of the tables are pooled.
    """

    form: Form
    pooled: bool = True
    tier: Tier = Tier.DEVICE

    @property
    def name(self) -> str:
        """The name of the kernel call in settings and bundles, such as "column_wise" or "uvm_caching_column_wise"."""
        name = self.form.value if self.pooled else f"sequence_{self.form.value}"
        return name if self.tier is Tier.DEVICE else f"{self.tier.value}_{name}"


CUT_FORMS = Form.COLUMN_WISE, Form.ROW_WISE  # the families that sequence tables and tables in host memory can have
_CUT = tuple(Call(form, pooled) for pooled in (True, False) for form in CUT_FORMS)
# Arrays with one entry per kernel call are in this order. The calls of pooled tables on the device come first, in the
# order of `FORMS`. Data-parallel tables are always pooled and in device memory.
CALLS = (
    *(Call(form) for form in FORMS),
    *_CUT[2:],
    *(replace(call, tier=tier) for tier in TIERS[1:] for call in _CUT),
)
ON_DEVICE_CALLS = tuple(call for call in CALLS if call.tier is Tier.DEVICE)
COLUMN_WISE_CALL = CALLS[0]


def call_named(name: str) -> Call:
    """Return the type of kernel call with the name `name`, such as "sequence_row_wise".

    Raises:
        UserError: no kernel call has the name.
    """
    named = {call.name: call for call in CALLS}
    check_name("kernel call", name, named)
    return named[name]
