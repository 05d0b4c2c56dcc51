"""The profile benchmark: its network, its comparison, and (with namespaces) a small run."""

from __future__ import annotations

import pytest

from benchmarks.network.profile import Profile, ProfileSettings, compare, describe
from benchmarks.network.profile_training import changed, counts
from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.cluster import Network


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


def test_right_directions_are_counted_apart_where_training_told_them() -> None:
    rows = [
        {"source": "probe", "beta_error": 0.06, "alpha_excess": 0.5},
        {"source": "training", "beta_error": -0.05, "alpha_excess": 1.1},
        {"source": "training", "beta_error": 0.01, "alpha_excess": 1.0},
    ]
    assert list(counts(rows).values()) == [3, 2, 2, 2, 2, 1]


def test_neighbours_change_their_rates_both_ways() -> None:
    topology = Network.from_text(describe(ProfileSettings(nodes=4, uplink=0.0))).topology
    after = changed(topology)
    ways = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3)]
    assert [after.beta[way] / topology.beta[way] for way in ways] == [2.0, 2.0, 0.25, 0.25, 1.0]


@pytest.mark.netns
@pytest.mark.timeout(400)
def test_training_tells_the_links_that_it_uses() -> None:
    settings = ProfileSettings(quick=True, nodes=2, uplink=0.0, idle=False, training=24, probed=False)
    report = Profile().run(settings, lambda text: None)
    during = report.figures["training"]["during"]
    assert during["told"] == during["told_alpha_right"] == 2
    assert report.figures["training"]["changed"]["told_beta_right"] >= 0


@pytest.mark.netns
@pytest.mark.timeout(400)
def test_a_small_network_is_measured() -> None:
    report = Profile().run(ProfileSettings(quick=True, nodes=2, uplink=0.0, training=0), lambda text: None)
    assert len(report.figures["links"]) == 2
    assert report.figures["unreachable"] == []
