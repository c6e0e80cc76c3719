"""Process groups in tests: errors of a process are reported."""

import os

import pytest
import torch

from tests.kit.processes import on_gloo


def _sum(rank, path):
    total = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(total)
    (path / str(rank)).write_text(f"{total.item()} {os.environ['LOCAL_WORLD_SIZE']} {torch.get_num_threads()}")


def test_on_gloo_runs_every_rank_in_one_process_group(tmp_path):
    on_gloo(3, _sum, tmp_path, local_world_size=1)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["6.0 1 1"] * 3


def _fail(rank, how):
    if rank == 1:
        how()


def _raise():
    raise ValueError("no such row")


def _end():
    os._exit(3)


@pytest.mark.parametrize(
    ("how", "message"), [(_raise, "(?s)rank 1.*ValueError: no such row"), (_end, "rank 1, exit code 3")]
)
def test_on_gloo_reports_ranks_that_fail_or_end(how, message):
    with pytest.raises(AssertionError, match=message):
        on_gloo(2, _fail, how)
