"""Two hosts made of this one, where this one lets itself be made into two."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from neuroshard.hardware import Link, two_hosts
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records.samples import CommSample
from neuroshard.words.topology import Topology
from tests.kit import measuring
from tests.kit.processes import PATIENCE_S

pytestmark = pytest.mark.xdist_group("measures")
CPU = replace(measuring.CPU, link=Link(20))


@pytest.fixture(scope="module")
def two():
    """Skips where namespaces aren't allowed."""
    try:
        with two_hosts.two_hosts(Link(1000)):
            pass
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_only_what_crosses_the_link_is_slow():
    """Of 1 MiB from every device, half or all crosses 20 Mbit/s: no machine is quick enough to do that sooner."""
    sizes, none = (1 << 20,) * 2, (0, 0)
    with CPU.comm_meter(2, print) as meter:
        crossing, empty = meter.measure(
            [CommSample(size, (0.0, 0.0), 64, devices_per_host=1) for size in (sizes, none)], [0, 1]
        )
    least_ms = (1 << 19) * 8 / 20e6 * 1e3
    assert crossing.error is None
    assert (typical_ms(crossing.repeats.times_ms) > 0.7 * least_ms).all()  # a burst passes at once
    assert empty.error is None


@pytest.mark.usefixtures("two")
def test_this_process_stays_where_it_is():
    before = _network("/proc/self")
    with two_hosts.two_hosts(Link(1000)) as both:
        networks = [str(Path(path).readlink()) for path in both.namespaces]
        assert len({before, *networks}) == 3
        assert _network("/proc/self") == before
    assert _holders(networks) == []


def _network(process):
    return str(Path(process, "ns", "net").readlink())


def _holders(networks):
    """Processes that hold one of the networks, or are in one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links = [process / "ns" / "net", *(process / "fd").iterdir()]
            found += [process.name for link in links if str(link.readlink()) in networks]
    return found


HOLD = """
import time
from test_two_hosts import CPU, SAMPLE, _network
if __name__ == "__main__":
    with CPU.comm_meter(2, print) as meter:
        meter.measure([SAMPLE], [0])
        print(*(_network(f"/proc/{pid}") for pid in meter.pids), flush=True)
        time.sleep(10**6)
"""
SAMPLE = CommSample((64, 64), (0.0, 0.0), 1, devices_per_host=1)


@pytest.mark.slow
@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(tmp_path, how):
    (tmp_path / "hold.py").write_text(HOLD)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, tmp_path / "hold.py"], stdout=subprocess.PIPE, text=True, env=environment
    )
    networks = process.stdout.readline().split()
    assert len(networks) == 2
    assert _holders(networks)
    process.send_signal(how)
    process.wait(PATIENCE_S)
    for _ in range(int(PATIENCE_S * 10)):
        if not _holders(networks):
            break
        time.sleep(0.1)
    assert _holders(networks) == []


def test_processes_that_two_hosts_cannot_share_are_refused():
    assert [CPU.devices_per_host(count) for count in (2, 4, 6)] == [1, 2, 3]
    assert replace(CPU, link=None).devices_per_host(3) is None
    with pytest.raises(UserError, match="3 processes can't be shared equally by 2 hosts"):
        CPU.devices_per_host(3)


def test_steps_take_hosts_that_fast_links_join_for_one(monkeypatch):
    told = []
    monkeypatch.setattr(type(CPU), "_group_meter", lambda its, *given: told.append(given[2]))
    cpu = replace(CPU, link=None)
    for domain in (None, 4):
        cpu.step_meter(Topology(8, 1 << 30, devices_per_host=2, devices_per_domain=domain), StepProtocol(), print)
    assert told == [2, 4]


def test_hosts_of_torchrun_are_its_own(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHREC_RESOLVED_POD_SIZE", raising=False)
    assert [CPU.devices_per_host(count) for count in (4, 8)] == [None, 4]
    monkeypatch.setenv("TORCHREC_RESOLVED_POD_SIZE", "2")
    assert [CPU.devices_per_host(count) for count in (4, 8, 16)] == [None, None, 8]
    CPU.check_hosts(Topology(16, 1 << 30, devices_per_host=4, devices_per_domain=8))
    with pytest.raises(UserError, match="exchanges are measured here with 8 on each"):
        CPU.check_hosts(Topology(16, 1 << 30, devices_per_host=4))
    monkeypatch.setenv("TORCHREC_RESOLVED_POD_SIZE", "two")
    with pytest.raises(UserError, match="TORCHREC_RESOLVED_POD_SIZE='two'"):
        CPU.devices_per_host(8)
    with pytest.raises(UserError, match="torchrun has its own"), CPU.comm_meter(8, print):
        pass


def test_a_machine_that_cannot_be_two_says_why(monkeypatch):
    def refuse(name, *arguments):
        raise OSError(1, f"{name}: Operation not permitted")

    monkeypatch.setattr(two_hosts, "_call", refuse)
    with (
        pytest.raises(UserError, match=r"of this one .*not permitted.*; it takes Linux, root"),
        two_hosts.two_hosts(CPU.link),
    ):
        pass


@pytest.mark.usefixtures("two")
def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="nsenter is missing"), two_hosts.two_hosts(Link(1000)):
        pass


@pytest.mark.parametrize("rate", [0, -1, 1e9, "fast"])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(UserError, match="mbit_per_s"):
        Link(rate)
