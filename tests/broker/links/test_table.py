"""The table of links: figures, caps, and the file in which they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.cluster import Device, Topology
from farflung.units import Bytes, FlopsPerSecond
from tests.support.network.quiet import until


def _devices(*names: str) -> list[Device]:
    return [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9)) for name in names]


def test_the_table_keeps_its_figures_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    table = LinkTable(path)
    table.put("a", "b", LinkFigures(alpha=0.02, beta=5e6))
    table.put_uplink("a", 6e6)
    again = LinkTable(path)
    assert again.get("a", "b") == LinkFigures(alpha=0.02, beta=5e6)
    assert again.uplink("a") == 6e6
    topology = again.topology(_devices("a", "b"))
    assert topology is not None
    assert topology.link("b", "a").latency == 1e-3  # nobody measured it
    assert [device.uplink for device in topology.devices] == [6e6, None]
    saved = tmp_path / "measured.toml"
    saved.write_text(topology.to_toml())
    assert Topology.from_toml(saved) == topology
    assert again.topology(_devices("c", "d")) is None
    path.write_text("{damaged")
    assert LinkTable(path).get("a", "b") is None


def test_what_training_says_is_written_a_moment_later_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = LinkFigures(alpha=0.02, beta=5e6, source="training")
    monkeypatch.setattr(LinkTable, "LATER", 1e6)
    late = LinkTable(tmp_path / "late.json")
    late.put("a", "b", figures)
    late.put("b", "a", figures)
    assert not (tmp_path / "late.json").exists()
    late.close()
    assert LinkTable(tmp_path / "late.json").get("b", "a") == figures
    late.put("a", "c", figures)  # of a session that ends after the table
    assert LinkTable(tmp_path / "late.json").get("a", "c") is None
    monkeypatch.setattr(LinkTable, "LATER", 0.0)
    soon = LinkTable(tmp_path / "soon.json")
    soon.put("a", "b", figures)
    until((tmp_path / "soon.json").exists)
    soon.close()


def test_a_table_that_cannot_be_written_is_told_once_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    table = LinkTable(tmp_path / "file" / "links.json", said.append)
    for name in "bcd":
        table.put("a", name, LinkFigures(alpha=0.02, beta=5e6))
        table.put_uplink("a", 5e6)
    table.close()
    assert table.get("a", "d") is not None
    (line,) = said
    assert line.startswith(f"warning: {tmp_path / 'file' / 'links.json'} can't be written: ")
    assert line.endswith("; what is measured of links is kept in memory only")


def test_unmeasured_links_are_like_the_measured_ones_of_their_regions() -> None:
    table = LinkTable()
    for pair, alpha, beta in ((("a", "b"), 0.001, 1e8), (("a", "c"), 0.04, 1e6), (("b", "c"), 0.06, 3e6), (("c", "x"), 0.5, 1e3)):
        table.put(*pair, LinkFigures(alpha=alpha, beta=beta))
    regions = {"a": "north", "b": "north", "n": "north", "c": "south", "d": "south", "x": ""}
    devices = [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9), region=area) for name, area in regions.items()]
    topology = table.topology(devices)
    assert topology is not None

    def link(source: str, target: str) -> tuple[float, float]:
        found = topology.link(source, target)
        return found.latency, found.bandwidth

    assert link("a", "n") == link("n", "b") == (0.001, 1e8)
    assert link("a", "d") == (0.05, 2e6), "the median"
    assert link("a", "c") == (0.04, 1e6), "as measured"
    assert link("d", "a") == (0.001, 125e6), "that way nothing was measured"
    assert link("d", "x") == (0.001, 125e6), "without a region nothing is known"
