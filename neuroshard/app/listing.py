"""`neuroshard models`: which cost models are installed, and what their cards say."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table as Grid

from neuroshard.bundles import ROOFLINE, shipped_names, shipped_path
from neuroshard.cost.cost import PARTS
from neuroshard.models.bundle import bundle_at, load_bundle
from neuroshard.models.calibration import Calibration, is_calibration
from neuroshard.models.cost_models import CostModels
from neuroshard.models.datasheets import checks
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.registry import described
from neuroshard.words.form import CALLS


def show_models(arguments: list[str], console: Console) -> None:
    """Print a line for every installed model, or the whole card of the one that is named.

    Raises:
        UserError: more than one name is given, or it is no bundle's.
    """
    if len(arguments) > 1:
        raise UserError(f"neuroshard models takes one name at most, not {len(arguments)}")
    if arguments and arguments[0].startswith(ROOFLINE):
        sheet = arguments[0].removeprefix(ROOFLINE).partition("+")[0]
        figures = OmegaConf.to_container(described("roofline", sheet))
        CostModels.load(arguments[0])  # which says what is wrong with the words behind the sheet's name
        errors = {check.kind: str(check) for check in checks(CostModels.load(f"{ROOFLINE}{sheet}"))}
        console.print_json(json.dumps({"figures": figures, "beside published points": errors}))
        return
    if arguments:
        CostModels.load(arguments[0])  # which says what is wrong with the name
        base = arguments[0]
        while shipped_path(base) is None and not Path(base).exists():
            base = base.rpartition("+")[0]  # words behind the name change how it is costed, not what was measured
        if is_calibration(Path(base)):
            console.print_json(json.dumps(asdict(Calibration.load(Path(base)))))
            return
        card = load_bundle(shipped_path(base) or bundle_at(Path(base)))[1]
        console.print_json(json.dumps(asdict(card)))
        return
    console.print(_shipped_bundles())
    console.print(_datasheets())
    console.print("use: model=NAME, or CostModels.load(NAME); `neuroshard models NAME` prints a card")
    console.print("model=cpu+torchrec costs whole training steps: with what TorchRec adds to kernels and exchanges")


def _shipped_bundles() -> Grid:
    grid = Grid(title="Measured and pre-trained (errors: MAPE on tables never seen in training)")
    for column in ("name", "hardware", "batch sizes", "devices", "forms", "compute", "forward", "backward"):
        grid.add_column(column)
    for name in shipped_names():
        path = shipped_path(name)
        assert path is not None
        models, card = load_bundle(path)
        ranges, tests = models.ranges, card.metrics
        spans = ("any", "any") if ranges is None else (_span(ranges.batch_size), _span(ranges.devices))
        errors = ("" if tests is None else f"{getattr(tests, part).test.mape:.1%}" for part in PARTS)
        known = (call.name for call in CALLS if call in models.compute.calls and call.form in models.forms)
        forms = ", ".join(known)
        grid.add_row(name, "" if card.hardware is None else card.hardware.device, *spans, forms, *errors)
    return grid


def _datasheets() -> Grid:
    grid = Grid(
        title="Arithmetic on datasheets and published points, not measured here (any batch size, any number of devices)"
    )
    for column in ("name", "source"):
        grid.add_column(column)
    for name in choices("roofline"):
        grid.add_row(f"{ROOFLINE}{name}", str(described("roofline", name)["source"]))
    return grid


def _span(span: Any) -> str:
    return f"{span.least:g} to {span.most:g}" if span.least < span.most else f"{span.most:g}"
