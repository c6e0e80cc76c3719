"""Compute costs of tables in every form, from a model for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from neuroshard.arrays import Float32Array, FloatArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.models.interface import ReluHead, SumModel
from neuroshard.models.kinds import COMPUTE_KINDS, Described, described, tensors_of
from neuroshard.models.mlp import Tensors
from neuroshard.plans.form import FORMS, Form
from neuroshard.schema import parse


@dataclass(frozen=True)
class ByFormSettings:
    """The models', by form."""

    calls: Annotated[dict[str, Described], Meta(min_length=1, max_length=len(FORMS))]


@dataclass(frozen=True)
class ComputeByForm(SumModel):
    """A model for the kernel calls of each form. Of columns it is the model of columns, vectors and head included.

    Attributes:
        calls: of each form that is known, columns among them.
    """

    kind: ClassVar[str] = "by_form"

    calls: dict[Form, SumModel]

    @property
    def forms(self) -> frozenset[Form]:
        """Those that there are models of."""
        return frozenset(self.calls)

    @property
    def head(self) -> ReluHead:
        """Of sums of column shards' vectors."""
        return self.calls[Form.COLUMNS].head

    def embed(self, loads: Loads) -> Float32Array:
        """(n, H) a vector for each of n column shards; the vectors of other forms are those of `of_form`."""
        return self.calls[Form.COLUMNS].embed(loads)

    def of_form(self, form: Form) -> SumModel:
        """The form's own."""
        return self.calls[form]

    def predict(self, sets: LoadSets) -> FloatArray:
        """(B,) ms of each of the B sets of loads; those of a set have one form."""
        return self._of_calls(sets, lambda model, calls: model.predict(calls))

    def spread_ms(self, sets: LoadSets) -> FloatArray:
        """(B,) what the members of each form's ensemble disagree by, ms."""
        return self._of_calls(sets, lambda model, calls: model.spread_ms(calls))

    def _of_calls(self, sets: LoadSets, ask: Callable[[SumModel, LoadSets], FloatArray]) -> FloatArray:
        found, form = np.zeros(len(sets)), sets.forms
        for known, model in self.calls.items():
            which = np.flatnonzero(form == FORMS.index(known))
            if len(which):
                found[which] = ask(model, sets.take(which))
        return found

    @property
    def _named(self) -> dict[str, Any]:
        return {form.value: model for form, model in self.calls.items()}

    def settings(self) -> dict[str, Any]:
        """What isn't a tensor."""
        return {"calls": described(self._named)}

    def tensors(self) -> Tensors:
        """The models', under the names of their forms."""
        return tensors_of(self._named)

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> "ComputeByForm":
        """The model that gave the settings and tensors."""
        calls = parse(settings, ByFormSettings, "settings").calls
        if Form.COLUMNS not in calls:
            raise ValueError("it doesn't know columns")
        return cls({Form(name): one.restored(COMPUTE_KINDS, name, tensors) for name, one in calls.items()})
