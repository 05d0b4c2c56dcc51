"""The profile benchmark: its network, its comparison, and (with namespaces) a small run."""

from __future__ import annotations

import pytest

from farflung.bench.profile import Profile, ProfileSettings, compare, describe
from farflung.cluster import Network
from farflung.runtime.link_table import LinkFigures, LinkTable


def test_errors_are_against_payload_and_tolerance() -> None:
    network = Network.from_text(describe(ProfileSettings(nodes=4)))
    assert network.topology.names == ("home-0", "office-0", "cloud-0", "home-1")
    table = LinkTable()
    true = float(network.topology.link("home-0", "cloud-0").bandwidth) * 1448 / 1514
    table.put("home-0", "cloud-0", LinkFigures(alpha=0.021, beta=0.97 * true))
    [row] = compare(network, table)
    assert row["beta_error"] == pytest.approx(-0.03)
    assert row["alpha_excess"] == pytest.approx(0.5)


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_links_are_described_between_regions_that_have_nodes(nodes: int) -> None:
    assert len(Network.from_text(describe(ProfileSettings(nodes=nodes))).topology) == nodes


@pytest.mark.netns
def test_a_small_network_is_measured() -> None:
    report = Profile().run(ProfileSettings(quick=True, nodes=2, uplink=0.0), lambda text: None)
    assert len(report.figures["links"]) == 2
    assert report.figures["unreachable"] == []
