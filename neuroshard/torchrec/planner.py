"""A planner for TorchRec's DistributedModelParallel that searches with our cost models."""

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from time import perf_counter
from types import UnionType
from typing import Any, Literal, TypeVar, get_args

import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import get_local_size, get_topology_domain_multiple
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    PlanLoader,
    ShardingOption,
    Stats,
    StorageReservation,
)
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingPlanner

from neuroshard.cost.cost import Cost
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.checkpoints import checkpoint_remark
from neuroshard.plans.moves import table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import InfeasibleError, UserError, user_error_in
from neuroshard.plumbing.messages import Message
from neuroshard.searching.searcher import Searcher, Verifier, searcher_of, verifier_of
from neuroshard.tasks.changes import TaskChanges
from neuroshard.tasks.constraints import Constraints
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.torchrec.asked import Asked, device_memory, host_memory, no_table_planned
from neuroshard.torchrec.bandwidths import with_bandwidths
from neuroshard.torchrec.finder import Finder, Replanned, kept_plan_outdated
from neuroshard.torchrec.groups import Groups, groups_of
from neuroshard.torchrec.kept import KeptPlan, check_replaceable, kept_in
from neuroshard.torchrec.known_tables import Known, known_tables
from neuroshard.torchrec.made_for import made_for
from neuroshard.torchrec.model import Model, loaded_plan
from neuroshard.torchrec.planner_report import (
    Callback,
    Reports,
    Sharders,
    data_parallel_remark,
    late_remark,
    loading_remark,
    mixed_remarks,
    options_of,
    precision_remark,
    unsound_remarks,
    withheld_remedy,
)
from neuroshard.torchrec.pods import ignored_pods_remark, pod_size_remark
from neuroshard.torchrec.prefetching import check_prefetching, flagged, pipeline_of
from neuroshard.torchrec.unread import no_data_parallel_remark, unread_remarks, unused_arguments
from neuroshard.torchrec.variable_batches import variable_batch_remarks
from neuroshard.words.model_choice import TORCHREC, ModelChoice, told

_log = logging.getLogger(__name__)
_BATCH_SIZE = 512  # TorchRec's default
_CANDIDATE_PLANS = _PASSES = 4
_RESERVED_SHARE = 0.15  # as TorchRec's default reservation
_DEFAULT_MODELS = {"cpu": "cpu", "cuda": "h100"}

_Answer = TypeVar("_Answer")


