"""The whole pipeline in Python: `collect` -> `pretrain` -> `search` -> `evaluate`, one function for each stage.

These functions do the same as the commands of these names. A stage is imported when its function is called, because
`pretrain` needs torch, and `search` does not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard.models.cost_models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError, check_name, warn_of
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.schema import shown
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.dense_time import find_plan
from neuroshard.searching.searcher import Searcher, searcher_of
from neuroshard.tables.table import Table
from neuroshard.targets.target import target_named
from neuroshard.tasks.task import Task

if TYPE_CHECKING:
    from neuroshard.plumbing.progress import Result
    from neuroshard.stages.augment.summary import Summary
    from neuroshard.stages.search.evaluate.measurer import Measurer

Files = str | Path | Sequence[str | Path]


def collect(
    tables: Sequence[Table],
    out: str | Path,
    *,
    hardware: str = "cpu",
    num_devices: Sequence[int] = (4,),
    batch_sizes: Sequence[int] = (4096,),
    **settings: Any,
) -> "Summary | None":
    """Measure kernel calls on random combinations of tables, and exchanges between devices, on this machine.

    Args:
        tables: tables to draw combinations from.
        out: directory that the measurements are written to; after an interruption, the same call continues there.
        hardware: "cpu" or "cuda", or another config in `conf/hardware/`.
        num_devices: numbers of devices that take part in exchanges; a process on this machine stands for each device.
        batch_sizes: global batch sizes (samples per step over all devices).
        settings: other fields of `Collect`, such as num_compute_samples=400.

    Returns:
        The number of measurements and their noise; None in processes of torchrun other than rank 0.

    Raises:
        UserError: a setting is out of range, the hardware is not here, or the measurements are too noisy.
    """
    from neuroshard.stages.augment.collect import Collect
    from neuroshard.stages.augment.comm import CommAugmentation
    from neuroshard.stages.augment.compute import ComputeAugmentation

    _check_names(collect, Collect, settings)
    drawn = {"compute": ComputeAugmentation(), "comm": CommAugmentation(num_devices=tuple(num_devices)), **settings}
    return Collect(
        tuple(tables), build("hardware", hardware), batch_sizes=tuple(batch_sizes), out=str(out), **drawn
    ).run()


def pretrain(
    data: Files, out: str | Path, *, compute_model: str = "ensemble", comm_model: str = "set", **settings: Any
) -> CostModels:
    """Fit cost models to the measurements in `data`, write them to `out`, and return them.

    Args:
        data: directory, or directories, that `collect` wrote.
        out: directory that the models are written to; `CostModels.load(out)` loads them later.
        compute_model, comm_model: names of configs in `conf/compute_model/` and `conf/comm_model/`.
        settings: other fields of `Pretrain`, such as init="cpu" to fine-tune installed models.

    Raises:
        UserError: the data is missing, damaged or too small, or `out` contains other files.
    """
    from neuroshard.stages.pretrain.pretrain import Pretrain

    _check_names(pretrain, Pretrain, settings)
    fitters = {"compute_model": build("compute_model", compute_model), "comm_model": build("comm_model", comm_model)}
    Pretrain(_paths(data), str(out), **fitters, **settings).run()
    return CostModels.load(str(out))


def search(
    task: Task,
    simulator: Simulator,
    searcher: Searcher | str = "neuroshard",
    *,
    target: str | None = None,
    **settings: Any,
) -> Plan:
    """Find a plan for `task`, and return the plan with its predicted cost.
    `searcher` is a search method, or the name of a config in `conf/searcher/`.

    `settings` override the settings of the config, such as `beam_width=5`. With a `target` ("sok", "hugectr",
    "torchrec"), the task gets further constraints, so that `export_plan` can write the plan for the target. Costs for
    "torchrec" include the framework overhead of TorchRec if the models know it (`CostModels.in_torchrec`).

    One `NeuroShardWarning` has all warnings of the search, reasons why the predicted cost may be wrong
    (`Simulator.warnings`), and requirements of the plan for training in the target.

    Raises:
        UserError: the searcher, a setting or the target is unknown, or the simulator's models or the target do not
            support the task.
        InfeasibleError: the method finds no plan that fits in memory.
    """
    if not isinstance(simulator, Simulator):
        raise UserError(
            "search-without-simulator",
            f"simulator is {shown(simulator)}",
            limit="the type must be Simulator",
            remedy="Pass a Simulator, such as ns.Simulator(ns.CostModels.load('h100'))",
        )
    trainer = target_named(target)
    simulator = Simulator(trainer.costed(simulator.models), simulator.count_input)
    method = searcher_of(searcher, **settings)
    task = trainer.constrained(task)
    with blas_threads(1):
        found = find_plan(method, task, simulator)
        plan = simulator.predicted(found.plan)
    of_search = [found.warning] if found.warning else []
    of_costs = *simulator.warnings(plan), *trainer.cost_warnings(simulator.models), *trainer.memory_warnings(task)
    warn_of("neuroshard.search", (*of_search, *of_costs, *trainer.remarks(plan)))
    return plan


def evaluate(
    plans: Files,
    out: str | Path | None = None,
    *,
    hardware: str = "cpu",
    measure: "Measurer | str" = "kernels",
    model: str | Path | None = None,
    **settings: Any,
) -> "Result | None":
    """Measure plans on this machine, alternately, and compare the measured costs with the predicted costs.

    Args:
        plans: plan files (`plan.save(path)` writes one), or directories of search runs.
        out: directory that the results are written to; None uses the next free directory under runs/evaluate.
        hardware: "cpu" or "cuda", or another config in `conf/hardware/`.
        measure: "kernels" (kernels and exchanges, each by itself, as cost models predict them), "steps" (TorchRec's
            training steps), or an object.
        model: cost models for the predictions; None uses the predictions in the files.
        settings: other fields of `Evaluate`, such as max_tasks=10.

    Returns:
        The result: `show(console)` prints it, and `entries` has the plans with predicted and measured costs. None in
        processes of torchrun other than rank 0.

    Raises:
        UserError: a file is missing or damaged, or none of the plans can be measured here.
    """
    from neuroshard.stages.search.runs.evaluate import Evaluate

    _check_names(evaluate, Evaluate, settings)
    means = build("measure", measure) if isinstance(measure, str) else measure
    models, where = (None if path is None else str(path) for path in (model, out))
    return Evaluate(_paths(plans), models, build("hardware", hardware), out=where, measure=means, **settings).run()


def _check_names(function: Callable[..., Any], command: type[Any], settings: Iterable[str]) -> None:
    """Raise UserError if a name in `settings` is neither an argument of `function` nor a field of `command`, the
    settings of the command of this name.
    """
    arguments = [argument.name for argument in signature(function).parameters.values() if argument.name != "settings"]
    for name in settings:
        check_name(f"setting of ns.{function.__name__}", name, {*arguments, *(field.name for field in fields(command))})


def _paths(files: Files) -> str | tuple[str, ...]:
    """Return one path as a text, or several paths as a tuple of texts."""
    return str(files) if isinstance(files, (str, Path)) else tuple(map(str, files))
