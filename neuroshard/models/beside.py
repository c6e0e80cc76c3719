"""Models that know tables in host memory too: what is known of device memory, and a datasheet's link to the host."""

from dataclasses import replace

from neuroshard.errors import UserError
from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.cost_models import CostModels
from neuroshard.models.interface import SumModel
from neuroshard.models.roofline import RooflineCompute


def with_host_tiers(models: CostModels, sheet: str) -> CostModels:
    """The models, and for calls of tables in host memory that they don't know, a datasheet's link and cache besides.

    Args:
        models: whose compute model is a sum over tables.
        sheet: a datasheet's name, such as "roofline:h100".

    Raises:
        UserError: there is no such datasheet, or the compute model isn't a sum over tables.
    """
    figures = CostModels.load(sheet).compute
    if not isinstance(figures, RooflineCompute) or figures.host is None:
        raise UserError(f"host_tiers={sheet} is no datasheet; take one, such as roofline:h100")
    known = models.compute
    if not isinstance(known, SumModel):
        raise UserError("tables in host memory can be added to compute models only that are sums over tables")
    by_call = known.by_call if isinstance(known, ComputeByForm) else {call: known.of_call(call) for call in known.calls}
    return replace(models, compute=ComputeByForm(by_call, figures.host))