class NeuroShardPlanner(ShardingPlanner):
    """Drop-in replacement for TorchRec's EmbeddingShardingPlanner; arguments of the same name have the same meaning.

    Args:
        topology: TorchRec's topology; None makes the topology of the current process group, as TorchRec does.
        batch_size: samples of one device per step; None is TorchRec's default, 512.
        models: cost models, or their name or path; None takes "cpu" for CPUs, "h100" for CUDA GPUs. For devices of
            other types there are none: all tables are left to TorchRec's planner.
        constraints: TorchRec's ParameterConstraints by the name of the table, or by `path.name` for the table of one
            module: sharding types, min_partition, pooling factors, and settings that are passed on to the kernels. A
            table may be row-wise if its sharding types name row_wise, or if it has none. The search makes such a table
            row-wise if it accepts the predicted gain, or if nothing else fits.
        data_parallel: True lets the search make tables data-parallel. The optimizer of TorchRec's fused kernels does
            not train such tables: build their optimizer with `data_parallel_optimizer`. False leaves the type to tables
            whose constraints or `rules` name it, and to tables that TorchRec can't train otherwise: tables whose number
            of columns is not a multiple of 4.
        storage_reservation: TorchRec's reservation of memory for the rest of the model. None reserves 15% of the memory
            of every GPU.
        rules: NeuroShard's constraints, for rules that TorchRec's can't express: devices, tables together or apart,
            pinned shards.
        memory: memory that counts in addition to weights; None counts one batch's buffers, the state of the optimizer
            that the module or the sharders name, and the state of Adam for data-parallel tables, whose optimizer is not
            known beforehand.
        searcher: a search method, or the name of a config in `conf/searcher/`; `settings` override its settings.
        given: a plan whose parameters are kept as they are; the memory of these parameters is subtracted.
        tables: statistics of tables, or a file of statistics; they override the lookups in constraints.
        keep: a file for the plan; a later job with the same inputs reads it. If tables came, went, grew or have other
            statistics, all other tables stay where they are, and a warning says what changed. A file that is not a kept
            plan is refused, not overwritten. If the file was changed or damaged, a warning says so, and the search runs
            again.
        keep_types: if true, tables of the kept plan keep their sharding types and numbers of column shards when that
            plan is adapted or a new search replaces it, so that optimizer state loads from checkpoints.
        stats: TorchRec's reports, such as EmbeddingStats(), which logs at level INFO.
        callbacks: functions that take the plan as sharding options and return the options to use; each takes the result
            of the callback before.
        debug: passed on to the reports.
        pipeline: none | sparse_dist | prefetch | semi_sync: training pipeline of the job, whose batches in flight count
            as memory. "none" does not hide the input dist, so that costs count the input dist; "prefetch" sets up all
            caches of the plan to prefetch. None takes the pipeline of `memory`; if that has none either, memory counts
            one batch, and costs do not count the input dist.
        timeout_seconds: maximum time of planning. The timeout stops TorchRec's planner, but never NeuroShard's search,
            because a plan must not depend on how busy a machine is: a warning says if the search took longer.
        plan_loader: TorchRec's plan loader. If the loaded plan was made for this job, it is used; else the job is
            planned again, with a warning. If the plan fits several numbers of groups, the cheapest number counts. Not
            together with `keep`.
        num_groups: number of groups of TorchRec's DMPCollection, into which all ranks of the topology are divided;
            "auto" chooses the number by cost. The plan is the plan of a group.
        sync_steps: steps from one synchronisation of the groups' weights to the next.
        use_inter_host_allreduce: as in DMPCollection: True if groups are successive ranks.
        verify: mirrored | steps | kernels: the best plans of a new search are measured on this machine, as
            `neuroshard search verify=` does, and the fastest of them is taken; None takes the predicted best plan.
            Measuring takes minutes: plan in a separate process, not under torchrun, and let `keep` hand the plan to the
            job. Steps are measured in a plain loop if the job's `pipeline` is "none", else with sparse_dist. A Verifier
            object decides by itself.
        candidate_plans: maximum number of plans that are measured.
        passes: number of passes over all candidate plans, at least 2; the error is estimated from their differences.
        framework: "torchrec" if costs count the framework overhead that TorchRec adds to a step, "none" if they do not;
            None counts the overhead if the models know it, and else warns.
        dense_ms: ms of the dense network per step on a GPU; None takes the plan with the least worst-case regret from 0
            to 15 ms.
        exchange_dtype: data type of embeddings and gradients in exchanges, such as "fp16", or "fp16/bf16" for forward
            and backward; None for fp32. A warning names sharders that exchange another data type.
        model_optimizer: the optimizer whose states the kernels of analytic models ("roofline:...") read and write, such
            as "adam"; None for "sgd". The setting changes costs alone: `memory` sets the optimizer whose states take
            memory.

    Attributes:
        last_plan: the plan that was found last, of the tables that are planned here; None before the first plan, or if
            no table is planned here.
        last_cost: predicted cost of `last_plan`.
        last_groups: sharding groups of `last_plan`.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        models: CostModels | str | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        *,
        data_parallel: bool = False,
        storage_reservation: StorageReservation | None = None,
        rules: Constraints | None = None,
        memory: MemoryUse | None = None,
        searcher: Searcher | str = "neuroshard",
        given: ShardingPlan | None = None,
        tables: Known = None,
        keep: str | Path | None = None,
        keep_types: bool = False,
        stats: Stats | Sequence[Stats] | None = None,
        callbacks: Sequence[Callback] | None = None,
        debug: bool = True,
        pipeline: str | None = None,
        timeout_seconds: int | None = None,
        plan_loader: PlanLoader | None = None,
        num_groups: int | Literal["auto"] = 1,
        sync_steps: int = 1,
        use_inter_host_allreduce: bool = False,
        verify: Verifier | str | None = None,
        candidate_plans: int = _CANDIDATE_PLANS,
        passes: int = _PASSES,
        framework: str | None = None,
        dense_ms: float | None = None,
        exchange_dtype: str | None = None,
        model_optimizer: str | None = None,
        **settings: Any,
    ) -> None:
        _check_one_source(keep, plan_loader)
        _check_timeout(timeout_seconds)
        _check_type("topology", topology, TorchRecTopology)
        _check_type("models", models, CostModels | str)
        _check_type("storage_reservation", storage_reservation, StorageReservation)
        _check_type("rules", rules, Constraints)
        _check_type("memory", memory, MemoryUse)
        _check_type("stats", stats, Stats | Sequence)
        _check_type("callbacks", callbacks, Sequence)
        _check_type("plan_loader", plan_loader, PlanLoader)
        _check_type("sync_steps", sync_steps, int)
        _check_type("data_parallel", data_parallel, bool)
        _check_type("keep_types", keep_types, bool)
        topology = topology or _topology_of_group()
        batch_size = _checked_batch_size(batch_size)
        if not isinstance(given, ShardingPlan | None):
            raise UserError(
                "planner-given-type",
                f"given is {given!r}",
                limit="the type must be ShardingPlan",
                remedy="Pass a ShardingPlan, such as the result of load_sharding_plan(file)",
            )
        of_verify = {"candidate_plans": (candidate_plans, _CANDIDATE_PLANS), "passes": (passes, _PASSES)}
        for remark in unused_arguments(
            num_groups, sync_steps, use_inter_host_allreduce, keep_types and keep is None, verify, **of_verify
        ):
            _log.warning(remark)
        models = models or _default_models(topology.compute_device, dense_ms)
        costs, choice = _loaded_models(models, framework, dense_ms, exchange_dtype, model_optimizer)
        pipeline, constraints = pipeline_of(pipeline, memory), _checked_constraints(constraints or {})
        check_prefetching(constraints, pipeline)
        hides_input = pipeline != "none"
        simulator = with_bandwidths(_simulator(costs, hides_input), topology)
        if isinstance(verify, str):
            if choice is None:
                raise UserError(
                    "planner-verify-loaded-models",
                    f"verify is {verify!r}, but models is an object",
                    limit="the process that measures plans loads the cost models by their name or path",
                    remedy="Pass cost models by name or path, such as models='h100'",
                )
            verify = verifier_of(verify, choice, topology.compute_device, candidate_plans, passes, hides_input)
        self._finder = Finder(searcher_of(searcher, **settings), simulator, verify, keep_types)
        ways = groups_of(topology, num_groups, sync_steps, use_inter_host_allreduce)
        _warn_of_groups(ways, simulator.models, topology.compute_device)
        if ignored := ignored_pods_remark(topology):
            _log.warning(ignored)
        reservation = storage_reservation or FixedPercentageStorageReservation(_RESERVED_SHARE)
        self._asked = tuple(
            Asked(
                topology=groups.topology,
                batch_size=batch_size,
                reservation=copy(reservation) if groups.chosen else reservation,  # it knows what it left the last time
                constraints=constraints,
                fixed=flagged(given or ShardingPlan({}), pipeline, "given"),
                rules=rules or Constraints(),
                memory=memory,
                pipeline=pipeline,
                known=known_tables(tables, batch_size * groups.sharding_group_size),
                groups=groups,
                timeout_s=timeout_seconds,
                data_parallel=data_parallel,
            )
            for groups in ways
        )
        self._loader = plan_loader
        self._keep = None if keep is None else Path(keep)
        self._reports = Reports([stats] if isinstance(stats, Stats) else [*(stats or ())], list(callbacks or ()), debug)
        self._data_parallel: Message | None = None  # the warning of the last plan
        self._selected: Callable[[], list[ShardingOption]] = list
        self.last_plan: Plan | None = None
        self.last_cost: Cost | None = None
        self.last_groups: Groups | None = None

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Plan `module`, which may be on the meta device; modules without a sharder are left out.

        Args:
            module: the model that holds the collections of tables.
            sharders: None takes TorchRec's default sharders.

        Raises:
            UserError: the tables can't be planned, the constraints contradict each other, or `keep` is another file.
            InfeasibleError: no plan fits in memory.
        """
        return self._planned(module, sharders, dist.GroupMember.WORLD)

    def search(self, module: nn.Module, sharders: Sharders | None = None) -> Plan:
        """Find the plan as `plan` does, and return the NeuroShard plan of the tables planned here: to save or evaluate.

        `keep`, `plan_loader`, `callbacks` and `stats` have no effect here.

        Raises:
            UserError: as in `plan`, or no table of the model is planned here.
        """
        models = self._models(module, sharders)
        if not models[0].tables:
            raise no_table_planned()
        found = self._best(models, self._found)
        assert found.plan is not None
        self._remember(found, found.whole, found.plan)
        self._warn_of_whole(found.model, found.whole)
        return found.plan

    def replan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        *,
        previous: Plan | str | Path,
        max_moved_bytes: int | str | None = None,
        **settings: Any,
    ) -> Replanned:
        """Change the previous plan for tables that were added, removed or changed, or for another number of devices.

        Args:
            module: the model as it is now.
            sharders: None takes TorchRec's default sharders.
            previous: a NeuroShard plan, or its file: the file of `keep`, or a file that `Plan.save` wrote.
            max_moved_bytes: maximum bytes of weights and optimizer state of old tables that move, over all devices, as
                a number or as text such as "20GB"; None sets no limit.
            settings: settings of `searcher=replan`.

        Raises:
            UserError: as in `plan`, or every possible plan moves more bytes.
            InfeasibleError: no plan fits in memory.
        """
        return self._replanned(module, sharders, previous, max_moved_bytes, settings, dist.GroupMember.WORLD)

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Plan on rank 0 of the process group, and give the plan, `last_plan` and `last_cost` to all of its ranks.

        Raises:
            UserError: rank 0 found no plan; every rank raises the error.
            RuntimeError: rank 0 failed with another error, which rank 0 raises itself.
        """
        return self._collective(partial(self._planned, module, sharders), pg)

    def collective_replan(
        self,
        module: nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
        *,
        previous: Plan | str | Path,
        max_moved_bytes: int | str | None = None,
        **settings: Any,
    ) -> Replanned:
        """Call `replan` on rank 0 of the process group, and return the result on all of its ranks.

        Raises:
            UserError: rank 0 found no plan; every rank raises the error.
            RuntimeError: rank 0 failed with another error, which rank 0 raises itself.
        """
        return self._collective(partial(self._replanned, module, sharders, previous, max_moved_bytes, settings), pg)

    def get_selected_options(self) -> list[ShardingOption]:
        """Return the plan that this process found last as TorchRec's sharding options, as its planner does.

        Shards have TorchRec's estimates of memory, and predicted costs in ms. The list is empty before the first plan,
        and on ranks that received the plan from rank 0.
        """
        return self._selected()

    def get_search_space(self) -> None:
        """Return None, by which TorchRec means that a planner enumerates no sharding options beforehand."""

    def _collective(self, find: Callable[[dist.ProcessGroup], _Answer], pg: dist.ProcessGroup | None) -> _Answer:
        group = pg or dist.GroupMember.WORLD
        if group is None:
            raise UserError(
                "planner-collective-no-group",
                "torch.distributed has no process group",
                limit="collective_plan() and collective_replan() send the plan from rank 0 to the ranks of a group",
                remedy="Call torch.distributed.init_process_group() first, or use plan() or replan()",
            )
        self._selected = list
        answered = _of_first(group, partial(self._answer, find, group))
        answer, self.last_plan, self.last_cost, self.last_groups, self._data_parallel = answered
        if group.rank() > 0 and self._data_parallel:  # each rank builds its own optimizers
            _log.warning(self._data_parallel)
        return answer

    def _answer(
        self, find: Callable[[dist.ProcessGroup], _Answer], group: dist.ProcessGroup
    ) -> tuple[_Answer, Plan | None, Cost | None, Groups | None, Message | None]:
        """Return the result of `find`, and the attributes that all ranks need."""
        answer, plan = find(group), self.last_plan
        its = plan and replace(plan)  # without what was worked out of it
        return answer, its, self.last_cost, self.last_groups, self._data_parallel

    def _planned(self, module: nn.Module, sharders: Sharders | None, group: dist.ProcessGroup | None) -> ShardingPlan:
        """Read the whole plan from the file that it is kept in, or find it; report it, and keep a new one on rank 0."""
        started = perf_counter()
        models = self._models(module, sharders)
        kept = kept_in(self._keep) if self._keep else None
        found = self._after(kept, models) if kept else self._loaded(models) or self._best(models, self._found)
        return self._finished(found, group, started)

    def _after(self, kept: KeptPlan, models: Sequence[Model]) -> "_Way":
        """Return the kept plan if it was made for the same inputs; else adapt that plan or search for another one."""
        others = [self._differences(kept, one) for one in models]
        if () in others:
            _log.info("the planner uses the plan that was kept in %s", self._keep)
            model = models[others.index(())]
            return _Way(model, self._finder_of(model), model.restored(kept.sharding_plan), kept.plan, kept=True)
        if len(models) == 1:
            return self._searched(models[0], lambda finder, task: finder.found_after(kept, others[0], task))
        _log.warning(kept_plan_outdated(min(others, key=len)))

        def instead(model: Model) -> _Way:
            """Find a plan for a model in place of the kept one."""
            return self._searched(model, lambda finder, task: finder.found_instead(kept.plan, task))

        best = self._best(models, instead)
        if kept.plan and best.plan and (remark := checkpoint_remark(kept.plan, best.plan)):
            _log.warning(remark)
        return best

    def _differences(self, kept: KeptPlan, model: Model) -> tuple[str, ...]:
        """Name the inputs that differ from the kept plan; constraints that such devices can't keep differ, too."""
        try:
            asked = self._asked_for(model)
        except UserError:  # which is raised again if this model is planned
            return ("constraints",)
        return kept.differences(asked, device_memory(model.left), host_memory(model.left))

    def _loaded(self, models: Sequence[Model]) -> "_Way | None":
        """Return the plan of the plan loader; None without a loader, or, with a warning, if the plan fits no groups."""
        loader = self._loader
        if loader is None:
            return None

        def taken(model: Model) -> _Way:
            """Take the loaded plan for a model."""
            finder = self._finder_of(model)
            return _Way(model, finder, *loaded_plan(loader, model, finder.simulator.models))

        try:
            return self._best(models, taken)
        except UserError as error:
            _log.warning(
                Message(
                    "plan-loader-not-used",
                    "the planner does not use the plan of plan_loader=, and searches for another plan",
                    limit=str(error.changed(remedy="")),
                    remedy=error.message.remedy,
                )
            )
            return None

    def _best(self, models: Sequence[Model], find: Callable[[Model], "_Way"]) -> "_Way":
        """Return the cheapest plan over all numbers of groups; raise the first UserError if no number has a plan."""
        found: list[_Way] = []
        errors: list[UserError] = []
        for model in models:
            try:
                found.append(find(model))
            except UserError as error:  # too little memory, or a group too small for what constraints ask
                errors.append(error)
        if not found:
            raise errors[0]
        if len(found) > 1:
            costs = ", ".join(f"{way.model.asked.groups.num_groups}: {way.total_ms:.3f}" for way in found)
            _log.info("predicted ms by number of groups: %s", costs)
        return min(found, key=lambda way: way.total_ms)

    def _found(self, model: Model) -> "_Way":
        """Find a plan for a model from nothing."""
        return self._searched(model, Finder.found)

    def _searched(self, model: Model, search: Callable[[Finder, Task], Plan]) -> "_Way":
        """Have TorchRec plan the parameters that are delegated to it, and find a plan for the tables planned here."""
        finder = self._finder_of(model)
        others, left = model.others()
        try:
            plan = search(finder, model.asked.task(model.tables, left)) if model.tables else None
        except InfeasibleError as error:
            remedies = error.message.remedy, withheld_remedy(model.tables.values())
            raise error.changed(remedy=". ".join(filter(None, remedies))) from None
        return _Way(model, finder, model.whole(others, plan), plan)

    def _replanned(
        self,
        module: nn.Module,
        sharders: Sharders | None,
        previous: Plan | str | Path,
        max_moved_bytes: int | str | None,
        settings: Mapping[str, Any],
        group: dist.ProcessGroup | None,
    ) -> Replanned:
        started = perf_counter()
        if self._keep:
            check_replaceable(self._keep)
        if not isinstance(previous, Plan | str | Path):
            raise UserError(
                "replan-previous-type",
                f"previous is {previous!r}",
                limit="previous must be a NeuroShard Plan, or the path of a file with a Plan",
                remedy="Pass the Plan that search() returned, a file that Plan.save wrote, or the file of keep=",
            )
        if self._loader or self._finder.verifier:
            _log.warning(
                Message(
                    "replan-arguments-unused",
                    "plan_loader= and verify= have no effect on replan()",
                    limit="replan() loads no plan from plan_loader and measures no plan",
                    remedy="Use plan() to load or measure plans",
                )
            )
        before = previous if isinstance(previous, Plan) else Plan.load(previous)
        models, size = self._models(module, sharders), before.task.topology.num_devices
        model = next((one for one in models if one.left.world_size == size), models[0])
        found = self._searched(model, lambda its, task: its.changed(before, task, max_moved_bytes, **settings))
        if found.plan is None:
            raise no_table_planned()
        whole = self._finished(found, group, started)
        after = self.last_plan or found.plan
        return Replanned(whole, after, table_changes(before, after), TaskChanges.between(before.task, after.task))

    def _finished(self, found: "_Way", group: dist.ProcessGroup | None, started: float) -> ShardingPlan:
        """Report and remember the whole plan; rank 0 of the group keeps it if it is new."""
        model, reports, took_s = found.model, self._reports, perf_counter() - started
        if found.kept:
            reports = replace(reports, callbacks=())  # they had it before it was kept
        elif remark := late_remark(took_s, model.asked.timeout_s):
            _log.warning(remark)
        whole, plan = reports.told(found.finder.simulator, model, found.whole, found.plan, took_s)
        self._remember(found, whole, plan)
        self._warn_of_whole(model, whole)
        parameters, ranks = model.division.parameters, int(model.left.world_size)
        for remark in (
            *unsound_remarks(parameters, whole),
            *mixed_remarks(parameters, whole, ranks),
            *variable_batch_remarks(parameters, whole, model.left.compute_device),
        ):
            _log.warning(remark)
        if model.asked.groups.num_groups == 1 and (remark := pod_size_remark(whole, model.left)):
            _log.warning(remark)
        if self._keep and not found.kept and (group is None or dist.get_rank(group) == 0):
            left = model.left
            its = KeptPlan(self._asked_for(model), self.last_plan, whole, device_memory(left), host_memory(left))
            if reports.callbacks and (lost := model.forgotten(whole)):
                _log.warning(
                    Message(
                        "kept-plan-callback-field",
                        f"the plan is not saved in the file {str(self._keep)!r}",
                        limit=f"a callback set {lost}, which the file cannot store",
                        remedy="Set that field in constraints instead of the callback, or remove keep=",
                    )
                )
            else:
                its.keep_in(self._keep)
        return whole

    def _asked_for(self, model: Model) -> dict[str, str]:
        """Return the digests of all inputs that a kept plan depends on; empty without `keep`."""
        return made_for(model, self._finder, self._reports.callbacks) if self._keep else {}

    def _models(self, module: nn.Module, sharders: Sharders | None) -> list[Model]:
        """List the model on each of the groups that there may be; raise UserError if `sharders` is no list."""
        _check_type("sharders", sharders, Sequence)
        sharders = sharders or get_default_sharders()
        first = self._asked[0]
        served = self._finder.served(first.topology)
        if first.data_parallel and (unused := no_data_parallel_remark(served, self._finder.searcher.takes_forms)):
            _log.warning(unused)
        model = Model.read(module, sharders, first, served)
        if remark := precision_remark(model, self._finder.simulator.models):
            _log.warning(remark)
        for remark in unread_remarks(model):
            _log.warning(remark)
        return [model, *(model.on(asked) for asked in self._asked[1:])]

    def _finder_of(self, model: Model) -> Finder:
        """Build the finder whose costs count how the model's groups are synchronised."""
        groups, simulator = model.asked.groups, self._finder.simulator
        if groups.num_groups == 1 or not model.tables:
            return self._finder
        task = model.asked.task(model.tables, model.left)
        counted = Simulator(groups.counted(simulator.models, task), simulator.count_input)
        return replace(self._finder, simulator=counted)

    def _remember(self, found: "_Way", whole: ShardingPlan, plan: Plan | None) -> None:
        """Remember the plan of the whole model, ours in it, and its cost, which is logged."""
        self._selected = partial(options_of, found.finder.simulator, found.model, whole, plan)
        self.last_plan, self.last_cost, self.last_groups = None, None, found.model.asked.groups
        if plan is None:
            return
        simulator, task = found.finder.simulator, plan.task
        cost = simulator.cost(task, plan)
        self.last_plan, self.last_cost = simulator.predicted(plan, cost), cost
        models = simulator.models
        left_out = models.left_out("TorchRec") if models.framework is None else ()  # else nobody wants it counted
        doubts = *simulator.warnings(plan), *left_out
        for warning in doubts:
            _log.warning(warning)
        groups = self.last_groups.num_groups
        where = f"{task.topology.num_devices} devices" + (f" of each of {groups} groups" if groups > 1 else "")
        _log.info("%d tables on %s:\n%s", len(task.tables), where, cost)

    def _warn_of_whole(self, model: Model, whole: ShardingPlan) -> None:
        """Warn of tables that no fused optimizer trains, on all ranks, and of tables that can't be loaded."""
        self._data_parallel = data_parallel_remark(model.division.parameters, whole)
        if self._data_parallel:
            _log.warning(self._data_parallel)
        if remark := loading_remark(model.division.parameters, whole):
            _log.warning(remark)


