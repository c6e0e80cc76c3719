"""Planning for TorchRec: plans for DistributedModelParallel, and translation of TorchRec's models and plans.

TorchRec is optional; importing this package without TorchRec raises MissingPackageError, which says what to install.
"""

from neuroshard.plumbing.errors import MissingPackageError

try:
    import torchrec as _torchrec  # noqa: F401  # checks that TorchRec is installed
except ImportError as error:
    raise MissingPackageError(
        "torchrec-not-installed",
        "neuroshard.torchrec needs TorchRec",
        limit=str(error),
        remedy="In a checkout, run `pip install -e '.[cuda,torchrec]'` for CUDA, or `pip install -e "
        "'.[cpu,torchrec-cpu]' && pip install --no-deps torchrec==1.8.0` for CPUs",
    ) from None

from neuroshard.torchrec.data_parallel import (
    DataParallelOptimizer,
    data_parallel_optimizer,
    data_parallel_parameters,
    dense_parameters,
)
from neuroshard.torchrec.finder import Replanned
from neuroshard.torchrec.modules import find_tables
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.planner import NeuroShardPlanner
from neuroshard.torchrec.profiling import profile
from neuroshard.torchrec.resharding import reshard
from neuroshard.torchrec.sharding_file import load_sharding_plan, save_sharding_plan
from neuroshard.torchrec.sharding_plan import from_sharding_plan, to_sharding_plan

__all__ = [
    "DataParallelOptimizer",
    "NeuroShardPlanner",
    "Parameter",
    "Replanned",
    "data_parallel_optimizer",
    "data_parallel_parameters",
    "dense_parameters",
    "find_tables",
    "from_sharding_plan",
    "load_sharding_plan",
    "profile",
    "reshard",
    "save_sharding_plan",
    "to_sharding_plan",
]
