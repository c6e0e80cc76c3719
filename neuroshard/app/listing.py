"""The command `neuroshard models`, which lists the installed cost models or prints the model card of a single model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from neuroshard.bundles import ROOFLINE, shipped_names, shipped_path
from neuroshard.cost.cost import PARTS
from neuroshard.models import load_bundle
from neuroshard.models.bundle import ModelTest
from neuroshard.models.cost_models import CostModels
from neuroshard.models.datasheets import checks, exams
from neuroshard.models.trust import Range
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.output import print_facts
from neuroshard.plumbing.registry import described
from neuroshard.words.form import CALLS


@dataclass(frozen=True)
class BundleFacts:
    """Facts about an installed bundle of cost models.
    These are the measured device, the training range, the types of kernel calls that the models can predict, and the
    prediction errors.

    Attributes:
        name: name of the bundle, for model=NAME.
        device: the device that the models were measured on; None if it is unknown.
        batch_sizes, devices: the range of the training data; None for any.
        calls: the kernel calls that the models know, by their names.
        errors: error (MAPE) of each model on tables that were never seen in training, as a fraction by part;
            None if a datasheet predicts the part; empty if the models were not tested.
    """

    name: str
    device: str | None
    batch_sizes: Range | None
    devices: Range | None
    calls: tuple[str, ...]
    errors: dict[str, float | None]


@dataclass(frozen=True)
class DatasheetFacts:
    """The name of an analytic model, and the source of the figures in the model's datasheet.

    Attributes:
        name: name of the model, for model=NAME.
        source: source of the figures.
    """

    name: str
    source: str


@dataclass(frozen=True)
class ModelsFacts:
    """The installed cost models: bundles that were measured and pre-trained, and datasheets of analytic models."""

    bundles: tuple[BundleFacts, ...]
    datasheets: tuple[DatasheetFacts, ...]


def show_models(arguments: list[str], console: Console, *, as_json: bool = False) -> None:
    """Print a line for each installed model; if the arguments name a model, print only the model card of this model.

    With `as_json`, print one JSON object to standard output instead.

    Raises:
        UserError: there is more than one name, or the name is unknown.
    """
    if len(arguments) > 1:
        raise UserError(
            "models-names-count",
            f"`neuroshard models` is followed by {len(arguments)} names",
            limit="the maximum is 1",
            remedy="Give one name: `neuroshard models NAME`",
        )
    if as_json:
        print_facts(_card(arguments[0]) if arguments else ModelsFacts(tuple(_bundles()), tuple(_sheets())))
        return
    if arguments:
        console.print_json(data=_card(arguments[0]))
        return
    console.print(_shipped_bundles())
    console.print(_datasheets())
    console.print("use: model=NAME, or CostModels.load(NAME); `neuroshard models NAME` prints the card of a model")
    console.print("settings to add to model=NAME, also arguments of CostModels.load:")
    console.print("  framework=torchrec   include the framework overhead of TorchRec: costs of whole training steps")
    console.print("  dense_ms=8           with framework=torchrec, on GPUs: the dense network takes 8 ms of a step")
    console.print("  exchange_dtype=fp16  exchange embeddings and gradients as fp16 (fp16/bf16: forward/backward)")
    console.print(f"  optimizer=adam       with {ROOFLINE}NAME: kernels read and write the states of Adam")


def _card(name: str) -> dict[str, Any]:
    """Return the model card of an installed model, as a dict.
    For an analytic model, the card has the figures of the model's datasheet, and the errors of predicted times compared
    with published times. For a bundle of pre-trained models, the card has the measured hardware, the training data, the
    training settings and the test errors.
    """
    models = CostModels.load(name)  # raises UserError if the name is unknown
    if models.sheet is not None:
        errors = {check.group: str(check) for check in checks(models)}
        figures = described("roofline", models.sheet)
        return {"figures": figures, "beside published points": errors, "on published machines": exams(models)}
    return asdict(load_bundle(shipped_path(name) or Path(name))[1])


def _bundles() -> Iterator[BundleFacts]:
    """Yield, for each bundle of cost models in the package: its hardware, training range, kernel calls and test
    errors.
    """
    for name in shipped_names():
        path = shipped_path(name)
        assert path is not None
        models, card = load_bundle(path)
        ranges, tests = models.ranges, card.metrics
        yield BundleFacts(
            name,
            None if card.hardware is None else card.hardware.device,
            None if ranges is None else ranges.batch_size,
            None if ranges is None else ranges.devices,
            tuple(call.name for call in CALLS if call in models.compute.calls and call.form in models.forms),
            {} if tests is None else {part: _mape(getattr(tests, part)) for part in PARTS},
        )


def _sheets() -> Iterator[DatasheetFacts]:
    """Yield the name and the source of each datasheet of an analytic model."""
    for name in choices("roofline"):
        yield DatasheetFacts(f"{ROOFLINE}{name}", str(described("roofline", name)["source"]))


def _shipped_bundles() -> Grid:
    """Return a table of the bundles in the package: for each bundle, the training range and the prediction errors."""
    columns = "name", "hardware", "batch sizes", "devices", "sharding types", "compute", "forward", "backward"
    grid = Grid(*columns, title="Measured and pre-trained (errors: MAPE on tables never seen in training)")
    for bundle in _bundles():
        spans = _span(bundle.batch_sizes), _span(bundle.devices)
        errors = (_error(bundle.errors[part]) if bundle.errors else "" for part in PARTS)
        grid.add_row(bundle.name, bundle.device or "", *spans, ", ".join(bundle.calls), *errors)
    return grid


def _datasheets() -> Grid:
    """Return a table of the datasheets for analytic models, with the name and the source of each datasheet."""
    title = "Arithmetic on datasheets and published points, not measured here (any batch size, any number of devices)"
    grid = Grid("name", "source", title=title)
    for sheet in _sheets():
        grid.add_row(sheet.name, sheet.source)
    return grid


def _mape(test: ModelTest | None) -> float | None:
    return None if test is None else test.test.mape


def _error(mape: float | None) -> str:
    return "datasheet" if mape is None else f"{mape:.1%}"


def _span(span: Range | None) -> str:
    """Return a range as text, such as "2 to 8"; "any" for None."""
    if span is None:
        return "any"
    return f"{span.least:g} to {span.most:g}" if span.least < span.most else f"{span.most:g}"
