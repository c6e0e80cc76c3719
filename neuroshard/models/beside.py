"""Models of some kernel calls beside those of others: arithmetic for what wasn't measured."""

from dataclasses import replace

from neuroshard.models.by_form import ComputeByForm
from neuroshard.models.interface import ComputeModel, SumModel
from neuroshard.plans.form import CALLS, Call
from neuroshard.plans.shard import Tier


def with_host_tiers(compute: SumModel, other: ComputeModel) -> ComputeByForm:
    """The model, and for calls of tables in host memory that it doesn't know another one's.

    These are calls of tables in forms whose calls in device memory it knows. `other` is a model of the same device, for
    costs of all calls add up, such as a datasheet's arithmetic, `CostModels.load("roofline:h100").compute`.
    """
    known = {call: compute.of_call(call) for call in compute.calls}
    more: dict[Call, SumModel] = {
        call: other.of_call(call)
        for call in CALLS
        if call.tier is not Tier.DEVICE
        and call not in known
        and replace(call, tier=Tier.DEVICE) in known
        and call in other.calls
        and isinstance(other, SumModel)
    }
    return ComputeByForm(known | more)
