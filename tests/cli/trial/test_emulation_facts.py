"""Facts about emulations as text and as lines of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.cli.trial.emulation_facts import EmulationFacts
from farflung.cluster import Network
from farflung.emulation import PairCounters
from farflung.emulation.records import Record
from farflung.units import Seconds

NETWORK = """
[default]
latency = "1 ms"
bandwidth = "1 Gbit/s"
[[device]]
name = "a"
memory = "1 GB"
speed = "1 GFLOP/s"
[[device]]
name = "b"
memory = "1 GB"
speed = "1 GFLOP/s"
[[change]]
at = "30 s"
between = ["a", "b"]
bandwidth = "8 Mbit/s"
"""
PAIR = PairCounters(
    source="a", target="b", bytes=1500, packets=2, lost=1, dropped=0, refused=3, damaged=0, errors=0, held_bytes=9,
    queued_seconds=0.25,
)  # fmt: skip


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The objects on standard output; standard error is empty."""
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def test_counters(capsys: pytest.CaptureFixture[str]) -> None:
    EmulationFacts(as_json=False).counters([PAIR], Seconds(2.0))
    out, err = capsys.readouterr()
    assert out == "", "standard output belongs to the command"
    assert err.startswith("after 2.00 s:\nfrom ")
    assert err.split()[-9:] == ["b", "1.5", "kB", "2", "1", "0", "3", "250", "ms"]
    facts = EmulationFacts(as_json=True)
    facts.counters([PAIR], Seconds(2.0))
    facts.counters([PAIR], Seconds(3.0), end=True)
    first, last = told(capsys)
    assert (first["kind"], first["after"], first["end"], last["after"], last["end"]) == ("counters", 2.0, False, 3.0, True)
    assert first["pairs"] == [
        {
            "source": "a", "target": "b", "bytes": 1500, "packets": 2, "lost": 1, "dropped": 0, "refused": 3, "damaged": 0,
            "errors": 0, "held_bytes": 9, "queued_seconds": 0.25,
        }
    ]  # fmt: skip


def test_changes_clusters_and_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "network.toml").write_text(NETWORK)
    network = Network.from_toml(tmp_path / "network.toml")
    nodes = {name: SimpleNamespace(name=name, index=i, address=f"10.77.0.{i + 1}") for i, name in enumerate("ab")}
    emulation: Any = SimpleNamespace(nodes=nodes, namespace=lambda index: 40 + index)
    facts = EmulationFacts(as_json=True)
    facts.change(network, network.timeline[0])
    facts.cluster(emulation, tmp_path)
    facts.remedy(tmp_path)
    facts.nodes(emulation)
    change, cluster, found = told(capsys)
    assert (change["kind"], change["after"]) == ("change", 30.0)
    assert "bandwidth 8 Mbit/s" in change["change"]
    assert cluster == {"kind": "cluster", "home": str(tmp_path)}
    assert [(one["name"], one["address"], one["enter"].rpartition("/")[2]) for one in found["nodes"]] == [
        ("a", "10.77.0.1", "40"),
        ("b", "10.77.0.2", "41"),
    ]
    text = EmulationFacts(as_json=False)
    text.remedy(tmp_path)
    text.nodes(emulation)
    out, _ = capsys.readouterr()
    assert f"FARFLUNG_HOME={tmp_path}" in out
    assert out.endswith("Ctrl-C removes the network.\n")


def test_lists_and_what_was_removed(capsys: pytest.CaptureFixture[str]) -> None:
    gone = Record(id="1-2", topology="two-laptops", owner=(1, -1), router=(1, -1), namespaces=(3,), nodes=("a", "b"))
    facts = EmulationFacts(as_json=True)
    facts.emulations([gone])
    facts.removed([])
    listed, removed = told(capsys)
    assert listed["emulations"] == [{"id": "1-2", "topology": "two-laptops", "nodes": ["a", "b"], "running": False}]
    assert removed == {"kind": "removed", "removed": []}
    text = EmulationFacts(as_json=False)
    text.emulations([gone])
    text.removed(["1-2"])
    text.removed([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("2 nodes  its owner is gone: farflung emulate --clean removes what is left")
    assert lines[1:] == ["removed what 1 emulation had left", "nothing was left behind"]


@pytest.mark.parametrize("as_json", [False, True])
def test_output_of_commands_stays_apart(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    facts = EmulationFacts(as_json=as_json)
    facts.line("a: hello")
    assert (facts.command_output is sys.stderr) is as_json
    assert capsys.readouterr()[1 if as_json else 0] == "a: hello\n"
