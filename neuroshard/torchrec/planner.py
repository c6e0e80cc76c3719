"""NeuroShardPlanner: a planner for TorchRec's DistributedModelParallel that searches with NeuroShard's cost models."""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from time import perf_counter
from types import UnionType
from typing import Any, Literal, SupportsIndex, TypeVar, get_args

import numpy as np
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
from neuroshard.torchrec.bandwidths import with_bandwidths
from neuroshard.torchrec.finder import Finder, Replanned, kept_plan_outdated
from neuroshard.torchrec.groups import Groups, groups_of
from neuroshard.torchrec.input_digests import input_digests
from neuroshard.torchrec.kept import KeptPlan, check_replaceable, kept_in
from neuroshard.torchrec.model import Model, loaded_plan
from neuroshard.torchrec.optimizer_states import states_remark, states_remedy
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
from neuroshard.torchrec.planning_request import (
    PlanningRequest,
    dense_remark,
    device_memory,
    host_memory,
    no_table_planned,
)
from neuroshard.torchrec.pods import ignored_pods_remark, pod_size_remark
from neuroshard.torchrec.prefetching import check_prefetching, flagged, pipeline_of
from neuroshard.torchrec.table_statistics import Statistics, table_statistics
from neuroshard.torchrec.unread import no_data_parallel_remark, unread_remarks, unused_arguments
from neuroshard.torchrec.variable_batches import variable_batch_remarks
from neuroshard.words.model_choice import TORCHREC, ModelChoice, settings_text

_log = logging.getLogger(__name__)
_BATCH_SIZE = 512  # TorchRec's default
_CANDIDATE_PLANS = _PASSES = 4
_RESERVED_SHARE = 0.15  # the percentage of TorchRec's default reservation, which also reserves dense parameters
_DEFAULT_MODELS = {"cpu": "cpu", "cuda": "h100"}

_Answer = TypeVar("_Answer")


