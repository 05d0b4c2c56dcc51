"""The real thing: namespaces, packets, programs. Needs root."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.cluster import Network
from farflung.emulation import Emulation, Node
from farflung.emulation.kernel import processes_in
from farflung.emulation.records import RECORDS, listed, process_start
from farflung.errors import EmulationError
from tests.support.commands.job_files import LIBRARY, job_text

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

DEVICE = """
[[device]]
name = "{name}"
memory = "1 GB"
speed = "1 GFLOP/s"
region = "{name}"
{more}
"""
LINKS = '[default]\nlatency = "{latency}"\nbandwidth = "{bandwidth}"\n{more}\n'
SOON = 30.0


def network(*names: str, latency: str = "1 ms", bandwidth: str = "1 Gbit/s", more: str = "", **devices: str) -> Network:
    text = LINKS.format(latency=latency, bandwidth=bandwidth, more=more)
    return Network.from_text(text + "".join(DEVICE.format(name=name, more=devices.get(name, "")) for name in names))


def connect(source: Node, target: Node, timeout: float = 10.0) -> tuple[socket.socket, socket.socket]:
    """A TCP connection from one node to another, both ends."""
    with target.inside():
        listener = socket.create_server(("0.0.0.0", 0))
    with listener:
        with source.inside():
            dialled = socket.create_connection((target.address, listener.getsockname()[1]), timeout=timeout)
        taken, _ = listener.accept()
    return dialled, taken


def transfer(sender: socket.socket, receiver: socket.socket, data: bytes) -> bytes:
    """Send and close; what arrives."""
    receiver.settimeout(SOON)

    def push() -> None:
        sender.sendall(data)
        sender.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=push)
    thread.start()
    got = bytearray()
    while chunk := receiver.recv(1 << 20):
        got += chunk
    thread.join()
    return bytes(got)


def trips(source: Node, target: Node, count: int = 5) -> list[float]:
    """Round-trip times of ICMP echo, stamped by the kernel on arrival."""
    with source.inside():
        probe = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    times = []
    with probe:
        probe.settimeout(SOON)
        for number in range(count):
            head = struct.pack("!BBHHH", 8, 0, 0, 7, number)
            words = sum(struct.unpack("!4H", head))
            checksum = ~((words & 0xFFFF) + (words >> 16)) & 0xFFFF
            begin = time.monotonic()
            probe.sendto(struct.pack("!BBHHH", 8, 0, checksum, 7, number), (target.address, 0))
            while struct.unpack_from("!BxxxHH", probe.recv(100), 20) != (0, 7, number):
                pass
            times.append(time.monotonic() - begin)
    return times


def until(condition, seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


@contextmanager
def pair(*, more: str = "", **devices: str) -> Iterator[tuple[Emulation, Node, Node]]:
    with Emulation(network("a", "b", more=more, **devices)) as emulation:
        yield emulation, emulation["a"], emulation["b"]


def test_latency_and_a_change_of_it():
    with Emulation(network("a", "b", latency="10 ms")) as emulation:
        assert 0.020 <= min(trips(emulation["a"], emulation["b"])) < 0.025
        emulation.change({"between": ["a", "b"], "latency": "40 ms"})
        assert 0.080 <= min(trips(emulation["a"], emulation["b"])) < 0.085
        emulation.change({"from": "a", "to": "b", "latency": "0 ms"})
        assert 0.040 <= min(trips(emulation["a"], emulation["b"])) < 0.045


@pytest.mark.parametrize("settings", [{}, {"loss": "2 %", "jitter": "2 ms"}, {"bandwidth": "20 Mbit/s"}])
def test_streams_arrive_as_they_were_sent(settings):
    data = os.urandom(3 << 20)
    with pair() as (emulation, a, b):
        if settings:
            emulation.change({"between": ["a", "b"], **settings})
        sender, receiver = connect(a, b)
        with sender, receiver:
            assert transfer(sender, receiver, data) == data
        forth, back = emulation.counters()
        assert (forth.source, forth.target, back.source, back.target) == ("a", "b", "b", "a")
        assert forth.bytes > len(data) > back.bytes > 0
        assert (forth.lost > 0) == ("loss" in settings)
        assert forth.errors == back.errors == 0


def test_datagrams_of_all_sizes_arrive():
    with pair() as (_emulation, a, b):
        with b.inside():
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind(("0.0.0.0", 0))
        with a.inside():
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.settimeout(SOON)
        with server, client:
            for size in (1, 1471, 1473, 9000, 60000):
                data = os.urandom(size)
                client.sendto(data, (b.address, server.getsockname()[1]))
                assert server.recv(65536) == data


def test_a_link_carries_its_rate():
    data = bytes(5 << 20)
    with pair() as (emulation, a, b):
        emulation.change({"between": ["a", "b"], "bandwidth": "40 Mbit/s"})
        sender, receiver = connect(a, b)
        begin = time.monotonic()
        with sender, receiver:
            assert len(transfer(sender, receiver, data)) == len(data)
        seconds = time.monotonic() - begin
        assert len(data) / seconds < 5e6, "no faster than the link"
        assert len(data) / seconds > 3.5e6, "and it does not crawl"


def test_turned_bits_pass_the_checksum():
    data = bytes(1 << 20)
    with pair() as (emulation, a, b):
        sender, receiver = connect(a, b)
        emulation.change({"from": "a", "to": "b", "corrupt": 1.0})
        with sender, receiver:
            got = transfer(sender, receiver, data)
        assert len(got) == len(data)
        assert got != data


def test_behind_nat_one_can_dial_and_not_be_dialled():
    with pair(a="nat = true") as (emulation, a, b):
        sender, receiver = connect(a, b)
        with sender, receiver:
            sender.sendall(b"hello")
            assert receiver.recv(9) == b"hello"
            receiver.sendall(b"and back")
            assert sender.recv(9) == b"and back"
        with pytest.raises(TimeoutError):
            connect(b, a, timeout=0.5)
        assert {pair.source: pair.refused > 0 for pair in emulation.counters()} == {"a": False, "b": True}
        emulation.change({"device": "a", "nat": False})
        for end in connect(b, a):
            end.close()


def test_partitions_and_the_timeline():
    change = '[[change]]\nat = "0.2 s"\npartition = [["a"], ["b"]]\n[[change]]\nat = "1.2 s"\nheal = true\n'
    text = network("a", "b").topology.to_toml() + change
    with Emulation(Network.from_text(text)) as emulation:
        a, b = emulation["a"], emulation["b"]
        trips(a, b, 1)
        assert all(pair.refused == 0 for pair in emulation.counters())
        emulation.play()
        with a.inside():
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def counted(key: str) -> int:
            client.sendto(b"x", (b.address, 9))
            return next(getattr(pair, key) for pair in emulation.counters() if pair.source == "a")

        with client:
            until(lambda: counted("refused") > 0)
            seen = counted("packets")
            until(lambda: counted("packets") > seen)


def test_programs_know_their_node_and_end_with_the_network():
    with pair() as (emulation, a, b):
        shown = a.start(["sh", "-c", "echo $FARFLUNG_NODE $FARFLUNG_INDEX $FARFLUNG_ADDRESS $FARFLUNG_NODES"], stdout=-1)
        assert shown.communicate()[0] == b"a 0 10.77.0.1 a=10.77.0.1,b=10.77.0.2\n"
        # it starts a grandchild in a session of its own, and neither heeds SIGTERM
        stubborn = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo up; while :; do sleep 1; done' & wait; sleep 100"
        program = b.start(["sh", "-c", stubborn], stdout=-1)
        assert program.stdout.readline() == b"up\n"
        numbers = {os.fstat(emulation.namespace(node.index)).st_ino for node in (a, b)}
        router = emulation.router
        assert len(processes_in(numbers)) >= 2
        with pytest.raises(EmulationError, match="cannot start 'no-such-program' in node 'a': No such file"):
            a.start(["no-such-program"])
    program.stdout.close()
    assert processes_in(numbers) == []
    assert process_start(router) is None
    assert not any(record.router[0] == router for record in listed())
    with pytest.raises(EmulationError, match="not running"):
        emulation.change({"heal": True})


def test_a_router_that_ends_is_noticed():
    with pair() as (emulation, _, _):
        os.kill(emulation.router, signal.SIGKILL)
        with pytest.raises(EmulationError, match="the emulation's router has ended"):
            emulation.counters()


OWNER = """
import sys
from farflung.cluster import Topology
from farflung.emulation import Emulation
with Emulation(Topology.preset("two-laptops")) as emulation:
    for node in emulation.nodes.values():
        node.start([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(emulation.id, flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs an emulation, and the emulation's id."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def record_of(emulation: str):
    return next((record for record in listed() if record.id == emulation), None)


def test_a_killed_owner_leaves_nothing():
    with owner() as (process, name):
        record = record_of(name)
        assert len(processes_in(set(record.namespaces))) >= 2
        process.kill()
        until(lambda: processes_in(set(record.namespaces)) == [] and not record.routed)
        assert record_of(name) is None


def test_what_a_killed_owner_and_router_leave_is_swept_and_only_that():
    with owner() as (alive, kept), owner() as (process, name):
        record = record_of(name)
        os.kill(process.pid, signal.SIGSTOP)  # so that it can't clean up after its router
        os.kill(record.router[0], signal.SIGKILL)
        process.kill()
        process.wait()
        until(lambda: not record.routed)
        assert len(processes_in(set(record.namespaces))) >= 2, "the programs live on"
        swept = subprocess.run(
            [sys.executable, "-m", "farflung", "emulate", "--clean"], check=False, capture_output=True, text=True
        )
        assert (swept.returncode, swept.stderr) == (0, "")
        assert swept.stdout.startswith("removed what ")
        until(lambda: processes_in(set(record.namespaces)) == [])
        assert record_of(name) is None
        assert alive.poll() is None
        assert len(processes_in(set(record_of(kept).namespaces))) >= 2
    until(lambda: not any(record.id in (kept, name) and record.routed for record in listed()))


def farflung(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "farflung", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=place, timeout=110)


def test_the_command_runs_in_one_node_or_in_each(tmp_path):
    one = farflung(tmp_path, "emulate", "two-laptops", "--node", "laptop-slow", "--", "sh", "-c", "echo {node} {address}; exit 3")
    assert (one.returncode, one.stdout) == (3, "laptop-slow 10.77.0.2\n"), one.stderr
    each = farflung(tmp_path, "emulate", "two-laptops", "--each", "--", "sh", "-c", "echo {index} {address:laptop-fast}")
    assert (each.returncode, sorted(each.stdout.splitlines())) == (
        0,
        ["laptop-fast: 0 10.77.0.1", "laptop-slow: 1 10.77.0.1"],
    ), each.stderr
    unknown = farflung(tmp_path, "emulate", "two-laptops", "--node", "moon", "--", "true")
    assert unknown.returncode == 2
    assert "the emulation has no node 'moon'; known are laptop-fast, laptop-slow" in unknown.stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_program_beside_and_counters(tmp_path, form):
    serve = f"laptop-fast: {sys.executable} -m http.server 8000 --bind {{address}}"
    fetch = (
        "import time, urllib.request\nfor _ in range(100):\n try:\n  print(len(urllib.request.urlopen("
        "'http://{address:laptop-fast}:8000/big').read())); break\n except OSError: time.sleep(0.1)\n"
    )
    (tmp_path / "big").write_bytes(bytes(100_000))
    arguments = ["--node", "laptop-slow", "--counters", *form, "--with", serve, "--", sys.executable, "-c", fetch]
    done = farflung(tmp_path, "emulate", "two-laptops", *arguments)
    if form:
        facts = json.loads(done.stdout)  # one line
        assert "100000" in done.stderr.splitlines()
        assert (facts["kind"], facts["end"]) == ("counters", True)
        assert any(pair["source"] == "laptop-fast" and pair["bytes"] > 100_000 for pair in facts["pairs"])
    else:
        assert "100000" in done.stdout.splitlines(), done.stderr
        assert "laptop-fast          laptop-slow" in done.stderr
    assert not list(RECORDS.glob(f"{os.getpid()}-*.json"))


@pytest.mark.timeout(300)
def test_a_whole_run_over_the_emulated_network(tmp_path):
    (tmp_path / "job.toml").write_text(job_text(steps=2, workers=2, data=LIBRARY, plan={"planner": "equal_number"}))
    train = [sys.executable, "-m", "farflung", "submit", "job.toml"]
    done = farflung(tmp_path, "emulate", "two-laptops", "--cluster", "--home", str(tmp_path / "home"), "--counters", "--", *train)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished after 2 steps" in done.stdout
    assert "step 2/2" in done.stdout
    passed = {line.split()[0]: line.split()[3] for line in done.stderr.splitlines() if line.startswith("laptop-")}
    assert set(passed) == {"laptop-fast", "laptop-slow"}, done.stderr
    assert "joined the broker at 10.77.0.1" in (tmp_path / "home/worker-laptop-slow.log").read_text()
