"""The command `neuroshard models`, which lists the installed cost models or prints the model card of one."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from neuroshard.bundles import ROOFLINE, shipped_names, shipped_path
from neuroshard.cost.cost import PARTS
from neuroshard.models import load_bundle
from neuroshard.models.bundle import ModelTest
from neuroshard.models.cost_models import CostModels
from neuroshard.models.datasheets import checks
from neuroshard.models.trust import Range
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import described
from neuroshard.words.form import CALLS


def show_models(arguments: list[str], console: Console) -> None:
    """Print a line for each installed model or, if the arguments name one, the card of this model.

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
    """Return the model card: the figures of a datasheet and its errors, or the provenance of a bundle."""
    models = CostModels.load(name)  # raises UserError if the name is unknown
    if models.sheet is not None:
        errors = {check.group: str(check) for check in checks(models)}
        return {"figures": described("roofline", models.sheet), "beside published points": errors}
    return asdict(load_bundle(shipped_path(name) or Path(name))[1])


def _shipped_bundles() -> Grid:
    """Return a table of the bundles in the package, with the ranges of their data and their errors."""
    columns = "name", "hardware", "batch sizes", "devices", "sharding types", "compute", "forward", "backward"
    grid = Grid(*columns, title="Measured and pre-trained (errors: MAPE on tables never seen in training)")
    for name in shipped_names():
        path = shipped_path(name)
        assert path is not None
        models, card = load_bundle(path)
        ranges, tests = models.ranges, card.metrics
        spans = ("any", "any") if ranges is None else (_span(ranges.batch_size), _span(ranges.devices))
        errors = ("" if tests is None else _error(getattr(tests, part)) for part in PARTS)
        forms = ", ".join(call.name for call in CALLS if call in models.compute.calls and call.form in models.forms)
        grid.add_row(name, "" if card.hardware is None else card.hardware.device, *spans, forms, *errors)
    return grid


def _datasheets() -> Grid:
    """Return a table of the datasheets for analytic models, with their sources."""
    title = "Arithmetic on datasheets and published points, not measured here (any batch size, any number of devices)"
    grid = Grid("name", "source", title=title)
    for name in choices("roofline"):
        grid.add_row(f"{ROOFLINE}{name}", str(described("roofline", name)["source"]))
    return grid


def _error(test: ModelTest | None) -> str:
    return "datasheet" if test is None else f"{test.test.mape:.1%}"


def _span(span: Range | None) -> str:
    """Return a range as text, such as "2 to 8"; "any" for None."""
    if span is None:
        return "any"
    return f"{span.least:g} to {span.most:g}" if span.least < span.most else f"{span.most:g}"