class NeuroShardPlanner(ShardingPlanner):
    """Drop-in replacement for TorchRec's EmbeddingShardingPlanner; arguments of the same name have the same meaning.
    Without `storage_reservation`, this planner reserves less memory than TorchRec's planner.

    Args:
        topology: TorchRec's topology; None makes the topology of the current process group, as TorchRec does.
        batch_size: samples of one device per step; None is TorchRec's default, 512.
        models: cost models, or their name or path; None takes "cpu" for CPUs, "h100" for CUDA GPUs. Other types of
            devices have no cost models, so that TorchRec's planner plans all tables.
        constraints: TorchRec's ParameterConstraints by the name of the table, or by `path.name` for the table of one
            module: sharding types, min_partition, pooling factors, and settings that are passed on to the kernels. A
            table may be row-wise if its sharding types name row_wise, or if it has none. The search makes such a table
            row-wise if it accepts the predicted gain, or if nothing else fits.
        data_parallel: True lets the search make tables data-parallel. The optimizer of TorchRec's fused kernels does
            not train such tables: build their optimizer with `data_parallel_optimizer`. False allows the type only for
            tables whose constraints or `rules` name it, and for tables that TorchRec cannot train otherwise: tables
            whose number of columns is not a multiple of 4.
        storage_reservation: TorchRec's reservation of memory for the rest of the model; None reserves 15% of the memory
            of every GPU. TorchRec's default, HeuristicalStorageReservation(0.15), also reserves 6 times the dense
            parameters, and 160 bytes for each lookup of a device's batch: pass it if the dense network is large.
        rules: NeuroShard's constraints, for rules that TorchRec's constraints cannot express: devices, tables together
            or apart, pinned shards.
        memory: settings of the memory that counts in addition to weights; None counts the buffers of one batch, the
            state of the optimizer that the module or the sharders name, and the state of Adam for data-parallel tables,
            whose optimizer is not known before the job runs.
        searcher: a search method, or the name of a config in `conf/searcher/`; `settings` override settings of the
            config.
        given: a plan whose parameters are kept as they are; the memory of these parameters is subtracted.
        tables: statistics of tables, or a file of statistics; they override the lookups in constraints.
        keep: a file for the plan; a later job with the same inputs reads the plan. If tables were added, removed, have
            more rows or have other statistics, all other tables stay on their devices, and a warning lists the changes.
            A file that is not a kept plan is an error and is not overwritten. If the file was changed or damaged, the
            planner warns and searches again.
        keep_types: if true, tables of the kept plan keep their sharding types and numbers of column shards when that
            plan is adapted or a new search replaces it, so that optimizer state loads from checkpoints.
        stats: TorchRec's reports, such as EmbeddingStats(), which logs at level INFO.
        callbacks: functions that take the plan as sharding options and return the options to use; each function
            receives the result of the previous one.
        debug: passed to the reports.
        pipeline: none | sparse_dist | prefetch | semi_sync: training pipeline of the job; the memory counts its batches
            in flight. With "none" costs count the input dist, because no pipeline hides it; "prefetch" sets up all
            caches of the plan to prefetch. None takes the pipeline of `memory`; if `memory` has none either, memory
            counts one batch, and costs do not count the input dist.
        timeout_seconds: maximum time of planning. The timeout stops TorchRec's planner, but never NeuroShard's search,
            because a plan must not depend on the load of the machine; if the search takes longer, the planner warns.
        plan_loader: TorchRec's plan loader. If the loaded plan was made for this job, the planner uses it; otherwise
            the planner warns and searches. If the plan fits several numbers of groups, the planner takes the number
            with the lowest cost. Cannot be combined with `keep`.
        num_groups: number of groups of TorchRec's DMPCollection into which all ranks of the topology are divided;
            "auto" chooses the number by cost. The plan is the plan of one group.
        sync_steps: number of steps between two synchronisations of the groups' weights.
        use_inter_host_allreduce: as in DMPCollection: True if groups are successive ranks.
        verify: mirrored | steps | kernels: measure the best plans of a new search on this machine, as the setting
            `verify` of a search does, and take the fastest plan; None takes the plan with the lowest predicted cost.
            Measuring takes minutes: plan in a separate process, not under torchrun, and pass the plan to the job with
            `keep`. Steps are measured in a plain loop if the job's `pipeline` is "none", otherwise with sparse_dist. A
            Verifier object uses its own settings.
        candidate_plans: maximum number of plans that are measured.
        passes: number of passes over all candidate plans, at least 2; the error is estimated from their differences.
        framework: "torchrec" if costs count TorchRec's framework overhead, "none" if they do not; None counts the
            overhead if the cost models can predict it, and otherwise warns.
        dense_ms: ms of the dense network per step on a GPU; None takes the plan with the least worst-case regret from 0
            to 15 ms.
        exchange_dtype: data type of embeddings and gradients in exchanges, such as "fp16", or "fp16/bf16" for forward
            and backward; None for fp32. A warning names sharders that exchange another data type.
        model_optimizer: the optimizer whose states the kernels of analytic models ("roofline:...") read and write, such
            as "adam"; None for "sgd". The setting changes costs alone: `memory` sets the optimizer whose states take
            memory.

    The constructor checks the arguments and loads the cost models; it neither reads a model nor searches. It sorts the
    arguments into three roles. A `Finder` finds plans: `models`, `framework`, `dense_ms`, `exchange_dtype` and
    `model_optimizer` make its simulator, `searcher` and `settings` its search method, `verify`, `candidate_plans` and
    `passes` its measurements. One `PlanningRequest` for each possible number of groups describes the job: all arguments
    about ranks, memory, constraints and tables. `keep`, `plan_loader`, `stats`, `callbacks` and `debug` decide where
    plans come from and go to.

    Attributes:
        last_plan: the latest plan of the tables that NeuroShard plans; None before the first plan, or if NeuroShard
            plans no table.
        last_cost: predicted cost of `last_plan`.
        last_groups: sharding groups of `last_plan`.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: SupportsIndex | None = None,
        models: CostModels | str | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        *,
        data_parallel: bool = False,
        storage_reservation: StorageReservation | None = None,
        rules: Constraints | None = None,
        memory: MemoryUse | None = None,
        searcher: Searcher | str = "neuroshard",
        given: ShardingPlan | None = None,
        tables: Statistics = None,
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
        # 1. Check the arguments; warn of arguments without effect.
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
        # 2. The finder: cost models, search method, measurements.
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
        # 3. The job, once for each possible number of groups.
        ways = groups_of(topology, num_groups, sync_steps, use_inter_host_allreduce)
        _warn_of_groups(ways, simulator.models, topology.compute_device)
        if ignored := ignored_pods_remark(topology):
            _log.warning(ignored)
        reservation = storage_reservation or FixedPercentageStorageReservation(_RESERVED_SHARE)
        self._reserves_default = storage_reservation is None
        self._requests = tuple(
            PlanningRequest(
                topology=groups.topology,
                batch_size=batch_size,
                # A reservation stores the memory that it left last.
                reservation=copy(reservation) if groups.chosen else reservation,
                constraints=constraints,
                fixed=flagged(given or ShardingPlan({}), pipeline, "given"),
                rules=rules or Constraints(),
                memory=memory,
                pipeline=pipeline,
                known=table_statistics(tables, batch_size * groups.sharding_group_size),
                groups=groups,
                timeout_s=timeout_seconds,
                data_parallel=data_parallel,
            )
            for groups in ways
        )
        # 4. Sources and destinations of plans, and the state that `plan` leaves.
        self._loader = plan_loader
        self._keep = None if keep is None else Path(keep)
        self._reports = Reports([stats] if isinstance(stats, Stats) else [*(stats or ())], list(callbacks or ()), debug)
        self._data_parallel: Message | None = None  # the warning of the last plan
        self._selected: Callable[[], list[ShardingOption]] = list
        self.last_plan: Plan | None = None
        self.last_cost: Cost | None = None
        self.last_groups: Groups | None = None

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Plan `module`, which may be on the meta device; return the plan of all modules that have a sharder.

        Args:
            module: the model that contains the collections of tables.
            sharders: None takes TorchRec's default sharders.

        Raises:
            UserError: the tables cannot be planned, the constraints contradict each other, or `keep` names a file of
                another kind.
            InfeasibleError: no plan fits in memory.
        """
        return self._planned(module, sharders, dist.GroupMember.WORLD)

    def search(self, module: nn.Module, sharders: Sharders | None = None) -> Plan:
        """Find a plan as `plan` does, but return a NeuroShard `Plan`, which can be saved or evaluated.
        The `Plan` contains only the tables that NeuroShard plans, and no other parameters of the model.

        `keep`, `plan_loader`, `callbacks` and `stats` have no effect here.

        Raises:
            UserError: as in `plan`, or NeuroShard plans no table of the model.
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
        """Adapt the previous plan to tables that were added, removed or changed, or to another number of devices.

        Args:
            module: the model as it is now.
            sharders: None takes TorchRec's default sharders.
            previous: a NeuroShard plan, or the path of its file: the file of `keep`, or a file that `Plan.save` wrote.
            max_moved_bytes: maximum bytes of weights and optimizer state of old tables that move, over all devices, as
                a number or as text such as "20GB"; None sets no limit.
            settings: settings of `searcher=replan`.

        Raises:
            UserError: as in `plan`, or every possible plan moves more than `max_moved_bytes`.
            InfeasibleError: no plan fits in memory.
        """
        return self._replanned(module, sharders, previous, max_moved_bytes, settings, dist.GroupMember.WORLD)

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Find a plan of `module` on rank 0 of the process group, and return the plan on all ranks of the group.
        Set the planner's attributes `last_plan` and `last_cost` on all ranks, too.

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
        """Call `replan` on rank 0 of the process group, and return the result of `replan` on all ranks of the group.

        Raises:
            UserError: rank 0 found no plan; every rank raises the error.
            RuntimeError: rank 0 failed with another error, which rank 0 raises itself.
        """
        return self._collective(partial(self._replanned, module, sharders, previous, max_moved_bytes, settings), pg)

    def get_selected_options(self) -> list[ShardingOption]:
        """Return the latest plan of this process as TorchRec's sharding options, as TorchRec's planner does.

        The shards have TorchRec's memory estimates and NeuroShard's predicted costs in ms. The list is empty before the
        first plan, and on ranks that received the plan from rank 0.
        """
        return self._selected()

    def get_search_space(self) -> None:
        """Return None, which tells TorchRec that this planner does not enumerate sharding options in advance."""

    def _collective(self, find: Callable[[dist.ProcessGroup], _Answer], pg: dist.ProcessGroup | None) -> _Answer:
        """Call a function on rank 0 of a group, and return the result of the function on all ranks of the group.
        Set the planner's attributes, such as `last_plan`, on all ranks, too.
        """
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
        """Call `find` with the process group, and return the result of `find` and the values of the planner's
        attributes, such as `last_plan`, as one tuple. Only rank 0 runs this method. The tuple is sent to all other
        ranks.
        """
        answer, plan = find(group), self.last_plan
        plan_to_send = plan and replace(plan)  # a copy without cached properties
        return answer, plan_to_send, self.last_cost, self.last_groups, self._data_parallel

    def _planned(self, module: nn.Module, sharders: Sharders | None, group: dist.ProcessGroup | None) -> ShardingPlan:
        """Return the plan of the whole model, and report the plan.
        The first of three sources that has a plan is used: the file that an earlier job saved (the planner's argument
        `keep`), the plan loader, or a search.

        Rank 0 saves a new plan to the file of `keep`.
        """
        started = perf_counter()
        models = self._models(module, sharders)
        kept = kept_in(self._keep) if self._keep else None
        found = self._after(kept, models) if kept else self._loaded(models) or self._best(models, self._found)
        return self._finished(found, group, started)

    def _after(self, kept: KeptPlan, models: Sequence[Model]) -> "_Way":
        """Return a plan for this job, given the plan `kept` that an earlier job saved.
        If both jobs have the same inputs, the result is the saved plan. If the inputs differ, the saved plan is
        adapted if possible; otherwise, a search finds another plan.

        `models` has a model for each possible number of sharding groups. A plan is adapted only if there is one model.
        """
        others = [self._differences(kept, model_of_groups) for model_of_groups in models]
        if () in others:
            _log.info("the planner uses the plan that was kept in %s", self._keep)
            model = models[others.index(())]
            return _Way(model, self._finder_of(model), model.restored(kept.sharding_plan), kept.plan, kept=True)
        if len(models) == 1:
            return self._searched(models[0], lambda finder, task: finder.found_after(kept, others[0], task))
        _log.warning(kept_plan_outdated(min(others, key=len)))

        def instead(model: Model) -> _Way:
            """Search for a new plan of `model`, to replace the earlier job's saved plan, and return the new plan."""
            return self._searched(model, lambda finder, task: finder.found_instead(kept.plan, task))

        best = self._best(models, instead)
        if kept.plan and best.plan and (remark := checkpoint_remark(kept.plan, best.plan)):
            _log.warning(remark)
        return best

    def _differences(self, kept: KeptPlan, model: Model) -> tuple[str, ...]:
        """Compare the inputs of this job and of the earlier job that saved the plan `kept`, and return the names of the
        inputs that differ, such as "devices". If the constraints contradict the devices of this job, the inputs cannot
        be compared, and the result is ("constraints",).
        """
        try:
            digests = self._input_digests(model)
        except UserError:  # planning this model raises the error again
            return ("constraints",)
        return kept.differences(digests, device_memory(model.left), host_memory(model.left))

    def _loaded(self, models: Sequence[Model]) -> "_Way | None":
        """Load a plan from the plan loader (TorchRec's `PlanLoader`), and return the plan; None if there is no plan
        loader. If the loaded plan does not fit this job, log a warning and return None.
        """
        loader = self._loader
        if loader is None:
            return None

        def taken(model: Model) -> _Way:
            """Return the plan that the loader loads for a model; raise UserError if this plan does not fit the job."""
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
        """Find a plan for each model in `models`, and return the plan with the lowest predicted cost. The function
        `find` finds the plan of one model. All models are the same except for the requirements of the plan: each model
        has another number of sharding groups. A sharding group is a set of ranks that together have all tables.

        If `find` raises UserError for a model, the model is left out. If `find` raises UserError for all models, the
        first of these errors is raised.
        """
        found: list[_Way] = []
        errors: list[UserError] = []
        for model in models:
            try:
                found.append(find(model))
            except UserError as error:  # too little memory, or a group too small for the constraints
                errors.append(error)
        if not found:
            raise errors[0]
        if len(found) > 1:
            costs = ", ".join(f"{way.model.request.groups.num_groups}: {way.total_ms:.3f}" for way in found)
            _log.info("predicted ms by number of groups: %s", costs)
        return min(found, key=lambda way: way.total_ms)

    def _found(self, model: Model) -> "_Way":
        """Search for a plan of a model from scratch, and return the plan."""
        return self._searched(model, Finder.found)

    def _searched(self, model: Model, search: Callable[[Finder, Task], Plan]) -> "_Way":
        """Plan the whole model in two steps, and return the plan of both steps together.
        First, TorchRec's planner plans the parameters that NeuroShard does not plan, if the user gave no plan for them.
        Then, `search` finds a plan of all other tables for the memory that is left.
        """
        finder = self._finder_of(model)
        others, left = model.others()
        try:
            plan = search(finder, model.request.task(model.tables, left)) if model.tables else None
        except InfeasibleError as error:
            tables = model.tables.values()
            states = "" if model.request.memory else states_remedy(tables)
            remedies = error.message.remedy, states, withheld_remedy(tables)
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
        """Adapt the previous plan to the model, and report the new plan.
        Return the new plan, together with a list of the tables that are new, removed or placed differently.
        """
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
        model = next((candidate for candidate in models if candidate.left.world_size == size), models[0])
        found = self._searched(model, lambda finder, task: finder.changed(before, task, max_moved_bytes, **settings))
        if found.plan is None:
            raise no_table_planned()
        whole = self._finished(found, group, started)
        after = self.last_plan or found.plan
        return Replanned(whole, after, table_changes(before, after), TaskChanges.between(before.task, after.task))

    def _finished(self, found: "_Way", group: dist.ProcessGroup | None, started: float) -> ShardingPlan:
        """Report the plan `found`, set the planner's attributes, such as `last_plan`, and return the plan. First, the
        planner's callbacks may change the plan. If the planner's argument `keep` is set, rank 0 of the group saves the
        changed plan in a file for later jobs.

        If the plan was read from that file, the callbacks are not called, and the plan is not saved again. If a
        callback set a field that the file cannot store, the plan is not saved.
        """
        model, reports, took_s = found.model, self._reports, perf_counter() - started
        if found.kept:
            reports = replace(reports, callbacks=())  # callbacks have changed the plan before it was kept
        elif remark := late_remark(took_s, model.request.timeout_s):
            _log.warning(remark)
        whole, plan = reports.pass_on(found.finder.simulator, model, found.whole, found.plan, took_s)
        self._remember(found, whole, plan)
        self._warn_of_whole(model, whole)
        parameters, ranks = model.division.parameters, int(model.left.world_size)
        for remark in (
            *unsound_remarks(parameters, whole),
            *mixed_remarks(parameters, whole, ranks),
            *variable_batch_remarks(parameters, whole, model.left.compute_device),
        ):
            _log.warning(remark)
        if model.request.groups.num_groups == 1 and (remark := pod_size_remark(whole, model.left)):
            _log.warning(remark)
        if self._keep and not found.kept and (group is None or dist.get_rank(group) == 0):
            left = model.left
            kept_plan = KeptPlan(
                self._input_digests(model), self.last_plan, whole, device_memory(left), host_memory(left)
            )
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
                kept_plan.keep_in(self._keep)
        return whole

    def _input_digests(self, model: Model) -> dict[str, str]:
        """Return the digest of each input that a plan of the model depends on, by name.
        The result is empty if the planner does not save plans for later jobs.
        """
        return input_digests(model, self._finder, self._reports.callbacks) if self._keep else {}

    def _models(self, module: nn.Module, sharders: Sharders | None) -> list[Model]:
        """Return one `Model` of `module` for each possible number of sharding groups.
        A sharding group is a set of ranks that together have all tables, as in TorchRec's DMPCollection. Raise
        UserError if `sharders` is neither None nor a sequence, such as a list.
        """
        _check_type("sharders", sharders, Sequence)
        sharders = sharders or get_default_sharders()
        first = self._requests[0]
        served = self._finder.served(first.topology)
        if first.data_parallel and (unused := no_data_parallel_remark(served, self._finder.searcher.takes_forms)):
            _log.warning(unused)
        model = Model.read(module, sharders, first, served)
        if remark := precision_remark(model, self._finder.simulator.models):
            _log.warning(remark)
        for remark in unread_remarks(model):
            _log.warning(remark)
        if self._reserves_default and (remark := dense_remark(module, sharders, first.topology, _RESERVED_SHARE)):
            _log.warning(remark)
        if first.memory is None and (remark := states_remark(model.tables.values())):
            _log.warning(remark)
        return [model, *(model.on(request) for request in self._requests[1:])]

    def _finder_of(self, model: Model) -> Finder:
        """Return the search method and the cost models for a model, together as a `Finder`.
        If the job has several sharding groups, the ranks average their weights over the groups from time to time. If
        the cost models can predict the time of this averaging, the predicted costs include the time.
        """
        groups, simulator = model.request.groups, self._finder.simulator
        if groups.num_groups == 1 or not model.tables:
            return self._finder
        task = model.request.task(model.tables, model.left)
        counted = Simulator(groups.counted(simulator.models, task), simulator.count_input)
        return replace(self._finder, simulator=counted)

    def _remember(self, found: "_Way", whole: ShardingPlan, plan: Plan | None) -> None:
        """Set the planner's attributes `last_plan`, `last_cost` and `last_groups` for a new plan of the whole model.
        Log the predicted cost of the plan, and the warnings of the cost models.
        """
        self._selected = partial(options_of, found.finder.simulator, found.model, whole, plan)
        self.last_plan, self.last_cost, self.last_groups = None, None, found.model.request.groups
        if plan is None:
            return
        simulator, task = found.finder.simulator, plan.task
        cost = simulator.cost(task, plan)
        self.last_plan, self.last_cost = simulator.predicted(plan, cost), cost
        models = simulator.models
        # If the models know the overhead but do not count it, the user has excluded it.
        left_out = models.left_out("TorchRec") if models.framework is None else ()
        doubts = *simulator.warnings(plan), *left_out
        for warning in doubts:
            _log.warning(warning)
        groups = self.last_groups.num_groups
        where = f"{task.topology.num_devices} devices" + (f" of each of {groups} groups" if groups > 1 else "")
        _log.info("%d tables on %s:\n%s", len(task.tables), where, cost)

    def _warn_of_whole(self, model: Model, whole: ShardingPlan) -> None:
        """Warn about tables that no fused optimizer trains, and about tables whose weights TorchRec cannot load."""
        self._data_parallel = data_parallel_remark(model.division.parameters, whole)
        if self._data_parallel:
            _log.warning(self._data_parallel)
        if remark := loading_remark(model.division.parameters, whole):
            _log.warning(remark)


