"""Plans that TorchRec's plan loaders bring: taken where they were made for this job."""

from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import extract_plan, to_sharding_plan
from torchrec.distributed.planner.types import PlanLoader, PlannerError, hash_planner_context_inputs_str
from torchrec.distributed.types import ShardingPlan

from neuroshard.models import CostModels
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.torchrec.delegated import joined, without
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.sharding_plan import from_sharding_plan


def loaded_plan(loader: PlanLoader, model: Model, models: CostModels) -> tuple[ShardingPlan, Plan | None]:
    """Load the plan of the whole model that a loader brings, and ours in it.

    It fits as TorchRec's planner takes it to: its context hash is that of this job (or it has none), and TorchRec's
    sharding options have all of it; and it holds every table, such that it trains, in the memory that there is, in
    forms that the cost models know.

    Raises:
        UserError: it doesn't fit.
    """
    asked = model.asked
    try:
        enumerator = EmbeddingEnumerator(asked.topology, asked.batch_size, dict(asked.constraints))
        space = enumerator.enumerate(model.module, list(model.sharders))
        stored = loader.plan_context_hash()
        if stored is not None:
            context = asked.topology, asked.batch_size, enumerator, asked.reservation, dict(asked.constraints)
            if stored != hash_planner_context_inputs_str(*context):
                raise UserError("it was made for another job by its context hash, or under another PYTHONHASHSEED")
        options = loader.load()
        if not options:
            raise UserError("there is none")
        loaded = to_sharding_plan(extract_plan(space, options), asked.topology)
        return _checked(joined(loaded, asked.fixed), model, models)
    except (PlannerError, AssertionError) as error:  # the latter: a reservation that keeps no topology
        raise UserError(str(error).strip().splitlines()[0]) from error


def _checked(whole: ShardingPlan, model: Model, models: CostModels) -> tuple[ShardingPlan, Plan | None]:
    """Check a plan of the whole model, and return it with ours in it.

    Raises:
        UserError: tables are missing, lie such that TorchRec would train others or nothing is known of them, or don't
            fit in memory.
    """
    missing = [it.qualified_name for it in model.division.parameters if not it.is_in(whole)]
    if missing:
        raise UserError(f"it lacks {listed(missing)}")
    if not model.tables:
        return whole, None
    others = (*model.division.delegated, *model.division.fixed)
    task = model.asked.task(model.tables, without(model.left, whole, others, model.asked))
    plan = from_sharding_plan(task, model.ours_in(whole))
    if plan.violations:
        raise UserError(plan.violations[0])
    models.check_plan(plan)
    return whole, plan