@dataclass(frozen=True)
class _Way:
    """A plan for a model on some groups: the whole plan, NeuroShard's plan in it, and True if a file has it already."""

    model: Model
    finder: Finder
    whole: ShardingPlan
    plan: Plan | None
    kept: bool = False

    @property
    def total_ms(self) -> float:
        """The predicted cost in ms; 0 for a plan by TorchRec alone, whose cost is unknown."""
        return 0.0 if self.plan is None else self.finder.simulator.cost(self.plan.task, self.plan).total_ms


def _of_first(group: dist.ProcessGroup, find: Callable[[], _Answer]) -> _Answer:
    """Call a function on rank 0 of a group, and return its result, or raise its error, on all ranks of the group."""
    reply: list[Any] = [None]
    raised: BaseException | None = None
    if group.rank() == 0:
        try:
            reply = [find()]
        except (Exception, SystemExit) as error:
            raised = error
            reply = [user_error_in(error) or RuntimeError(f"planning failed on rank 0: {error!r}")]
    if group.size() > 1:
        dist.broadcast_object_list(reply, dist.get_global_rank(group, 0), group=group)
    answer: Any = raised or reply[0]
    if isinstance(answer, (Exception, SystemExit)):
        raise answer
    found: _Answer = answer
    return found


def _said(value: object) -> str:
    """Return a value as an error names it: a text is called so, because quotes alone are easily overlooked."""
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _check_type(name: str, value: object, wanted: type | UnionType) -> None:
    """Raise UserError unless an argument is None or of the wanted type."""
    if value is not None and not isinstance(value, wanted):
        words = " or ".join(its.__name__ for its in get_args(wanted) or (wanted,))
        raise UserError(
            "planner-argument-type",
            f"{name} is {value!r}",
            limit=f"the type must be {words}",
            remedy=f"Set {name} to a value of that type, or leave {name} out",
        )