@dataclass(frozen=True)
class _Way:
    """A plan of the whole model for one possible number of sharding groups, with the model, and with the search method
    whose cost models predict the cost of the plan. A sharding group is a set of ranks that together have all tables, as
    in TorchRec's DMPCollection.

    Attributes:
        model: the model with the requirements of these groups.
        finder: the search whose cost models predict the plan.
        whole: the plan of the whole model.
        plan: NeuroShard's plan in it; None if NeuroShard plans no table.
        kept: True if the plan comes from the file of `keep`.
    """

    model: Model
    finder: Finder
    whole: ShardingPlan
    plan: Plan | None
    kept: bool = False

    @property
    def total_ms(self) -> float:
        """The predicted cost in ms; 0 if TorchRec plans all tables, because the cost is then unknown."""
        return 0.0 if self.plan is None else self.finder.simulator.cost(self.plan.task, self.plan).total_ms


def _of_first(group: dist.ProcessGroup, find: Callable[[], _Answer]) -> _Answer:
    """Call `find` on rank 0 of a group.
    On all ranks of the group, return the result of `find`, or raise the error that `find` raised.
    """
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


def _shown_value(value: object) -> str:
    """Return the text that stands for a value in an error message. For the string "512", the text is: the text '512'.
    For other values, the text is `repr(value)`. The words "the text" are added for strings, because a reader easily
    overlooks quotes alone.
    """
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _check_type(name: str, value: object, wanted: type | UnionType) -> None:
    """Raise UserError if an argument is neither None nor of the type `wanted`."""
    if value is not None and not isinstance(value, wanted):
        words = " or ".join(kind.__name__ for kind in get_args(wanted) or (wanted,))
        raise UserError(
            "planner-argument-type",
            f"{name} is {value!r}",
            limit=f"the type must be {words}",
            remedy=f"Set {name} to a value of that type, or leave {name} out",
        )


