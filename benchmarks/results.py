"""Makes every table and picture that README and the pages in docs/results/ show: `make results`.

usage: results.py [--small] [NAME ...]    (--small: minutes, into build/results/small, to see that all runs)

Let nothing else run: about an hour on two cores. A table is a file in docs/results/ that says when, where and
with which models it was made; pages in docs/results/ hold them between markers. A finished table isn't made again as
long as its models stay: delete its file for that. After a stop the same command goes on with the unfinished table.
"""

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pictures
import yaml
from choices import gains_by_size, judged_rules
from h100 import memory_shares
from headline import headline, summary
from papers import ablations, papers_methods, sensitivity
from ranks import beside_mirrors
from search_costs import methods, scaling, speed, two_plans
from shared import COLUMN_WISE, Made, evaluated, facts, markdown, papers_tasks, with_tables
from training_steps import beside_torchrec, predicted_steps, step_plans, steps_by_method
from unmeasured import judged_without_margins
from views import VIEWS, view

from neuroshard.bundles import shipped_path
from neuroshard.models import CostModels, load_bundle
from neuroshard.models.bundle import ModelTest
from neuroshard.plumbing.files import write_atomically
from neuroshard.searching.searcher import searcher_of
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.runs.search import Search
from neuroshard.words.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs" / "results"
PAGES = tuple(
    TABLES / f"{name}.md"
    for name in (
        *("summary", "cpu_steps", "mirrored_steps", "plans_and_search"),
        *("papers", "errors", "accepting", "what_does_not_hold"),
    )
)
WORK = ROOT / "build" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description="make the tables and pictures of docs/results/")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("names", nargs="*", choices=[[], *MAKERS])
    options = parser.parse_args()
    folder, work = (WORK / "small", WORK / "small" / "runs") if options.small else (TABLES, WORK)
    for name in options.names or MAKERS:
        make(name, folder, work, options.small)
    if not options.small and all((TABLES / f"{name}.csv").exists() for name in MAKERS):
        pictures.draw(TABLES, TABLES.parent)
        for page, text in pages().items():
            page.write_text(text)


def make(name: str, folder: Path, work: Path, small: bool) -> None:
    """Make a table as a CSV file in `folder`, unless the file exists and was made with the present cost models."""
    path = folder / f"{name}.csv"
    if path.exists() and facts(path)["models"] == models_of(name):
        print(f"{name}: there already")
        return
    made = MAKERS[name](work / name, small)
    said = {
        "made": f"{datetime.now(UTC):%-d %B %Y}",
        "machine": made.machine or str(fingerprint("cpu")),
        "models": models_of(name),
        "noise": made.noise,
    }
    head = "".join(f"# {key}: {value}\n" for key, value in said.items())
    write_atomically(path, (head + made.frame.to_csv(index=False)).encode())
    print(f"{name}: {path}")


def models_of(name: str) -> str:
    """Return the name of the cost models with which a table is made, with the first digits of their digest."""
    if name in ("choices", "gains", "unmeasured"):
        return "fitted to made-up devices"
    if name in ("headline", "summary"):
        return f"{models_of('steps')}, h100 {(CostModels.load('h100').digest or '')[:8]}"
    if name == "speed":
        return f"the papers' networks, roofline:h100 {_analytic_digest()[:8]}"
    if name in ("scaling", "tiers"):
        return f"roofline:h100 {_analytic_digest()[:8]}"
    if name in ("steps", "predicted_steps", "steps_by_method", "step_plans", "mirrored", "errors"):
        return f"cpu {(CostModels.load('cpu').digest or '')[:8]}, framework=torchrec"
    weights = next((ROOT / "neuroshard/bundles/cpu").glob("weights-*"))  # of kernels and exchanges
    return f"cpu {weights.stem.removeprefix('weights-')[:8]}"


def _analytic_digest() -> str:
    """Return the digest of all figures from which `roofline:h100` computes costs; comments and
    sources do not change it.
    """
    config = yaml.safe_load((ROOT / "conf" / "roofline" / "h100.yaml").read_text())
    figures = json.dumps({key: value for key, value in config.items() if key != "source"}, sort_keys=True)
    points = sorted((ROOT / "neuroshard/models/points").glob("*.csv"))
    return sha256(figures.encode() + b"".join(file.read_bytes() for file in points)).hexdigest()


def pages() -> dict[Path, str]:
    """Return the text of every page, with each table between its markers."""
    tables = {name: partial(shown, name) for name in (*MAKERS, *VIEWS)}
    return {page: with_tables(page.read_text(), tables) for page in PAGES}


def shown(name: str) -> str:
    """Return the Markdown of a view: the columns of a table that the pages show."""
    table, part = view(name)
    return as_markdown(TABLES / f"{table}.csv", part)


def as_markdown(path: Path, part: Callable[[pd.DataFrame], pd.DataFrame]) -> str:
    """Return a part of a table as Markdown, followed by a line with the file, the date, the machine,
    the models and the noise.
    """
    frame = part(pd.read_csv(path, comment="#", dtype=str, keep_default_na=False))
    known = facts(path)
    made = f"Made on {known['made']}, {known['machine']}. Models: `{known['models']}`. {known['noise']}"
    return f"{markdown(frame.columns, frame.to_numpy())}\n<sub>[{path.name}]({path.name}). {made}</sub>\n"