def _check_one_source(keep: str | Path | None, plan_loader: PlanLoader | None) -> None:
    """Raise UserError if both arguments bring a plan."""
    if keep is not None and plan_loader is not None:
        raise UserError(
            "planner-keep-with-loader",
            "keep= and plan_loader= are both set",
            limit="each of the two supplies the plan",
            remedy="Remove keep= or plan_loader=",
        )


def _check_timeout(timeout_seconds: int | None) -> None:
    """Raise UserError unless a timeout is a number above 0, or None."""
    if timeout_seconds is not None and not (isinstance(timeout_seconds, Real) and timeout_seconds > 0):
        raise UserError(
            "planner-timeout-not-positive",
            f"timeout_seconds is {_said(timeout_seconds)}",
            limit="timeout_seconds must be a number above 0",
            remedy="Set timeout_seconds to a number above 0, without quotes, or leave timeout_seconds out",
        )


def _checked_batch_size(batch_size: int | None) -> int:
    """Return the samples of one device per step, TorchRec's default for None; raise UserError unless 1 or more."""
    batch_size = _BATCH_SIZE if batch_size is None else batch_size
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(
            "planner-batch-size-invalid",
            f"batch_size is {_said(batch_size)}",
            limit="batch_size must be a whole number, 1 or more",
            remedy="Set batch_size to the number of samples per step on one device, without quotes",
        )
    return batch_size


