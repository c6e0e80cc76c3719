"""Processes in tests: groups of processes that work together, and processes that kill themselves."""

import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from neuroshard.measure._workers.workers import forked_warm

PATIENCE_S = 600.0
"""The limit of every wait in a test. It guards against hanging and says nothing about speed."""


def on_gloo(world_size: int, work: Callable[..., None], *args: Any, local_world_size: int | None = None) -> None:
    """Call `work(rank, *args)` in every process of a gloo group, each with one thread.

    Args:
        world_size: processes of the group.
        work: a function that other processes can import, as they must be able to import the types of `args`.
        args: arguments that can be pickled.
        local_world_size: number of processes on a host, as processes see it; None means that all are on one host.

    Raises:
        AssertionError: processes failed or ended early; the message has their tracebacks.
    """
    _in_processes(world_size, {"LOCAL_WORLD_SIZE": str(local_world_size or world_size)}, _in_group, (work, *args))


def as_if_under_torchrun(
    world_size: int, work: Callable[..., None], *args: Any, local_world_size: int | None = None
) -> None:
    """Call `work(rank, *args)` in processes with the environment variables that torchrun sets.

    The function takes the same arguments and raises the same errors as `on_gloo`. The processes join no group, and are
    forked with all imports done.
    """
    local = str(local_world_size or world_size)
    environment = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": local, "GLOO_SOCKET_IFNAME": "lo"}
    _in_processes(world_size, environment, work, args)


def _in_processes(
    world_size: int, environment: dict[str, str], work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """Call `work(rank, *args)` in processes with the address of a rendezvous in their environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment = environment | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(world_size),
        }
    context = forked_warm()
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_process, args=(rank, environment | {"RANK": str(rank)}, sending, work, args))
        for rank, (_, sending) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    failures = []
    try:
        for rank, (process, (receiving, _)) in enumerate(zip(processes, pipes, strict=True)):
            wait([receiving, process.sentinel], PATIENCE_S)
            said = receiving.recv() if receiving.poll() else "no traceback was sent"
            process.join(PATIENCE_S if said is None else 0)
            if said is not None or process.exitcode:
                failures.append(f"rank {rank}, exit code {process.exitcode}: {said}")
    finally:
        for process in processes:
            process.kill()
    assert not failures, "\n".join(failures)


def of_all(rank: int, work: Callable[..., None], cases: Mapping[str, tuple[Any, ...]]) -> None:
    """Call `work(rank, *case)` for all cases in the same processes, because starting processes is slow."""
    for name, case in cases.items():
        try:
            work(rank, *case)
        except Exception as error:
            error.add_note(f"case: {name}")
            raise


def _in_group(rank: int, work: Callable[..., None], *args: Any) -> None:
    import torch

    torch.distributed.init_process_group("gloo")
    work(rank, *args)
    torch.distributed.barrier()


def _process(
    rank: int, environment: dict[str, str], sending: Connection, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """Run the work; send None when it is done, or the traceback if it fails."""
    import torch

    try:
        os.environ |= environment
        torch.set_num_threads(1)
        work(rank, *args)
        sending.send(None)
    except Exception:
        sending.send(traceback.format_exc())


When = Literal["before", "after"]


def die_at_file(number: int, when: When) -> None:
    """Make this process kill itself before or after it moves the file of this number to its final path.

    Files are counted from 0, by calls of `Path.replace`, which moves every written file to its final path.
    """
    files, rename = count(), Path.replace

    def deadly(self: Path, target: str | os.PathLike[str]) -> Path:
        """Rename a file; kill this process before or after the file of the given number."""
        fatal = next(files) == number
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        moved = rename(self, target)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return Path(moved)

    Path.replace = deadly  # type: ignore[method-assign, assignment]
