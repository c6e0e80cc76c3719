"""Worker processes that measure samples; a worker can crash or hang without ending the run."""

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from neuroshard.measure._workers.runs import Outcome, Report
from neuroshard.measure.specs import DeviceSpec
from neuroshard.plumbing.errors import UserError, raised_by, user_error_in
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.timing import TimingProtocol

if TYPE_CHECKING:  # imports torch
    from neuroshard.measure.device import Device

Sample = TypeVar("Sample")
Sample_contra = TypeVar("Sample_contra", contravariant=True)

_START_TIMEOUT_S = 600.0  # enough to load torch and FBGEMM from a cold disk on a busy machine
_STARTS = 3  # number of failed starts in a row after which workers cannot be started
_POLL_S = 1.0


class Bench(Protocol[Sample_contra]):
    """Interface of an object that measures batches of samples inside a worker process.
    Each worker creates one bench.
    """

    def measure(self, samples: Sequence[Sample_contra], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """Measure the samples, and return an outcome for each sample.
        The method calls `report` with the number of a sample before each run of that sample.
        """
        ...


class Meter(ABC, Generic[Sample_contra]):
    """Base class: measures batches of samples, usually in worker processes.
    As a context manager, a meter ends these processes on exit.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the worker processes of this meter, if there are any."""

    @abstractmethod
    def measure(self, samples: Sequence[Sample_contra], seeds: Sequence[int]) -> list[Outcome]:
        """Measure the samples, and return an outcome for each sample; the seeds fix the random draws of each sample."""


@dataclass(frozen=True)
class Joining(Generic[Sample]):
    """The settings that a process needs to join a group of processes that measure together.

    Attributes:
        device: the device to measure on.
        timing: the timing protocol.
        timeout_s: maximum time to wait for the other processes, in seconds.
        make_bench: returns the bench, given the prepared device, the timing protocol and the timeout.
    """

    device: DeviceSpec
    timing: TimingProtocol
    timeout_s: float
    make_bench: "Callable[[Device, TimingProtocol, float], Bench[Sample]]"


@dataclass(eq=False)
class _Stopped(Exception):
    """The exception that is raised if a worker process died, sent nothing for too long, or could not start.

    Attributes:
        reason: the reason, in one line.
        blamed: number of the sample that the worker was measuring.
        trace: the traceback of a defect that kept the worker from starting; empty if the user can correct the cause.
    """

    reason: str
    blamed: int = 0
    trace: str = ""


def forked_warm() -> ForkServerContext:
    """Return a multiprocessing context whose workers start within milliseconds.
    The workers are forked from a process that has imported torch and FBGEMM.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["neuroshard.measure._workers.warm"])
    return context


class WorkerGroup(Meter[Sample]):
    """Measures batches of samples in `count` worker processes that work together.
    The result has the outcomes that the worker with rank 0 reports.

    If a worker dies, or sends nothing for `timeout_s`, the whole group ends. The sample that the worker was measuring
    gets the error, and a new group measures the rest of the batch. A group that dies while it starts is started again,
    a few times.
    """

    def __init__(
        self,
        make_bench: Callable[[int, int, int], Bench[Sample]],
        count: int,
        timeout_s: float,
        warn: Callable[[Message], None] = print,
        context: ForkServerContext | SpawnContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; `measure` starts the workers.
        Each worker calls `make_bench(rank, count, port)`, and the workers can meet each other at `port`.

        `context` starts the processes (default: forked from a warm process); `clock` returns the time in seconds.
        """
        self._make_bench = make_bench
        self._count = count
        self._timeout_s = timeout_s
        self._warn = warn
        self._context = context or forked_warm()
        self._clock = clock
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the living workers, by rank."""
        return [process.pid for process in self._processes if process.pid is not None]

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """Measure the samples, and return an outcome for each sample, even if workers die or hang.
        Raise UserError if workers cannot be started.
        """
        outcomes: dict[int, Outcome] = {}
        while missing := [i for i in range(len(samples)) if i not in outcomes]:
            self._ensure_started()
            try:
                with suppress(OSError):  # a worker has died; `_follow` finds out how
                    for pipe in self._pipes:
                        pipe.send(([samples[i] for i in missing], [seeds[i] for i in missing]))
                outcomes |= zip(missing, self._follow(self._timeout_s), strict=True)
            except _Stopped as stopped:
                self.close()
                self._warn(
                    Message(
                        "worker-stopped",
                        stopped.reason,
                        limit="the sample that was being measured is recorded as failed, and new workers measure the "
                        "other samples",
                    )
                )
                outcomes[missing[stopped.blamed]] = Outcome(None, stopped.reason, 0.0)
        return [outcomes[i] for i in range(len(samples))]

    def _ensure_started(self) -> None:
        """Start the workers if none are running, in a few attempts.
        Raise UserError if the workers cannot be started, or RuntimeError if the cause is a defect in the code.
        """
        failed = 0
        while not self._processes:
            try:
                self._start()
            except _Stopped as stopped:
                self.close()
                failed += 1
                if failed == _STARTS:
                    raise _impossible(stopped) from None
                self._warn(
                    Message(
                        "worker-not-started",
                        f"the worker processes did not start ({stopped.reason})",
                        limit="all workers are started again",
                    )
                )
            except UserError as error:
                self.close()
                raise error.at("starting the worker processes") from None

    def _start(self) -> None:
        """Start one worker per rank, and wait until all workers of the group are ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        try:
            for rank in range(self._count):
                self._start_one(rank, port)
        except (EOFError, OSError) as error:  # the fork server has died
            raise _Stopped(f"{type(error).__name__}: {error}") from None
        self._follow(_START_TIMEOUT_S)

    def _start_one(self, rank: int, port: int) -> None:
        ours, theirs = self._context.Pipe()
        self._pipes.append(ours)
        process = self._context.Process(
            target=_serve, args=(self._make_bench, rank, self._count, port, theirs), daemon=True
        )
        with _no_main_module():
            process.start()
        theirs.close()
        self._processes.append(process)

    def _follow(self, limit_s: float) -> list[Outcome]:
        """Read the messages of the workers until every worker has sent outcomes; return the outcomes of rank 0.

        A worker that has just started sends an empty list.

        Raises:
            UserError: the user must correct something before a worker can start.
            _Stopped: a worker has died, nothing has come for `limit_s`, or another start may succeed.
        """
        finished: dict[int, list[Outcome]] = {}
        current = [0] * self._count
        since = self._clock()
        while len(finished) < self._count:
            for rank, message in self._receive(since, limit_s, current):
                since = self._clock()
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, int):
                    current[rank] = message
                else:
                    finished[rank] = message
        return finished[0]

    def _receive(self, since: float, limit_s: float, current: list[int]) -> list[tuple[int, Any]]:
        """Return the messages that have arrived from workers, each with the rank of the worker; the list may be empty.

        `current` is the number of the sample that each worker is measuring.

        Raises:
            _Stopped: a worker has died, or nothing has come for `limit_s`.
        """
        sentinels = [process.sentinel for process in self._processes]
        ready = wait([*self._pipes, *sentinels], timeout=_POLL_S)
        messages = []
        for rank, pipe in enumerate(self._pipes):
            if pipe in ready:
                try:
                    messages.append((rank, pipe.recv()))
                except (EOFError, OSError):
                    raise self._death(rank, current) from None
        if not messages:
            for rank, sentinel in enumerate(sentinels):
                if sentinel in ready:
                    raise self._death(rank, current)
            if self._clock() - since > limit_s:
                raise _Stopped(f"timed out: a worker sent nothing for {limit_s:g} s", min(current))
        return messages

    def _death(self, rank: int, current: list[int]) -> _Stopped:
        """Return the error for a worker that died, with the signal or the exit code of the worker."""
        process = self._processes[rank]
        process.join(timeout=_POLL_S)
        code = process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _Stopped(f"worker {rank} died ({how})", current[rank])

    def close(self) -> None:
        """Kill all worker processes and close the pipes to them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _impossible(stopped: _Stopped) -> Exception:
    """Return the error to raise if every attempt to start the workers failed.
    This is a UserError, or a RuntimeError if a defect in the code is the cause.
    """
    if not stopped.trace:
        return UserError(
            "workers-not-started",
            "the worker processes cannot be started",
            limit=stopped.reason,
            remedy="Remove this cause (often too little free memory), and start the command again",
        )
    defect = RuntimeError(f"the worker processes cannot be started: {stopped.reason}")
    defect.add_note(f"In the worker:\n{stopped.trace}")
    return defect


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep processes that are started inside the `with` block from importing the main module.
    Otherwise a user's script without a main guard would run again in every process.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(
    make_bench: Callable[[int, int, int], Bench[Any]], rank: int, count: int, port: int, pipe: Connection
) -> None:
    """Create the bench of a worker process, then measure batches until the pipe to the parent process closes.

    The worker first sends an empty list when it can take samples; or a UserError if the user must correct something, or
    `_Stopped` if another start may succeed. For each batch, the worker then sends the number of every sample before it
    measures the sample, and finally the outcomes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent process reacts to an interrupt
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        bench = make_bench(rank, count, port)
    except (Exception, SystemExit) as error:
        pipe.send(_why_not_started(error))
        return
    try:
        pipe.send([])
        while True:
            samples, seeds = pipe.recv()
            pipe.send(bench.measure(samples, seeds, pipe.send))
    except (EOFError, BrokenPipeError):
        return  # the parent process has ended


def _end_with_parent() -> None:
    """Wait until the parent process has ended, and then end this process, even if other threads are still busy.

    A worker that waits for another worker would otherwise remain until torch gives up, after up to 30 minutes.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _why_not_started(error: BaseException) -> Exception:
    """Return the error that a worker sends to the parent process if the worker cannot start.
    This is a UserError if the user can correct the cause, else `_Stopped`.

    The user can correct a package that cannot be imported, and refusals of the system or torch; all other causes are
    defects.
    """
    if (mistake := user_error_in(error)) is not None:
        return mistake
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and str(error.name).partition(".")[0] != __name__.partition(".")[0]:
        return UserError(
            "worker-package-missing",
            "a worker process cannot import a package",
            limit=reason,
            remedy="Install the package, or repair its installation",
        )
    refused = isinstance(error, (OSError, MemoryError)) or raised_by(error, "torch", "fbgemm_gpu")
    return _Stopped(reason, trace="" if refused else "".join(traceback.format_exception(error)))