def _checked_constraints(constraints: Mapping[str, ParameterConstraints]) -> dict[str, ParameterConstraints]:
    """Return constraints as a dictionary by the name of the table; raise UserError if they are something else."""
    if not isinstance(constraints, Mapping):
        raise UserError(
            "constraints-not-mapping",
            f"constraints is {constraints!r}",
            limit="the type must be a mapping from names of tables to ParameterConstraints",
            remedy="Pass a dictionary, such as {'table': ParameterConstraints(sharding_types=['row_wise'])}",
        )
    for name, said in constraints.items():
        if not isinstance(said, ParameterConstraints):
            raise UserError(
                "constraints-entry-type",
                f"the value is {said!r}",
                where=f"constraints of table {name!r}",
                limit="the type must be ParameterConstraints",
                remedy="Pass ParameterConstraints(...) for this table",
            )
    return dict(constraints)


def _simulator(models: CostModels, hides_input: bool) -> Simulator:
    """Build the simulator, whose costs count the input dist if the job's pipeline does not hide it."""
    if not hides_input and models.input is None:
        _log.warning(
            Message(
                "models-input-dist-missing",
                "predicted costs leave out the input dist",
                limit="pipeline='none' does not hide the input dist, but these cost models cannot predict its time",
                remedy="Use cost models that were pretrained on data with 'input' in comm.collectives",
            )
        )
    return Simulator(models, count_input=not hides_input and models.input is not None)