def _check_one_source(keep: str | Path | None, plan_loader: PlanLoader | None) -> None:
    """Raise UserError if `keep` and `plan_loader` are both set."""
    if keep is not None and plan_loader is not None:
        raise UserError(
            "planner-keep-with-loader",
            "keep= and plan_loader= are both set",
            limit="each of the two supplies the plan",
            remedy="Remove keep= or plan_loader=",
        )


def _check_timeout(timeout_seconds: int | None) -> None:
    """Raise UserError if a timeout is neither None nor a number above 0."""
    if timeout_seconds is not None and not (isinstance(timeout_seconds, Real) and timeout_seconds > 0):
        raise UserError(
            "planner-timeout-not-positive",
            f"timeout_seconds is {_shown_value(timeout_seconds)}",
            limit="timeout_seconds must be a number above 0",
            remedy="Set timeout_seconds to a number above 0, without quotes, or leave timeout_seconds out",
        )


def _checked_batch_size(batch_size: SupportsIndex | None) -> int:
    """Return the number of samples of one device per step, which is TorchRec's default if `batch_size` is None.
    Whole numbers of other types, such as NumPy's, are allowed. Raise UserError if the number is not a whole number or
    is below 1.
    """
    if batch_size is None:
        return _BATCH_SIZE
    whole = isinstance(batch_size, SupportsIndex) and not isinstance(batch_size, bool | np.bool_)
    try:
        samples = operator.index(batch_size) if whole else 0
    except TypeError:  # an array or a tensor of several numbers
        samples = 0
    if samples < 1:
        raise UserError(
            "planner-batch-size-invalid",
            f"batch_size is {_shown_value(batch_size)}",
            limit="batch_size must be a whole number, 1 or more",
            remedy="Set batch_size to the number of samples per step on one device, without quotes",
        )
    return samples


