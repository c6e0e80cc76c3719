"""Worker processes that may crash or hang without taking the run with them."""

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from neuroshard.errors import UserError
from neuroshard.hardware.runs import Outcome, Report

Sample = TypeVar("Sample")
Sample_contra = TypeVar("Sample_contra", contravariant=True)

_START_TIMEOUT_S = 120.0
_POLL_S = 1.0


class Bench(Protocol[Sample_contra]):
    """What a worker makes once and then measures batches with."""

    def measure(self, samples: Sequence[Sample_contra], seeds: Sequence[int], report: Report) -> list[Outcome]:
        """An outcome for each sample; `report` is told which one comes next."""
        ...


@dataclass(frozen=True)
class Ready:
    """A worker has set itself up."""


@dataclass(frozen=True)
class Started:
    """A worker is about to touch sample `index` of its batch."""

    index: int


@dataclass(frozen=True)
class Failed:
    """A worker can't be set up; `reason` is meant for the user."""

    reason: str


class _Stopped(Exception):
    """A worker died or hung; `blamed` is the sample it was at, None before the first."""

    def __init__(self, reason: str, blamed: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blamed = blamed


class WorkerGroup(Generic[Sample]):
    """`count` processes that measure batches together; rank 0's outcomes count.

    A worker that dies, or says nothing for `timeout_s`, ends the whole group; the sample it was at gets the error,
    a fresh group measures the rest of the batch.
    """

    def __init__(
        self,
        make_bench: Callable[[int, int, int], Bench[Sample]],
        count: int,
        timeout_s: float,
        warn: Callable[[str], None] = print,
    ) -> None:
        """`make_bench(rank, count, port)` runs in each worker; `port` is free for the group to meet at."""
        self._make_bench = make_bench
        self._count = count
        self._timeout_s = timeout_s
        self._warn = warn
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers, by rank."""
        return [process.pid for process in self._processes if process.pid is not None]

    def measure(self, samples: Sequence[Sample], seeds: Sequence[int]) -> list[Outcome]:
        """An outcome for each sample, whatever happens to the workers.

        Raises:
            UserError: the workers can't even be started.
        """
        outcomes: dict[int, Outcome] = {}
        while missing := [i for i in range(len(samples)) if i not in outcomes]:
            try:
                results = self._measure_once([samples[i] for i in missing], [seeds[i] for i in missing])
                outcomes |= dict(zip(missing, results, strict=True))
            except _Stopped as stopped:
                self.close()
                if stopped.blamed is None:
                    raise UserError(f"the workers can't be started: {stopped.reason}") from None
                blamed = missing[stopped.blamed]
                self._warn(f"{stopped.reason}; recorded for the sample in flight, going on with a fresh worker")
                outcomes[blamed] = Outcome(None, stopped.reason, 0.0)
        return [outcomes[i] for i in range(len(samples))]

    def _measure_once(self, samples: list[Sample], seeds: list[int]) -> list[Outcome]:
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send((samples, seeds))
        except OSError:
            pass  # the worker has died since; following it finds out how
        return self._follow()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        for rank in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(self._make_bench, rank, self._count, port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        ready: set[int] = set()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(ready) < self._count:
            for rank, message in self._receive(deadline, None):
                if isinstance(message, Failed):
                    raise _Stopped(message.reason, None)
                ready.add(rank)

    def _follow(self) -> list[Outcome]:
        """Read until every worker has given its outcomes; rank 0's are returned."""
        finished: dict[int, list[Outcome]] = {}
        current = [0] * self._count
        deadline = time.monotonic() + self._timeout_s
        while len(finished) < self._count:
            for rank, message in self._receive(deadline, current):
                deadline = time.monotonic() + self._timeout_s
                if isinstance(message, Started):
                    current[rank] = message.index
                else:
                    finished[rank] = message
        return finished[0]

    def _receive(self, deadline: float, current: list[int] | None) -> list[tuple[int, Any]]:
        """Messages that are there, by rank; may be none. `current` is the sample that each worker is at.

        Raises:
            _Stopped: a worker has died, or the deadline has passed.
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
            if time.monotonic() > deadline:
                slowest = None if current is None else min(current)
                raise _Stopped(f"timed out: a worker said nothing for {self._timeout_s:g} s", slowest)
        return messages

    def _death(self, rank: int, current: list[int] | None) -> _Stopped:
        process = self._processes[rank]
        process.join(timeout=_POLL_S)
        code = process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _Stopped(f"worker {rank} died ({how})", None if current is None else current[rank])

    def close(self) -> None:
        """End all workers now."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(
    make_bench: Callable[[int, int, int], Bench[Any]], rank: int, count: int, port: int, pipe: Connection
) -> None:
    """A worker's life: set up, then measure batches until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    try:
        bench = make_bench(rank, count, port)
    except (UserError, ImportError, RuntimeError, OSError) as error:
        pipe.send(Failed(f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)))
        return
    try:
        pipe.send(Ready())
        while True:
            samples, seeds = pipe.recv()
            pipe.send(bench.measure(samples, seeds, lambda index: pipe.send(Started(index))))
    except (EOFError, BrokenPipeError):
        return  # the parent has gone, and nobody is left to tell
