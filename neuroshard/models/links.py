"""Functions that return copies of exchange models for other links between devices, such as another network or NVLink
bridges. Only analytic models, which are computed from a datasheet, can predict for other links.
"""

from collections.abc import Callable
from dataclasses import replace

from neuroshard.models.comm_models import ExchangeModels
from neuroshard.models.interface import CommModel
from neuroshard.models.network import BRIDGE_GB_PER_S
from neuroshard.models.roofline import RooflineComm
from neuroshard.plumbing.errors import UserError
from neuroshard.words.model_choice import ModelChoice

Change = Callable[[RooflineComm], RooflineComm]


def with_links(model: CommModel, change: Change) -> CommModel:
    """Return a copy of the exchange model `model` with changed analytic models. An analytic model is computed from a
    datasheet. The function `change` takes an analytic model, and returns the changed analytic model.

    `model` may be an analytic model itself, or contain analytic models of single collectives. If `model` contains no
    analytic model, `model` itself is returned.
    """
    if isinstance(model, RooflineComm):
        return change(model)
    if isinstance(model, ExchangeModels):
        exchanges = {name: with_links(one, change) for name, one in model.exchanges.items()}
        same = all(exchanges[name] is one for name, one in model.exchanges.items())
        return model if same else replace(model, exchanges=exchanges)
    return model


def chosen_links(choice: ModelChoice) -> Change:
    """Return a function that sets the links of an analytic exchange model to the links in `choice`
    (`ModelChoice.links`).
    """

    def change(model: RooflineComm) -> RooflineComm:
        """Return a copy of an analytic exchange model with the links in `choice`, the argument of `chosen_links`.

        Raises:
            UserError: bridges are given for GPUs that do not need them.
        """
        links = choice.links
        card_gb_per_s = links.pop("network_gb_per_s", model.network_gb_per_s)
        if links.pop("nvlink_bridges", None):
            if not model.links.typical:
                raise UserError(
                    "bridges-not-pcie",
                    f"the cost models {choice.name!r} cannot take nvlink_bridges=true",
                    limit="bridges join pairs of GPUs that have only PCIe otherwise",
                    remedy="Leave out nvlink_bridges, or choose cost models of such a GPU, such as roofline:h100_pcie",
                )
            links["bridge_gb_per_s"] = BRIDGE_GB_PER_S
        return replace(model, network_gb_per_s=card_gb_per_s, links=replace(model.links, **links))

    return change
