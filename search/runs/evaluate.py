"""The evaluate run: measures plans on hardware, and compares the measured costs with the predicted costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neuroshard.measure import Hardware
from neuroshard.measure.hardware import is_follower
from neuroshard.measure.plan_costs import beyond_memory
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, warn_of
from neuroshard.plumbing.files import by_place, check_directory
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.output import OutputSettings
from neuroshard.plumbing.progress import Result
from neuroshard.plumbing.schema import PathName, PositiveCount, Seed
from neuroshard.stages.search.evaluate.comparison import Evaluated, plans_of, runnable_by_task
from neuroshard.stages.search.evaluate.evaluation import evaluated
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.evaluate.measurer import Measurer
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.words.model_choice import ModelSettings, settings_text


@dataclass(frozen=True)
@checked
class Evaluate(OutputSettings, ModelSettings):
    """The settings of `neuroshard evaluate`; the method `run` executes the command.

    Attributes:
        plans: plan files, or directories of search runs; required; give them as plain arguments, without 'plans=', as
            in: evaluate PLAN.json RUN_DIR.
        model: cost models (an installed name such as cpu, or a directory) whose predictions are compared with the
            measurements of plan files; None compares with the predictions stored in the files.
        hardware: hardware that the plans run on.
        max_tasks: maximum number of tasks to measure per search run, from the first task on; None measures all tasks.
        seed: seed of the random lookups.
        out: directory that the results are written to; None uses the next free directory under runs/evaluate.
        count_input: true measures the input dist (exchange of indices) with measure=kernels, and adds this exchange to
            the predictions of the setting model; false leaves this exchange out. Predictions of a search count the
            input dist if the search had count_input=true.
        measure: how plans are measured: kernels and exchanges one by one, training steps, or mirrored training steps.
    """

    plans: PathName | Sequence[PathName]
    model: PathName | None
    hardware: Hardware
    max_tasks: PositiveCount | None = None
    seed: Seed = 0
    out: PathName | None = None
    count_input: bool = False
    measure: Measurer = field(default_factory=KernelMeasurer)

    def run(self) -> "Result | None":
        """Measure every plan that fits; count tasks without a plan, and plans that do not fit, as failures.

        Return the result; None in processes that only take part in measurements.

        Raises:
            UserError: no plan can be run or measured, plans of one task cannot be compared, or `out` has another run.
        """
        entries = self._entries()
        _check_alike(entries)
        if not any(entry.runnable for entry in entries):
            first = next((entry.error for entry in entries if entry.error is not None), None)
            raise UserError(
                "evaluate-nothing-to-run",
                f"0 of {number_of(len(entries), 'given plan')} can be run",
                limit="" if first is None else f"the first error is: {first}",
                remedy="Give plans that fit their tasks and this machine's memory",
            )
        self.hardware.check()
        self.measure.check((), [*map(plans_of, runnable_by_task(entries).values())], self.hardware)
        if is_follower():
            self.measure.follow(self.hardware)
            return None
        if self.out is not None:
            check_directory(Path(self.out))
        directory = RunDirectory.at(self.out, "evaluate", self.hardware.device.kind)
        with directory.held():
            return evaluated(self.measure, entries, self.hardware, self.seed, self.count_input, directory)

    def _entries(self) -> list[Evaluated]:
        paths = [Path(self.plans)] if isinstance(self.plans, str) else [Path(path) for path in self.plans]
        if twice := [dict.fromkeys(same) for same in by_place(paths) if len(same) > 1]:
            names = " and as ".join(f"'{path}'" for path in twice[0])
            raise UserError(
                "evaluate-plan-twice", f"the same plan or run is given twice, as {names}", remedy="Name each path once"
            )
        simulator = self._simulator()
        by_path = [(path, self._of_run(path) if path.is_dir() else [self._of_file(path, simulator)]) for path in paths]
        methods = [entries[0].method for _, entries in by_path if entries]
        return [
            # Methods with the same name would be treated as one method.
            entry if methods.count(entry.method) == 1 else replace(entry, method=f"{entry.method} ({path})")
            for path, entries in by_path
            for entry in entries
        ]

    def _simulator(self) -> Simulator | None:
        """Return the simulator that predicts the costs of plan files; None if the predictions stored in the files are
        used.

        Raises:
            UserError: settings of models are given without a model.
        """
        if self.model is None:
            if given := self.model_settings:
                raise UserError(
                    "model-settings-without-model",
                    f"{settings_text(given)} is set, but model is not set",
                    limit="without model, predicted costs are read from the plan files",
                    remedy=f"Set model, such as model=cpu, or remove {settings_text(given)}",
                )
            return None
        framework = self.measure.framework
        models = CostModels.of(self.choice_of(self.model), framework)
        if framework is not None and models.framework is None:
            warn_of("neuroshard.evaluate", models.left_out("TorchRec"))
        return Simulator(models, self.count_input)

    def _of_run(self, path: Path) -> list[Evaluated]:
        run, entries = SearchRun.load(path), []
        for record in run.records:
            if self.max_tasks is None or record.task < self.max_tasks:
                plan, file = run.plan_of(record), None if record.plan is None else str(path / record.plan)
                error = record.error if plan is None else self._error(plan)
                entries.append(Evaluated(run.searcher, record.task, file, plan, record.seconds, error))
        return entries

    def _of_file(self, path: Path, simulator: Simulator | None) -> Evaluated:
        plan = Plan.load(path)
        predicted = plan if simulator is None else simulator.predicted(plan)
        return Evaluated(path.stem, 0, str(path), predicted, float("nan"), self._error(plan))

    def _error(self, plan: Plan) -> str | None:
        """Return the reason why a plan cannot be run; None if the plan can be run.

        A plan cannot be run if it breaks its task's limits, or if this host has too little memory for its CPU kernels.
        """
        if plan.violations:
            return f"the plan doesn't fit its task: {plan.violations[0]}"
        return beyond_memory(plan, self.hardware)


def _check_alike(entries: Sequence[Evaluated]) -> None:
    """Raise UserError if two plans have the same task number, but belong to tasks that cannot be compared."""
    first = dict[int, Evaluated]()
    for entry in entries:
        known = first.setdefault(entry.task, entry) if entry.plan is not None else entry
        if known.plan is not None and entry.plan is not None and (what := known.plan.task.unlike(entry.plan.task)):
            raise UserError(
                "evaluate-tasks-differ",
                f"the tasks of the plans '{known.file}' and '{entry.file}' differ in their {what}",
                limit="only plans of tasks with the same tables, batch size and devices can be compared",
                remedy="Evaluate the two plans separately",
            )
