"""Measures the plans of each task in one or more passes (in a pass, every plan is measured once), and writes the
results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from neuroshard.measure import Hardware
from neuroshard.measure.plan_costs import Advance
from neuroshard.measure.store.plan_measurements import COST, Pass, error_of, passes_in
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import digest_of
from neuroshard.plumbing.progress import printer, progress_bar
from neuroshard.stages.search.evaluate.comparison import Evaluated, plans_of, runnable_by_task
from neuroshard.stages.search.evaluate.measurer import EvaluateResult, Measure, Measurer
from neuroshard.words.fingerprint import versions


def evaluated(
    measurer: Measurer,
    entries: Sequence[Evaluated],
    hardware: Hardware,
    seed: int,
    count_input: bool,
    directory: RunDirectory,
) -> EvaluateResult:
    """Measure all plans that can be run, and return the results. The plans of a task are measured together, and the
    results are also written into the directory.

    The directory must be locked. Passes that are on disk already are not measured again.

    Raises:
        UserError: nothing could be measured, the plans cannot be measured in this way, or the directory has another
            run.
    """
    if measurer.framework is None:
        _check_predictions(entries, count_input)
    facts = _begun(measurer, entries, hardware, seed, count_input, directory)
    lineups = {task: measurer.lineup(plans_of(of_task)) for task, of_task in runnable_by_task(entries).items()}
    tasks = [plans[0].task for plans in lineups.values()]
    with progress_bar() as progress, measurer.opened(tasks, hardware, count_input, printer(progress)) as measure:
        amounts = {task: measurer.amount(plans, count_input) for task, plans in lineups.items()}
        bar = progress.add_task("measurements", total=sum(amounts.values()) * measurer.passes)
        measured = dict[int, Sequence[Pass]]()
        for task, plans in lineups.items():
            files = passes_in(directory.path, task, plans, partial(measurer.wrong, plans))
            progress.advance(bar, amounts[task] * len(files.leading()))
            make = partial(_next_pass, measure, plans, (seed, task), partial(progress.advance, bar), directory.path)
            measured[task] = files.filled(measurer.passes, make)
    result = measurer.result(directory.path, entries, measured, hardware.fingerprint)
    result.save(facts)
    _check_measured(measured, directory)
    return result


def _check_predictions(entries: Sequence[Evaluated], count_input: bool) -> None:
    """Raise UserError if predicted and measured costs could not be compared, because only one of them includes the time
    of the input dist (the exchange of indices). Measured costs include this time if `count_input` is true.
    """
    for entry in entries:
        if entry.prediction is not None and entry.prediction.counts_input is not count_input:
            raise UserError(
                "count-input-differs",
                f"the predicted cost {'leaves out' if count_input else 'counts'} the input dist (exchange of indices)",
                where=entry.file or entry.method,
                limit=f"measured costs would {'count' if count_input else 'leave out'} the input dist, so the costs "
                "could not be compared",
                remedy="Remove count_input=true from this evaluation, or search again with count_input=true"
                if count_input
                else "Set count_input=true",
            )


def _next_pass(
    measure: Measure, plans: Sequence[Plan], seed: tuple[int, int], advance: Advance, run: Path, before: Sequence[Pass]
) -> Pass:
    """Measure every plan once more, and return the measurements, which are one pass. `before` has the earlier passes.
    If there are N earlier passes, the new pass has the number N, and N is added to the seed as the last number.
    """
    return measure(plans, len(before), [*seed, len(before)], advance, run)


def _check_measured(measured: Mapping[int, Sequence[Pass]], directory: RunDirectory) -> None:
    """Raise UserError if no plan of any task could be measured in any pass."""
    rows = [row for passes in measured.values() for one_pass in passes for row in one_pass]
    if not any(row.phase == COST for row in rows):
        first = error_of(rows)
        raise UserError(
            "evaluate-nothing-measured",
            "none of the plans could be measured",
            limit=f"the first error is: {first}",
            remedy=f"Read the errors of all plans in the file '{directory.path / 'results.parquet'}', correct the "
            "cause, and evaluate the plans again with another out=DIRECTORY",
        )


def _begun(
    measurer: Measurer,
    entries: Sequence[Evaluated],
    hardware: Hardware,
    seed: int,
    count_input: bool,
    run: RunDirectory,
) -> dict[str, object]:
    """Start an evaluation in a new run directory, or resume an interrupted evaluation in the existing run directory. A
    resumed evaluation must have the same plans and settings as before, except for the number of builds. In a build,
    TorchRec builds the model again with every plan, and the steps are timed.

    Returns:
        The content of `run.json`.

    Raises:
        UserError: the directory has another run.
    """
    tasks = tuple(plans_of(of_task)[0].task for of_task in runnable_by_task(entries).values())
    here = asdict(hardware.fingerprint)
    settings = measurer.settings(count_input)
    facts = {"measure": measurer.kind, **settings, "hardware": here, "seed": seed, "versions": versions()}
    fixed = {name: value for name, value in facts.items() if name != "builds"}
    fixed |= {"hardware": asdict(hardware), "measured on": here}
    files = [entry.file for entry in entries]
    contents = digest_of(*(Path(file) for file in files if file is not None))
    run.begin({**fixed, "plans": files, "digest of plans": contents}, tasks)
    return facts