def _warn_of_groups(ways: Sequence[Groups], models: CostModels, compute_device: str) -> None:
    """Warn if costs leave out the synchronisation of several groups, or if TorchRec cannot run them."""
    several = [one for one in ways if one.num_groups > 1]
    if not all(one.counts(models) for one in several):
        _log.warning(
            Message(
                "models-group-sync-missing",
                "predicted costs leave out the synchronisation of the groups",
                limit="these cost models cannot predict the time of an all-reduce between the groups",
                remedy="Use cost models that were pretrained for as many devices as there are groups, on data with "
                "'all_reduce' in comm.collectives",
            )
        )
    if several and compute_device == "cpu":
        _log.warning(
            Message(
                "groups-on-cpu",
                "num_groups allows several groups, but the topology has CPUs",
                limit="TorchRec's DMPCollection runs on GPUs only, so a plan with several groups cannot run",
                remedy="Set num_groups=1, or pass a topology of GPUs",
            )
        )


def _topology_of_group() -> TorchRecTopology:
    if not dist.is_initialized():
        raise UserError(
            "planner-topology-unknown",
            "topology is None, and torch.distributed has no process group",
            limit="if topology is None, the planner takes the number of devices from the process group",
            remedy="Pass topology=..., or call torch.distributed.init_process_group() first",
        )
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    world, pod_size = dist.get_world_size(), get_topology_domain_multiple()
    pod_size = None if pod_size is None else min(pod_size, world)  # a pod larger than the job, which TorchRec refuses
    sizes = {"local_world_size": get_local_size(), "pod_size": pod_size}
    return TorchRecTopology(world, device, created_by_factory=True, **sizes)


