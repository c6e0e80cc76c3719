"""Two hosts made of this one: network namespaces of their own, joined by a link of limited rate.

The namespaces have no names: the kernel takes them away, link and all, with the last process that holds or is in one,
however it ends.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from neuroshard.hardware.specs import Link
from neuroshard.plumbing.errors import UserError

NUM_HOSTS = 2
_CLONE_NEWNET = 0x40000000
_LEAST_BURST_BYTES = 128 << 10  # that passes at once: twice the largest piece that the kernel sends
_BURST_MS = 1.0  # of the link's rate, where that is more: with less, the kernel's timers can't keep up with the rate
_QUEUED = "16mb"  # that waits for its turn; what comes beyond it is lost and sent again


@dataclass(frozen=True)
class Hosts:
    """The hosts, as processes enter them.

    Attributes:
        namespaces: path of each one's network.
        address: of the host of rank 0, as all of them reach it.
    """

    namespaces: tuple[str, ...]
    address: str

    def enter(self, rank: int, num_devices: int) -> str:
        """Move this process, which hasn't opened a socket yet, to its host; returns its network interface."""
        host = rank * NUM_HOSTS // num_devices
        namespace = os.open(self.namespaces[host], os.O_RDONLY)
        try:
            _call("setns", namespace, _CLONE_NEWNET)
        finally:
            os.close(namespace)
        return _interface(host)


@contextmanager
def two_hosts(link: Link) -> Iterator[Hosts]:
    """Yield two hosts with a link between them, which last for the block, or for this process if that ends sooner.

    Raises:
        UserError: this machine, or this user, can't make them.
    """
    with ExitStack() as held:
        namespaces = []
        for _ in range(NUM_HOSTS):
            namespace = _new_namespace()
            held.callback(os.close, namespace)
            namespaces.append(f"/proc/{os.getpid()}/fd/{namespace}")
        _join(namespaces, link)
        yield Hosts(tuple(namespaces), _address(0))


def _new_namespace() -> int:
    """Open a fresh network; a thread makes it, since a thread can leave the process's network alone."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(_opened).result()
        except OSError as error:
            raise _impossible(str(error)) from None


def _opened() -> int:
    _call("unshare", _CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _join(namespaces: list[str], link: Link) -> None:
    here, there = namespaces
    _run(here, f"ip link add {_interface(0)} type veth peer name {_interface(1)} netns {there}")
    for host, namespace in enumerate(namespaces):
        device = _interface(host)
        _run(namespace, "ip link set lo up")
        _run(namespace, f"ip address add {_address(host)}/24 dev {device}")
        _run(namespace, f"ip link set {device} up")
        _run(namespace, f"tc qdisc add dev {device} root tbf {_limits(link)}")


def _interface(host: int) -> str:
    return f"host{host}"


def _address(host: int) -> str:
    return f"10.64.0.{host + 1}"


def _limits(link: Link) -> str:
    burst = max(_LEAST_BURST_BYTES, round(link.mbit_per_s * 1e3 / 8 * _BURST_MS))
    return f"rate {round(link.mbit_per_s * 1000)}kbit burst {burst} limit {_QUEUED}"


def _run(namespace: str, command: str) -> None:
    try:
        subprocess.run(["nsenter", f"--net={namespace}", *command.split()], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise _impossible("nsenter is missing") from None
    except subprocess.CalledProcessError as error:
        raise _impossible(f"{command.split(maxsplit=1)[0]}: {error.stderr}") from None


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library that Python 3.11 doesn't have yet."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _impossible(why: str) -> UserError:
    return UserError(
        f"hardware.link: two hosts can't be made of this one ({why}); it takes Linux, root, util-linux and iproute2. "
        "Or leave hardware.link out, or measure between real hosts with torchrun"
    )
