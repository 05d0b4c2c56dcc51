"""The parts around the router that need no rights: changes in its terms, records of emulations, placeholders, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from farflung.cli.main import main
from farflung.cluster import Change, Network, Topology
from farflung.emulation import Emulation, EmulationOptions, kernel
from farflung.emulation.changes import first_changes, lower
from farflung.emulation.fabric import Fabric, FabricConfig
from farflung.emulation.kernel import processes_in, require_root
from farflung.emulation.programs import expand
from farflung.emulation.records import Record, listed, process_start, sweep
from farflung.errors import EmulationError, InputError


def test_a_network_becomes_a_fabric_like_it():
    text = """
[default]
latency = "20 ms"
bandwidth = "8 Mbit/s"
loss = 0.25
[[device]]
name = "a"
memory = "1 GB"
speed = "1 GFLOP/s"
region = "x"
uplink = "1 Mbit/s"
[[device]]
name = "b"
count = 2
memory = "1 GB"
speed = "1 GFLOP/s"
region = "y"
nat = true
"""
    changes = json.loads(json.dumps(first_changes(Network.from_text(text))))
    fabric = Fabric(FabricConfig(nodes=3))
    for change in changes:
        fabric.change(change)
    path = fabric.paths[0][1]
    assert (path.delay, path.loss, path.hop.queue) == (0.02, 0.25, 0.2)
    assert 1 / path.hop.seconds_per_byte == pytest.approx(1e6)
    assert fabric.uplinks[0].seconds_per_byte == pytest.approx(1 / 125e3)
    assert fabric.downlinks[0].seconds_per_byte == 0
    assert [nat is None for nat in fabric.nats] == [True, False, False]
    assert path.burst == 125, "a millisecond of the uplink, which is slower than the pair"
    assert fabric.paths[1][2].delay == 0.001


def test_an_infinite_bandwidth_is_no_limit():
    topology = Topology.from_matrices([[0, 0.1], [0.1, 0]], [[1, float("inf")], [float("inf"), 1]])
    (change, *_) = first_changes(Network(topology=topology))
    assert change["set"]["rate"] == 0.0


def test_changes_in_the_routers_terms():
    link = Change(at=1.0, links=((0, 1),), values={"bandwidth": 5.0, "latency": 1.0, "up": False})
    assert lower(link, 2) == [{"links": [(0, 1)], "set": {"rate": 5.0, "delay": 1.0, "up": False}}]
    node = Change(at=1.0, nodes=(1,), values={"uplink": 5.0, "downlink": 6.0, "nat": "n"})
    assert lower(node, 2) == [{"nodes": [1], "set": {"up_rate": 5.0, "down_rate": 6.0, "nat": "n"}}]
    assert lower(Change(at=1.0, reset=True), 2) == [{"reset": True}]


def reach(change: Change, count: int) -> list[str]:
    fabric = Fabric(FabricConfig(nodes=count))
    for lowered in lower(change, count):
        fabric.change(lowered)
    return ["".join("." if path.cut else "x" for path in row) for row in fabric.paths]


def test_partitions():
    assert reach(Change(at=0.0, groups=((0, 1), (2,))), 4) == ["xx..", "xx..", "..x.", "...x"]
    assert reach(Change(at=0.0, heal=True), 2) == ["xx", "xx"]


def test_placeholders():
    emulation = Emulation(Topology.preset("two-laptops"))
    node = emulation["laptop-slow"]
    arguments = ["{node}", "--to={address:laptop-fast}:70", "{index}{address}", "{other}", "{}"]
    assert expand(arguments, node, emulation) == ["laptop-slow", "--to=10.77.0.1:70", "110.77.0.2", "{other}", "{}"]
    with pytest.raises(InputError, match="the emulation has no node 'moon'; known are laptop-fast, laptop-slow"):
        expand(["{address:moon}"], node, emulation)


def test_an_emulation_that_does_not_run_says_so():
    emulation = Emulation(Topology.preset("two-laptops"), EmulationOptions(seed=3))
    with pytest.raises(EmulationError, match="the emulation is not running"):
        emulation.counters()
    with pytest.raises(EmulationError, match="the emulation is not running"), emulation["laptop-fast"].inside():
        pass
    with pytest.raises(InputError, match="change: change\\[0\\]: 'moon' is no device and no region"):
        emulation.change({"device": "moon", "uplink": 5})
    emulation.close()


def test_too_many_nodes():
    with pytest.raises(InputError, match="an emulation has at most 250 nodes, the topology has 251"):
        Emulation(Topology.preset("homogeneous-251"))


def test_without_rights_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as caught:
        main(["emulate", "two-laptops", "--", "true"])
    assert caught.value.code == EmulationError.exit_code
    said = capsys.readouterr().err
    assert said == (
        "farflung: emulation needs root (network namespaces and TUN devices), this is user 1000; "
        'run it with sudo env "PATH=$PATH" farflung ..., or use `farflung submit --emulate`, which needs no rights\n'
    )


def test_other_systems_and_missing_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kernel, "_TUN_PATH", tmp_path / "tun")
    with pytest.raises(EmulationError, match=r"emulation needs .*/tun; load the module \(modprobe tun\)"):
        require_root()
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(EmulationError, match="emulation needs Linux"):
        require_root()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which topology? write farflung emulate TOPOLOGY -- COMMAND"),
        (["two-laptops", "--each"], "--each runs a command in every node: write it after --"),
        (["two-laptops", "--each", "--node", "laptop-fast", "--", "true"], "--each runs a command in every node"),
        (["two-laptops", "--broker", "laptop-fast"], "--broker and --home belong to --cluster"),
        (["two-laptops", "--every", "1 s"], "--every says how often to show counters: add --counters"),
        (["moon-base", "--", "true"], "unknown topology preset 'moon-base'"),
    ],
)
def test_errors_of_the_command(capsys, arguments, says):
    with pytest.raises(SystemExit) as caught:
        main(["emulate", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"farflung: {says}")


def record(**changes) -> Record:
    own = (os.getpid(), process_start(os.getpid()))
    values = {"id": "1-2", "topology": "t", "owner": own, "router": own, "namespaces": (5,), "nodes": ("a",)}
    return Record(**{**values, **changes})


def test_records_come_back_and_other_files_are_passed_over(tmp_path):
    made = record()
    made.write(tmp_path)
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "y.json").write_text("{")
    assert listed(tmp_path) == [made]
    assert made.owned
    assert made.routed


def test_who_lives_keeps_what_it_made_and_the_dead_are_swept(tmp_path):
    record(id="live").write(tmp_path)
    gone = (os.getpid(), 1)  # the number is in use, but by a process with another beginning
    record(id="dead", owner=gone, router=gone).write(tmp_path)
    record(id="cleaning up", owner=gone).write(tmp_path)
    assert sweep(tmp_path) == ["dead"]
    assert [kept.id for kept in listed(tmp_path)] == ["live", "cleaning up"]


def test_only_marked_processes_of_the_namespaces_are_ended(tmp_path):
    here = os.stat("/proc/self/ns/net").st_ino
    gone = (os.getpid(), 1)
    sleep = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    marked = subprocess.Popen(sleep, env={**os.environ, "FARFLUNG_EMULATION": "7-8"}, **pipes)
    other = subprocess.Popen(sleep, env={**os.environ, "FARFLUNG_EMULATION": "7-88"}, **pipes)
    try:
        for process in (marked, other):
            assert process.stdout.readline() == b"\n"
        assert {marked.pid, other.pid} <= set(processes_in({here}))
        record(id="7-8", owner=gone, router=gone, namespaces=(here,)).write(tmp_path)
        assert sweep(tmp_path) == ["7-8"]
        assert marked.wait(10) == -9
        assert other.poll() is None
    finally:
        for process in (marked, other):
            process.kill()
            process.communicate()


def test_the_process_start_of_nobody_is_none():
    assert process_start(2**22 + 1) is None
