"""How a table is laid out over devices, and the kernel calls that this makes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neuroshard.plumbing.errors import check_name
from neuroshard.words.placement import TIERS, Tier, Word


class Form(Word):
    """The families of sharding types that have kernel calls of their own, each named by its first sharding type.

    Attributes:
        COLUMN_WISE: whole, or in shards of columns that have all rows.
        ROW_WISE: in equal blocks of rows, one on each device of a group: all devices, or those of one host.
        DATA_PARALLEL: whole on every device.
    """

    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    DATA_PARALLEL = "data_parallel"

    @classmethod
    def _idea(cls) -> str:
        return "sharding type"


FORMS = tuple(Form)  # in the order of whatever has one number for each
Forms = frozenset[Form]  # those that something knows, takes or allows


def forms_named(names: Iterable[str]) -> tuple[Form, ...]:
    """Find the forms of these names, in their order.

    Raises:
        UserError: there is none of one of them.
    """
    return tuple(map(Form, names))


@dataclass(frozen=True, order=True)
class Call:
    """What a kernel is called with: tables in one form and one tier of memory, all of them pooled or none."""

    form: Form
    pooled: bool = True
    tier: Tier = Tier.DEVICE

    @property
    def name(self) -> str:
        """Name in settings and bundles, such as "column_wise", "sequence_row_wise" and "uvm_caching_column_wise"."""
        name = self.form.value if self.pooled else f"sequence_{self.form.value}"
        return name if self.tier is Tier.DEVICE else f"{self.tier.value}_{name}"


# In the order of whatever has one number for each; pooled tables as in `FORMS`. Copies are pooled and on the device.
CUT_FORMS = Form.COLUMN_WISE, Form.ROW_WISE  # of sequence tables, and of tables in host memory
_CUT = tuple(Call(form, pooled) for pooled in (True, False) for form in CUT_FORMS)
CALLS = (
    *(Call(form) for form in FORMS),
    *_CUT[2:],
    *(replace(call, tier=tier) for tier in TIERS[1:] for call in _CUT),
)
ON_DEVICE_CALLS = tuple(call for call in CALLS if call.tier is Tier.DEVICE)
IN_COLUMNS = CALLS[0]


def call_named(name: str) -> Call:
    """Find the kernel call of that name.

    Raises:
        UserError: there is none.
    """
    named = {call.name: call for call in CALLS}
    check_name("kernel call", name, named)
    return named[name]
