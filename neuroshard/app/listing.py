"""`neuroshard models`: which cost models are installed, and what their cards say."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from neuroshard.bundles import ROOFLINE, shipped_names, shipped_path
from neuroshard.cost.cost import PARTS
from neuroshard.models.bundle import load_bundle
from neuroshard.models.cost_models import CostModels
from neuroshard.models.datasheets import checks
from neuroshard.models.trust import ModelTest, Range
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import described
from neuroshard.words.form import CALLS


def show_models(arguments: list[str], console: Console) -> None:
    """Print a line for every installed model, or the whole card of the one that is named.

    Raises:
        UserError: there is more than one name, or it is no bundle's.
    """
    if len(arguments) > 1:
        raise UserError(f"neuroshard models takes one name at most, not {len(arguments)}")
    if arguments:
        console.print_json(data=_card(arguments[0]))
        return
    console.print(_shipped_bundles())
    console.print(_datasheets())
    console.print("use: model=NAME, or CostModels.load(NAME); `neuroshard models NAME` prints a card")
    console.print("model=cpu+torchrec costs whole training steps: with what TorchRec adds to kernels and exchanges")
    console.print("model=h100+torchrec+dense8ms: the same on GPUs, beside a dense network that takes 8 ms")


def _card(name: str) -> dict[str, Any]:
    """Collect what there is to know of a model: of a datasheet its figures, of others where they come from."""
    if name.startswith(ROOFLINE):
        sheet = name.removeprefix(ROOFLINE).partition("+")[0]
        figures = described("roofline", sheet)
        CostModels.load(name)  # which says what is wrong with the words behind the sheet's name
        errors = {check.group: str(check) for check in checks(CostModels.load(f"{ROOFLINE}{sheet}"))}
        return {"figures": figures, "beside published points": errors}
    CostModels.load(name)  # which says what is wrong with the name
    while shipped_path(name) is None and not Path(name).exists():
        name = name.rpartition("+")[0]  # words behind it change how it is costed, not what was measured
    return asdict(load_bundle(shipped_path(name) or Path(name))[1])


def _shipped_bundles() -> Grid:
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
    title = "Arithmetic on datasheets and published points, not measured here (any batch size, any number of devices)"
    grid = Grid("name", "source", title=title)
    for name in choices("roofline"):
        grid.add_row(f"{ROOFLINE}{name}", str(described("roofline", name)["source"]))
    return grid


def _error(test: ModelTest | None) -> str:
    return "datasheet" if test is None else f"{test.test.mape:.1%}"


def _span(span: Range | None) -> str:
    if span is None:
        return "any"
    return f"{span.least:g} to {span.most:g}" if span.least < span.most else f"{span.most:g}"
