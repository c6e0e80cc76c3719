"""The search run: one searcher finds plans for many tasks."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import sub
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid
from rich.text import Text

from neuroshard.measure.hardware import is_follower
from neuroshard.measure.store.run_directory import JobFigures, RunDirectory
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.files import check_directory, digest_of
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.output import OutputSettings
from neuroshard.plumbing.progress import plain_console, print_lines, progress_bar
from neuroshard.plumbing.schema import FileName, PathName
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.searcher import Searcher, classes_in, settings_of
from neuroshard.stages.search.evaluate.candidate_plan_files import Searched, read_searched, write_searched
from neuroshard.stages.search.evaluate.comparison import grid_of
from neuroshard.stages.search.evaluate.measurer import Measure
from neuroshard.stages.search.evaluate.search_task import search_task
from neuroshard.stages.search.evaluate.verification import Verify, save_candidate_plans
from neuroshard.stages.search.methods.acceptance import rejected_remark
from neuroshard.stages.search.methods.torchrec_default import Compare, check_compare
from neuroshard.stages.search.results.search_results import SearchRecord, SearchRun, predicted_columns
from neuroshard.stages.search.runs.compare import ComparedPlan, compared_plans, comparison_columns, comparison_lines
from neuroshard.targets.target import target_named
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions
from neuroshard.words.model_choice import TORCHREC, ModelChoice, ModelSettings

_SHOWN_TASKS = 20
_NUMBER = re.compile(r"\d[\d,.]*( million| billion)?")  # in a warning


@dataclass(frozen=True)
@checked
class Search(OutputSettings, ModelSettings):
    """The settings of `neuroshard search`; the method `run` executes the command.

    Attributes:
        model: cost models: an installed name (`neuroshard models` lists them), analytic models of a GPU such as
            roofline:h100, or a directory that `neuroshard pretrain` wrote.
        tasks: tasks to search plans for.
        searcher: search method.
        method: name of the search method in result files and reports.
        out: directory of the run; after an interruption, the same command continues there; None uses the next free
            directory under runs/search.
        count_input: true adds the input dist (exchange of indices) to predicted costs; false assumes that a training
            pipeline hides this exchange, as the papers do.
        verify: measures several plans of each task and takes the best of them; None takes the predicted best.
        target: None | sok | hugectr | torchrec | json: system that trains with the plans (NVIDIA's SOK or HugeCTR,
            TorchRec, or a reader of JSON); the search returns only plans that `neuroshard export` can write for this
            system; None excludes no plan.
        compare: None | torchrec: torchrec also finds the plan of TorchRec's default planner for each task, which can
            take minutes, and compares the predicted costs; the search itself stays the same.
    """

    model: PathName
    tasks: tuple[Task, ...]
    searcher: Searcher
    method: FileName
    out: PathName | None = None
    count_input: bool = False
    verify: Verify | None = None
    target: str | None = None
    compare: Compare | None = None

    def run(self) -> "SearchResult | None":
        """Search for a plan of every task; if a task has no plan, record the error that explains why.

        A killed run in `out` is resumed. A finished run is not repeated, unless its only task has no plan. Return the
        result; None in processes that only take part in measurements.

        Raises:
            InfeasibleError: the only task has no plan, which is also recorded.
            MissingPackageError: `compare` is set, and TorchRec is not installed.
            UserError: `out` has another run, the models do not support the tasks, or plans cannot be measured on this
                machine.
        """
        check_compare(self.compare)
        if self.verify is not None:
            self.verify.check(self.tasks)
            if is_follower():
                self.verify.measure.follow(self.verify.hardware)
                return None
        with blas_threads(1):
            result = self._run()
            if self.compare is None:
                return result
            simulator, saved = Simulator(self.models, self.count_input), result.saved
            return replace(result, compared=compared_plans(self.tasks, saved.records, simulator, saved.path))

    def _run(self) -> "SearchResult":
        if self.out is not None:
            check_directory(Path(self.out))
        simulator = Simulator(self.models, self.count_input)
        settings_of(self.searcher)  # raises an error about a setting before any work starts
        for task in self.tasks:
            simulator.models.check(task)
        with self._measuring() as measure:
            if self.out is not None and (there := RunDirectory(Path(self.out))).finished and not _found_nothing(there):
                there.begin(self._depends(simulator), self.tasks)
                return SearchResult(self._whole(there.path), self.tasks)
            return self._searched(simulator, measure)

    @cached_property
    def models(self) -> CostModels:
        """The cost models that predict the costs of plans for this search.

        The setting `framework` of the models says whether predicted costs include the overhead of a training
        framework, such as TorchRec. If this setting is None, the target system decides: for the target TorchRec, for
        example, the costs include the overhead of TorchRec. If the target system works with any framework, the costs
        include the overhead of the framework in whose training steps plans are measured. With the setting None,
        the overhead is included only if the models know the overhead.
        """
        return target_named(self.target).costed(CostModels.of(self.choice_of(self.model), self._usual_framework))

    @property
    def _usual_framework(self) -> str | None:
        """The name of the training framework, such as "torchrec", whose overhead the predicted costs include by
        default. The value is None if there is no such framework. The setting `framework` of the cost models has
        priority over this default.
        """
        return target_named(self.target).usual_framework(None if self.verify is None else self.verify.measure.framework)

    @property
    def _chosen(self) -> ModelChoice:
        """The name and the settings of the cost models with which the search finds plans."""
        framework = TORCHREC if self.models.of_whole_steps else None
        return replace(self.choice_of(self.model), framework=framework).normalized

    def _whole(self, path: Path) -> SearchRun:
        """Return the finished search run that is saved in a directory. Raise UserError if the saved run has another
        number of tasks than this search.
        """
        run = SearchRun.load(path)
        if len(run.records) != len(self.tasks):
            raise UserError(
                "search-run-task-count",
                f"the directory '{path}' has results of {number_of(len(run.records), 'task')}",
                limit=f"this search has {number_of(len(self.tasks), 'task')}",
                remedy=f"Delete the directory '{path}' and search again, or set out=DIRECTORY to another directory",
            )
        return run

    def _searched(self, simulator: Simulator, measure: Measure | None) -> "SearchResult":
        with progress_bar() as progress:
            bar = progress.add_task(self.method, total=len(self.tasks))
            first = self._search_one(self.tasks[0], simulator) if len(self.tasks) == 1 else None
            depends = self._depends(simulator)
            directory = RunDirectory.at(self.out, "search", self.method)
            with directory.held():
                if _found_nothing(directory):
                    SearchRun.record_parts(directory.path).clear()
                    directory.forget()
                directory.begin(depends, self.tasks)
                records, plans = list[SearchRecord](), dict[int, Plan]()
                parts = SearchRun.record_parts(directory.path)
                for number in range(len(self.tasks)):
                    if (record := parts.get(number)) is None:
                        answer = self._answer(directory.path, number, simulator, first, measure, progress)
                        record, plan = self._record(directory.path, number, answer, simulator)
                        parts.write(number, record)
                        if plan is not None and number < _SHOWN_TASKS:
                            plans[number] = plan
                    records.append(record)
                    progress.advance(bar)
                if self.verify is not None:
                    save_candidate_plans(directory.path, self.tasks, records)
                run = SearchRun(directory.path, self.method, tuple(records), self._chosen, depends["settings"])
                run.save(depends | {"versions": versions()})
            if first is not None and isinstance(first.found, InfeasibleError):
                raise first.found  # the run is recorded already, and reports count it
        return SearchResult(run, self.tasks, plans)

    def _measuring(self) -> AbstractContextManager[Measure | None]:
        if self.verify is None:
            return nullcontext()
        warn = plain_console(stderr=True).print
        return self.verify.measure.opened(self.tasks, self.verify.hardware, self.count_input, warn)

    def _depends(self, simulator: Simulator) -> dict[str, Any]:
        """Return a dict with the settings of the search, and the digests of the files that the search reads. Together
        with the tasks, these values determine the plans. An interrupted search is only continued if this dict is the
        same as before.
        """
        return {
            "settings": settings_of(self.searcher),
            "class": type(self.searcher).__name__,
            "classes": classes_in(self.searcher),
            "method": self.method,
            "model": self._chosen.fields,
            **({"count_input": True} if self.count_input else {}),
            **({} if self.verify is None else self.verify.settings),
            "reads": [*([simulator.models.digest] if simulator.models.digest else []), *self.searcher.reads()],
        }

    def _search_one(self, task: Task, simulator: Simulator) -> Searched:
        return search_task(self.searcher, task, simulator, 0 if self.verify is None else self.verify.candidate_plans)

    def _answer(
        self,
        directory: Path,
        number: int,
        simulator: Simulator,
        first: Searched | None,
        measure: Measure | None,
        progress: Progress,
    ) -> Searched:
        """Return the result of the search for the task with this number: the plan, or the error if no plan was found.
        If candidate plans are to be measured, the measured costs decide between them.

        If the setting `verify` is set, candidate plans are measured. They are found by a search, or read from files if
        an earlier run saved them.

        `first` is the state of the first task's answer, if the task was searched already.
        """
        task = self.tasks[number]
        if self.verify is None or measure is None:
            return first or self._search_one(task, simulator)
        if (searched := read_searched(directory, number, task)) is None:
            searched = first or self._search_one(task, simulator)
            if not searched.candidate_plans:
                return searched
            write_searched(directory, number, searched)
        return self.verify.judged(measure, directory, number, searched, self.count_input, progress)

    def _record(
        self, directory: Path, number: int, answer: Searched, simulator: Simulator
    ) -> tuple[SearchRecord, Plan | None]:
        """Save the plan of a task to a file. Return two values: the record of the task, and the plan. If the search
        found no plan, no file is written, and None is returned as the plan.
        """
        found = answer.found
        if isinstance(found, InfeasibleError):
            return SearchRecord(number, None, str(found), None, answer.seconds), None
        name = f"plans/task-{number:04d}.json"
        plan = simulator.predicted(found.plan)
        plan.save(directory / name)
        target = target_named(self.target)
        remarks = found.remark, rejected_remark(plan, found.rejected, simulator), *target.remarks(plan)
        remark = "; ".join(str(text) for text in remarks if text) or None
        doubts = found.warning, *simulator.warnings(plan), *self._left_out(simulator.models)
        warnings = "\n".join(str(text) for text in doubts if text) or None
        prediction = plan.prediction
        assert prediction is not None
        record = SearchRecord(
            number, name, None, seconds=answer.seconds, remark=remark, warnings=warnings, caveat=prediction.caveat,
            measured_ms=answer.measured_ms, **predicted_columns(plan),
        )  # fmt: skip
        return record, plan

    def _left_out(self, models: CostModels) -> tuple[Message, ...]:
        """Return a tuple with a warning if the predicted costs lack the overhead of the system that runs the training
        steps, such as TorchRec. Return an empty tuple if there is nothing to warn about.
        """
        counts_if_known = self._usual_framework is not None and models.framework is None
        return target_named(self.target).cost_warnings(models) or (
            models.left_out("TorchRec") if counts_if_known else ()
        )


@dataclass(frozen=True)
class SearchFacts:
    """The results of a search, as `format=json` prints them.

    Attributes:
        directory: directory of the run; the paths of plans in `tasks` are relative to the directory.
        method: name of the search method.
        model: the cost models: their name and settings.
        tasks: the result of each task.
        compared: the plans of TorchRec's default planner; empty without `compare`.
    """

    directory: str
    method: str
    model: Mapping[str, Any]
    tasks: tuple[SearchRecord, ...]
    compared: tuple[ComparedPlan, ...]


@dataclass(frozen=True)
class SearchResult:
    """The result of a search run, with the tasks that were searched.

    Attributes:
        saved: the run, as it is stored in files.
        tasks: the tasks.
        plans: the plans of shown tasks that this process found, by number of the task; other plans are in files.
        compared: the plans of TorchRec's default planner; empty without `compare`.
    """

    saved: SearchRun
    tasks: tuple[Task, ...]
    plans: Mapping[int, Plan] = field(default_factory=dict)
    compared: tuple[ComparedPlan, ...] = ()

    @property
    def outcome(self) -> JobFigures:
        """The costs, search time and free memory of this run. After a sweep, a table compares the runs of the sweep by
        these results.
        """
        costs = tuple(record.predicted_ms for record in self.saved.records)
        seconds = float(np.mean([record.seconds for record in self.saved.records]))
        devices = {task.topology.num_devices for task in self.tasks}
        plans = [plan for record in self.saved.records if (plan := self._plan_of(record)) is not None]
        free = [min(map(sub, plan.task.shard_memory, plan.device_bytes)) for plan in plans]
        scopes = dict.fromkeys(plan.prediction.scope for plan in plans if plan.prediction is not None)
        return JobFigures(
            digest_of(self.saved.path / "tasks.json"),
            costs,
            seconds,
            devices.pop() if len(devices) == 1 else None,
            min(free, default=None),
            tuple(scope for scope in scopes if scope is not None),
        )

    @property
    def facts(self) -> SearchFacts:
        """The results of all tasks, which `format=json` prints."""
        saved = self.saved
        return SearchFacts(str(saved.path), saved.searcher, saved.model.fields, saved.records, self.compared)

    def show(self, console: Console) -> None:
        """Print a row for each of the first 20 tasks and a summary;
        for a single task, print the places of the task's tables too.
        """
        console.print(self._grid())
        records = self.saved.records
        plan = self._plan_of(records[0]) if len(records) == 1 else None
        lines = [] if plan is not None else [f"predicted costs {line}" for line in (*self._scopes(), *self._caveats())]
        lines += [f"task {r.task}: {r.remark}" for r in records[:_SHOWN_TASKS] if r.remark is not None]
        if len(records) > _SHOWN_TASKS:
            lines.append(f"... and {len(records) - _SHOWN_TASKS} more in results.parquet")
        lines += [] if plan is None else str(plan).splitlines()
        solved = [record.predicted_ms for record in records if record.predicted_ms is not None]
        mean = f", mean predicted {np.mean(solved):.2f} ms" if solved else ""
        seconds = np.mean([record.seconds for record in records])
        lines.append(f"solved {len(solved)} of {len(self.tasks)} tasks{mean}, mean search {seconds:.3f} s")
        lines.append(f"plans: {self.saved.path / 'plans'}")
        lines += comparison_lines(records, self.compared, self.saved.path)
        if any(record.measured_ms is not None for record in records):
            lines.append(f"candidate plans: {self.saved.path / 'candidate_plans.parquet'}")
        print_lines(console, lines)
        for warning in self._warnings():
            console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    def _plan_of(self, record: SearchRecord) -> Plan | None:
        """Return the plan of a task; None if the search found no plan. The plan is read from the plan file if the plan
        is not in memory.
        """
        return self.plans.get(record.task) or self.saved.plan_of(record)

    def _grid(self) -> Grid:
        shown = self.saved.records[:_SHOWN_TASKS]
        tasks = [self.tasks[record.task] for record in shown]
        columns = {
            "task": [str(record.task) for record in shown],
            "tables": [str(len(task.tables)) for task in tasks],
            "devices": [str(task.topology.num_devices) for task in tasks],
            "predicted ms": [_predicted(record) for record in shown],
            "expected ms": [_known(record.expected_ms) for record in shown],
            "measured ms": [_known(record.measured_ms) for record in shown],
            "search s": [f"{record.seconds:.3f}" for record in shown],
        }
        columns |= comparison_columns(shown, self.compared)
        known = {name: cells for name, cells in columns.items() if any(cells)}
        return grid_of(Text(f"{self.saved.searcher}: {self.saved.path}"), known, words=0)

    def _caveats(self) -> list[str]:
        """Return the reasons to doubt the predicted costs, as texts. Usually all tasks have the same reason, and each
        text is returned only once.
        """
        return [
            f"are {caveat}" for caveat in dict.fromkeys(r.caveat for r in self.saved.records if r.caveat is not None)
        ]

    def _scopes(self) -> list[str]:
        """Return the parts of a training step that the predicted costs include, as texts. Usually the costs of all
        tasks include the same parts, and each text is returned only once.
        """
        plans = (self._plan_of(record) for record in self.saved.records[:_SHOWN_TASKS])
        known = [plan.prediction.scope for plan in plans if plan is not None and plan.prediction is not None]
        return [f"count {scope}" for scope in dict.fromkeys(known) if scope is not None]

    def _warnings(self) -> Iterator[str]:
        """Yield the warnings of the tasks, one line of text each. Of warnings that differ only in numbers, only the
        first is yielded. If other tasks have such a warning, too, the line ends with the number of these tasks, such as
        "(and in 3 more tasks)".

        A warning is left out if the warning contains the caveat of the task (the reason to doubt the predicted cost).
        """
        alike = defaultdict[str, dict[int, str]](dict)  # by text without numbers: the first warning of each task
        for record in self.saved.records:
            for warning in (record.warnings or "").splitlines():
                if record.caveat is None or record.caveat not in warning:
                    alike[_NUMBER.sub("", warning)].setdefault(record.task, warning)
        for by_task in alike.values():
            (task, warning), *others = by_task.items()
            more = f" (and in {number_of(len(others), 'more task')})" if others else ""
            yield f"task {task}: {warning}{more}"


def _found_nothing(there: RunDirectory) -> bool:
    """Return True if the run directory `there` has a finished search with a single task, and the search found no plan.
    Such a search may be repeated.
    """
    if not there.finished or (run := there.read()) is None or run.kind != "search":
        return False
    records = SearchRun.load(there.path).records
    return len(records) == 1 and records[0].error is not None


def _predicted(record: SearchRecord) -> str:
    margin = "" if record.margin_ms is None else f" ± {record.margin_ms:.2f}"
    return f"{_known(record.predicted_ms)}{margin}" or "no plan"


def _known(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}"
