"""Processes of a cluster on one host, with real processes of the command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from farflung.errors import FarflungError, SecurityError
from farflung.launchers.host_requests import HostedProcess, ProcessStart, StopProcesses
from farflung.launchers.hosted_processes import HostedProcesses
from tests.support.network.quiet import until

BROKER = ProcessStart(
    name="broker",
    words=("broker", "--listen", "127.0.0.1:0", "--no-web", "--no-tickets"),
    environment={"MARK": "here"},
    broker=True,
)
STOP = StopProcesses(cluster="lab")


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[HostedProcesses]:
    made = HostedProcesses("lab", tmp_path)
    yield made
    made.stop(StopProcesses(cluster="lab", seconds=0.0))


def pid(place: Path, name: str = "broker") -> int:
    return int(msgspec.json.decode((place / "processes" / f"{name}.json").read_bytes())["pid"])


def test_a_process_is_started_once_and_stopped(tmp_path: Path, hosted: HostedProcesses) -> None:
    running = [HostedProcess(name="broker", running=True)]
    assert hosted.start([BROKER]) == running
    first = psutil.Process(pid(tmp_path))
    until(lambda: first.environ().get("MARK") == "here")  # the program may not have replaced the copy of this process yet
    assert os.getsid(first.pid) == first.pid, "the end of the session that started it does not end it"
    assert HostedProcesses("lab", tmp_path).start([BROKER]) == running
    assert pid(tmp_path) == first.pid
    until(lambda: "Press Ctrl-C" in hosted.log("broker").read_text())
    assert "farflung1-" not in hosted.log("broker").read_text(), "a log has no tickets"
    assert hosted.log("broker").stat().st_mode & 0o077 == 0
    assert hosted.stop(StopProcesses(cluster="lab", spared=("broker",))) == running
    assert hosted.stop(StopProcesses(cluster="lab", names=("other",))) == running
    assert hosted.stop(STOP) == []
    assert not psutil.pid_exists(first.pid) or first.status() == psutil.STATUS_ZOMBIE
    assert "broker: closing" in hosted.log("broker").read_text()


def test_a_process_that_died_is_known_and_started_again(tmp_path: Path, hosted: HostedProcesses) -> None:
    hosted.start([BROKER])
    first = pid(tmp_path)
    os.kill(first, signal.SIGKILL)
    until(lambda: not hosted.runs("broker"))
    assert hosted.processes() == [HostedProcess(name="broker", running=False)]
    assert hosted.start([BROKER]) == [HostedProcess(name="broker", running=True)]
    assert pid(tmp_path) != first


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path, hosted: HostedProcesses) -> None:
    hosted.start([BROKER])
    os.kill(pid(tmp_path), signal.SIGSTOP)
    assert hosted.stop(StopProcesses(cluster="lab", seconds=0.1)) == []


def test_a_reused_process_id_is_another_process(tmp_path: Path, hosted: HostedProcesses) -> None:
    (tmp_path / "processes").mkdir()
    record = {"pid": os.getpid(), "started": psutil.Process().create_time() - 100.0}
    (tmp_path / "processes" / "broker.json").write_bytes(msgspec.json.encode(record))
    assert not hosted.runs("broker")
    assert hosted.stop(STOP) == [], "and it is not killed"


def test_a_ticket_goes_through_a_private_file(tmp_path: Path, hosted: HostedProcesses) -> None:
    worker = ProcessStart(name="w", words=("join", "--retry", "0 s"), ticket="farflung1-secret")
    hosted.start([worker])
    path = tmp_path / "processes" / "w.ticket"
    assert (path.read_text(), path.stat().st_mode & 0o077) == ("farflung1-secret", 0)
    until(lambda: not hosted.runs("w"))
    assert "the ticket is mistyped or cut" in hosted.log("w").read_text()
    hosted.stop(STOP)
    assert not path.exists()


def test_wrong_names_and_records(tmp_path: Path, hosted: HostedProcesses) -> None:
    with pytest.raises(SecurityError, match=r"process name '\.\./x' must be"):
        hosted.start([ProcessStart(name="../x", words=())])
    with pytest.raises(SecurityError, match=r"cluster name '\.\.' must be"):
        HostedProcesses("..")
    with pytest.raises(FarflungError, match="there is no log of 'w' on this host: logs there are none"):
        hosted.log("w")
    (tmp_path / "processes" / "broker.json").write_text("{")
    with pytest.raises(FarflungError, match=r"broker\.json can't be read: .*; remove it"):
        hosted.processes()
    (tmp_path / "processes" / "broker.json").unlink()
