"""Fixtures of several tests of the planner for TorchRec."""

import pytest
import torch.distributed as dist


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def path(tmp_path):
    """The path of a plan file, which does not exist yet."""
    return tmp_path / "plan.json"