_ON_HARDWARE = {
    "size_lookup_greedy": "size-lookup greedy, the best of the heuristics",
    "torchrec": COLUMN_WISE,
    "neuroshard": "**default**",
}


def hardware(work: Path, small: bool) -> Made:
    """Search plans for tasks of the papers, measure the plans, and return a table of predicted and measured costs."""
    tasks, plans = papers_tasks(4, 4096, 2 if small else 12), {name: str(work / name) for name in _ON_HARDWARE}
    for name, out in plans.items():
        Search("cpu", tasks, searcher_of(name), name, out).run()
    result = evaluated([*plans.values()], None, work / "measured", KernelMeasurer())
    return _of_plans(pd.DataFrame(result.frames["results"]))


def _of_plans(frame: pd.DataFrame) -> Made:
    by = {name: its.set_index("task") for name, its in frame.groupby("method")}
    ours, rows = by["neuroshard"], []
    speed = (frame["predicted_ms"] / frame["measured_ms"]).median()
    inside = ((frame["predicted_ms"] - frame["measured_ms"]).abs() <= frame["margin_ms"]).sum()
    for searcher, name in _ON_HARDWARE.items():
        its = by[searcher]
        less = 1 - ours["measured_ms"] / its["measured_ms"]
        off = its["predicted_ms"] / its["measured_ms"] - 1
        rows.append(
            {
                "method": name,
                "predicted ms": f"{its['predicted_ms'].mean():.2f}",
                "measured ms": f"{its['measured_ms'].mean():.2f}",
                "mean error": f"{off.abs().mean():.1%}",
                "after one common factor": f"{((off + 1) / speed - 1).abs().mean():.1%}",
                "default cheaper by": "" if its is ours else f"{less.mean():.1%} ± {less.sem():.1%}",
                "cheaper on": "" if its is ours else f"{(less > 0).sum()} of {len(its)}",
            }
        )
    noise = f"{inside} of {len(frame)} measured costs are inside their predicted 90% intervals."
    factor = f"The common factor is the machine's speed on that day: {speed:.2f}."
    return Made(pd.DataFrame(rows), f"Standard errors are over tasks. {noise} {factor}")


def errors(_work: Path, _small: bool) -> Made:
    """Return a table of the errors of the installed models on tables that were not in the training
    data, from the model card.
    """
    _, card = load_bundle(shipped_path("cpu"))
    tests = card.metrics
    assert tests is not None
    every = {"compute": tests.compute, "forward": tests.forward, "backward": tests.backward} | tests.others
    rows = [{"model": _WORDS.get(name, name), **_errors_of(test)} for name, test in every.items()]
    return Made(pd.DataFrame(rows), "It is the machine that the models were measured on.", str(card.hardware))


_WORDS = {
    "compute": "compute of column-wise tables",
    "compute.row_wise": "compute of row-wise tables",
    "compute.data_parallel": "compute of data-parallel tables",
    "compute.sequence_column_wise": "compute of column-wise sequence tables",
    "compute.sequence_row_wise": "compute of row-wise sequence tables",
    "forward": "forward all-to-all",
    "forward.reduce_scatter": "forward reduce-scatter",
    "backward": "backward all-to-all",
    "backward.reduce_scatter": "backward all-gather",
    "backward.all_reduce": "backward all-reduce",
    "input": "exchange of indices and lengths",
    "framework.input": "TorchRec's own work: input",
    "framework.kernels": "TorchRec's own work: around kernels",
    "framework.outputs": "TorchRec's own work: outputs",
}


def _errors_of(test: ModelTest) -> dict[str, str]:
    tenths = np.array(test.test.decile_mape)
    return {
        "test values": f"{test.test.samples}",
        "mean error": f"{test.test.mape:.1%}",
        "repeated measurement differs by": f"{test.noise_mean:.1%}",
        "Kendall's tau": f"{test.test.kendall_tau:.3f}",
        "error by tenth of the cost, lowest to highest": f"{tenths.min():.1%} to {tenths.max():.1%}",
        "inside the 90% intervals": f"{test.coverage:.0%}",
    }


MAKERS: dict[str, Callable[[Path, bool], Made]] = {
    "predicted_steps": predicted_steps,
    "steps_by_method": steps_by_method,
    "step_plans": step_plans,
    "errors": errors,
    "plan": two_plans,
    "methods": methods,
    "scaling": scaling,
    "speed": speed,
    "papers_methods": papers_methods,
    "ablations": ablations,
    "sensitivity": sensitivity,
    "tiers": memory_shares,
    "hardware": hardware,
    "choices": judged_rules,
    "gains": gains_by_size,
    "unmeasured": judged_without_margins,
    "mirrored": beside_mirrors,
    "steps": beside_torchrec,
    "headline": headline,
    "summary": summary,
}

if __name__ == "__main__":
    main()
