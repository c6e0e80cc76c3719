"""Writes the tables of docs/results/roofline_*.md: published and measured times beside predicted times."""

import sys
from pathlib import Path

import numpy as np

from neuroshard.models import CostModels
from neuroshard.models.datasheets import Check, checks
from neuroshard.models.network import errors, pcie_errors
from neuroshard.plumbing.configs import choices

DOCS = Path(__file__).resolve().parent
PAGES = DOCS / "results" / "roofline_errors.md", DOCS / "results" / "roofline_exchanges.md"
sys.path.append(str(DOCS.parent / "benchmarks"))
_OWN = ("a100", "h100", "h200", "b200")  # whose collectives are published


def tables() -> dict[str, str]:
    """Make the tables, by the names of the marks that they stand between on a page."""
    found = {sheet: checks(CostModels.load(f"roofline:{sheet}")) for sheet in choices("roofline")}
    made = {"measured": _measured(), "kernels": _kernels(found), "exchanges": _exchanges(found)}
    made |= {"hosts": _hosts(), "pcie": _pcie()}
    return {name: "\n".join(table) for name, table in made.items()}


def pages() -> dict[Path, str]:
    """Return the text of each page, with its tables made again."""
    made = tables()
    return {page: _with_tables(page.read_text(), made) for page in PAGES}


def _with_tables(page: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        first, last = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        if first in page:
            page = page[: page.index(first) + len(first)] + table + page[page.index(last) :]
    return page


def _measured() -> list[str]:
    from kernel_errors import errors

    rows = [
        f"| {call} | {its.calls} | {its.error:.1%} | {its.tau:.2f} |"
        for call, its in errors(CostModels.load("roofline:h100").compute).items()
    ]
    return ["| call | measured | mean error | Kendall's tau |", "| --- " * 4 + "|", *rows]


def _kernels(found: dict[str, tuple[Check, ...]]) -> list[str]:
    head = ["| model | call | published, ms | predicted, ms | error | error if left out |", "| --- " * 6 + "|"]
    rows = []
    for sheet, kinds in found.items():
        for check in kinds:
            if "devices" in check.group:
                continue
            for what, published, *ms in zip(check.what, check.published, check.predicted, check.left_out, strict=True):
                off = [f"{one / published - 1:+.0%}" if np.isfinite(one) else "" for one in ms]
                rows.append(f"| {sheet} | {check.group}: {what} | {published:.3f} | {ms[0]:.3f} | {' | '.join(off)} |")
    return head + rows


def _exchanges(found: dict[str, tuple[Check, ...]]) -> list[str]:
    head = ["| model | collective | mean error | largest | if left out: mean error | largest |", "| --- " * 6 + "|"]
    rows = []
    for sheet in _OWN:
        for check in found[sheet]:
            if check.group.endswith("8 devices"):
                off = [np.abs(ms / check.published - 1) for ms in (check.predicted, check.left_out)]
                told = " | ".join(f"{np.nanmean(one):.1%} | {np.nanmax(one):.1%}" for one in off)
                rows.append(f"| {sheet} | {check.group} | {told} |")
    return head + rows


def _hosts() -> list[str]:
    head = ["| network | machine | collective | typical factor | fitted to other machines |", "| --- " * 5 + "|"]
    rows = []
    for network, title in (
        ("infiniband", "InfiniBand, RoCE"),
        ("efa", "EFA"),
        ("slingshot", "Slingshot"),
        ("tcp", "TCP"),
    ):
        for one in errors(network):
            left_out = "one machine" if one.left_out is None else f"{one.left_out:.2f}"
            rows.append(f"| {title} | {one.machine} | {one.collective} | {one.typical:.2f} | {left_out} |")
    return head + rows


def _pcie() -> list[str]:
    head = ["| machine | devices | collective | typical factor | with the machine's bandwidth |", "| --- " * 5 + "|"]
    rows = [
        f"| {one.machine} | {one.devices} | {one.collective} | {one.typical:.2f} | {one.measured:.2f} |"
        for one in pcie_errors()
    ]
    return head + rows


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
