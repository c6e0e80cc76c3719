"""The hardware that cost models predict for, and comparisons with the hardware that a plan is measured on."""

import re
from dataclasses import dataclass

from neuroshard.models.cost_models import CostModels
from neuroshard.plumbing.errors import UserError
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.model_choice import ModelChoice

_GPU = "cuda"
_KINDS = {"cpu": "a CPU", _GPU: "a GPU"}


@dataclass(frozen=True)
class PredictedFor:
    """The hardware for which a set of cost models predicts: a measured machine, or a GPU by its datasheet.

    Attributes:
        models: the name and the settings of the models.
        kind: "cpu" or "cuda".
        measured: the machine that the models were fitted to; None for a datasheet.
        sheet: the GPU's name in the datasheet, such as "H100"; None for models fitted to measurements.
    """

    models: ModelChoice
    kind: str
    measured: Fingerprint | None = None
    sheet: str | None = None

    @classmethod
    def of(cls, models: ModelChoice | None) -> "PredictedFor | None":
        """Return the hardware for which the chosen models predict;
        None if the models cannot be loaded or the hardware is unknown.
        """
        if models is None:
            return None
        try:
            loaded = CostModels.of(models)
        except UserError:
            return None
        if loaded.hardware is not None:
            return cls(models, loaded.hardware.kind, measured=loaded.hardware)
        sheet = loaded.sheet
        return None if sheet is None else cls(models, _GPU, sheet=sheet.partition("_")[0].upper())

    def other_kind(self, here: Fingerprint) -> bool:
        """Return True if the models predict for a CPU and the machine `here` is a GPU machine, or the other
        way round.
        """
        return self.kind != here.kind

    def differs(self, here: Fingerprint) -> bool:
        """Return True if the models predict for other hardware than the machine `here`, and False if the hardware may
        be the same. If the models predict for a GPU by its datasheet, the hardware may be the same only if the device
        name of `here` contains the GPU's name, such as "H100".
        """
        if self.other_kind(here):
            return True
        if self.measured is not None:
            return not self.measured.same_hardware(vars(here))
        return re.search(rf"\b{self.sheet}\b", here.device.upper()) is None

    def mismatch_text(self, here: Fingerprint) -> str:
        """Return text that names the hardware that the models predict for,
        and the hardware `here`, on which the plan was measured.
        """
        predicted = (
            _named(self.measured) if self.measured is not None else f"{_KINDS[self.kind]}: {self.sheet} (datasheet)"
        )
        return f"predicted for {predicted} (cost models '{self.models}'), but measured on {_named(here)}"


def _named(machine: Fingerprint) -> str:
    return f"{_KINDS.get(machine.kind, machine.kind)}: {machine}"