def _loaded_models(
    models: CostModels | str,
    framework: str | None,
    dense_ms: float | None,
    exchange_dtype: str | None,
    optimizer: str | None,
) -> tuple[CostModels, ModelChoice | None]:
    """Load models by their name and settings, or take loaded ones; either count the framework overhead if they know it.

    Returns:
        The models, and what they were loaded by; None for models that were loaded already.

    Raises:
        UserError: there are no such models, or settings are given for models that were loaded already.
    """
    if isinstance(models, str):
        choice = ModelChoice(models, framework, dense_ms, exchange_dtype, optimizer)
        return CostModels.of(choice, usual_framework=TORCHREC), choice
    given = ModelChoice("models", framework, dense_ms, exchange_dtype, optimizer).settings
    if given:
        raise UserError(
            "planner-models-loaded-already",
            f"{told(given)} cannot be set for the cost models {models.label!r}",
            limit="models is an object, so the cost models are loaded already",
            remedy="Pass the setting to CostModels.load, or pass cost models by name",
        )
    return models.in_torchrec_if_known(), None


def _default_models(compute_device: str, dense_ms: float | None) -> str:
    """Return the name of the default models for a type of devices.

    For types of devices without models the name is that of models that the planner never asks for a cost.
    """
    name = _DEFAULT_MODELS.get(compute_device, "cpu")
    if compute_device == "cuda":
        _log.warning(
            Message(
                "planner-models-default",
                f"models is not set, so the planner uses models='{name}'",
                limit="these cost models predict kernel times of one H100, and exchange times from a datasheet",
                remedy="Pass models=... with cost models that were measured on your GPUs, or with analytic cost models "
                "of your GPUs, such as models='roofline:b200'",
            )
        )
        if dense_ms is None:
            _log.warning(
                Message(
                    "planner-dense-time-unknown",
                    "dense_ms is not set, so the time of the dense network per step is unknown",
                    limit="predicted costs may count waits for the host that a dense network would hide",
                    remedy="Set dense_ms to the time of the dense network per step in ms, such as dense_ms=8",
                )
            )
    return name