def _checked_constraints(constraints: Mapping[str, ParameterConstraints]) -> dict[str, ParameterConstraints]:
    """Return the constraints as a dictionary by table name; raise UserError if the constraints have the wrong type."""
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
    """Return the simulator, which predicts the costs of plans.
    The costs count the input dist if the training pipeline of the job does not hide the input dist.
    """
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
    """Warn if the cost models cannot predict the time that sharding groups take to average their weights. Warn also if
    the job may have several sharding groups on CPUs, because TorchRec runs several groups only on GPUs. `ways` has the
    possible divisions of the ranks into groups, with one `Groups` for each possible number of groups.
    """
    several = [groups for groups in ways if groups.num_groups > 1]
    if not all(groups.counts(models) for groups in several):
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
    """Return the topology of the current process group; raise UserError if there is no process group."""
    if not dist.is_initialized():
        raise UserError(
            "planner-topology-unknown",
            "topology is None, and torch.distributed has no process group",
            limit="if topology is None, the planner takes the number of devices from the process group",
            remedy="Pass topology=..., or call torch.distributed.init_process_group() first",
        )
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    world, pod_size = dist.get_world_size(), get_topology_domain_multiple()
    pod_size = None if pod_size is None else min(pod_size, world)  # TorchRec refuses a pod that is larger than the job
    sizes = {"local_world_size": get_local_size(), "pod_size": pod_size}
    return TorchRecTopology(world, device, created_by_factory=True, **sizes)


def _loaded_models(
    models: CostModels | str,
    framework: str | None,
    dense_ms: float | None,
    exchange_dtype: str | None,
    optimizer: str | None,
) -> tuple[CostModels, ModelChoice | None]:
    """Return the cost models in `models`, which is a `CostModels` object or the name of cost models.
    Named cost models are loaded with the given settings. The costs include the overhead of TorchRec itself if the cost
    models can predict this overhead, and their setting `framework` is not "none".

    Returns:
        The models and the choice that they were loaded by; the choice is None if the models were loaded already.

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
            f"{settings_text(given)} cannot be set for the cost models {models.label!r}",
            limit="models is an object, so the cost models are loaded already",
            remedy="Pass the setting to CostModels.load, or pass cost models by name",
        )
    return models.in_torchrec_if_known(), None


def _default_models(compute_device: str, dense_ms: float | None) -> str:
    """Return the name of the default cost models for a type of devices.

    For types of devices without cost models, the name is that of models whose costs are never used.
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
