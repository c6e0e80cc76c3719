"""What plans ask of whoever trains with them."""

from neuroshard.plans.plan import Plan

_SHOWN = 5  # tables that a remark names


def copies_remarks(plan: Plan) -> tuple[str, ...]:
    """Say what tables in copies ask of a training loop; nothing where there are none."""
    copied = plan.names_where(lambda layout: layout.dense)
    if not copied:
        return ()
    more = f" and {len(copied) - _SHOWN} more" if len(copied) > _SHOWN else ""
    return (
        f"{len(copied)} table(s) in copies ({', '.join(copied[:_SHOWN])}{more}) are data_parallel in TorchRec: no "
        "fused optimizer trains them, so give their parameters to an optimizer of your own, or search without copies: "
        "the searcher's forms=[columns,rows]",
    )
