"""Presets of published experiments: sizes, and numbers that the papers print."""

import numpy as np
import pytest

from farflung.cluster import Topology, preset_names

FIXED = [name for name in preset_names() if not name.endswith("-N")]
SIZES = {
    "local4-two-regions": (4, 2),
    "two-laptops": (2, 2),
    "home-lab": (3, 2),
    "dtfm-case1": (64, 8),
    "dtfm-case2": (64, 40),
    "dtfm-case3": (64, 2),
    "dtfm-case4": (64, 4),
    "dtfm-case5": (64, 8),
    "fluidstack": (32, 2),
    "fusionllm-testbed1": (24, 5),
    "fusionllm-testbed2": (48, 10),
    "dreamddp-cluster1": (32, 8),
    "dreamddp-cluster2": (32, 4),
    "hybridps-case1": (16, 1),
    "hybridps-case2": (16, 4),
    "hybridps-case3": (16, 10),
    "hybridps-case4": (16, 10),
}


def off_diagonal(topology):
    off = ~np.eye(len(topology), dtype=bool)
    return topology.alpha[off], topology.beta[off]


@pytest.mark.parametrize("name", FIXED)
def test_devices_and_regions_are_as_many_as_stated(name):
    topology = Topology.preset(name)
    assert topology.name == name
    assert (len(topology), len(topology.regions)) == SIZES[name]


@pytest.mark.parametrize("name", FIXED)
def test_presets_survive_toml_and_json_and_are_the_same_each_time(name):
    topology = Topology.preset(name)
    assert Topology.from_text(topology.to_toml()) == topology
    assert Topology.from_json(topology.to_json()) == topology
    assert Topology.preset(name) == topology


@pytest.mark.parametrize("name", sorted(set(FIXED) - {"home-lab", "fluidstack"}))
def test_links_are_alike_both_ways(name):
    topology = Topology.preset(name)
    assert np.array_equal(topology.alpha, topology.alpha.T)
    assert np.array_equal(topology.beta, topology.beta.T)


@pytest.mark.parametrize(
    ("name", "source", "target", "milliseconds", "gbit"),
    [
        ("dtfm-case1", "machine-0-0", "machine-0-7", 0.01, 1200),
        ("dtfm-case1", "machine-0-0", "machine-7-0", 0.1, 25),
        ("dtfm-case2", "quad-7-0", "quad-7-3", 0.01, 100),
        ("dtfm-case2", "quad-7-0", "single-31", 0.1, 10),
        ("dtfm-case3", "ohio-0", "ohio-31", 1, 5),
        ("dtfm-case3", "ohio-0", "virginia-31", 11, 1.12),
        ("dtfm-case4", "california-0", "california-15", 5, 2),
        ("dtfm-case4", "california-0", "ohio-0", 52, 1.02),
        ("dtfm-case4", "virginia-3", "oregon-9", 67, 1.15),
        ("dtfm-case4", "ohio-3", "virginia-9", 11, 1.12),
        ("dtfm-case5", "oregon-0", "oregon-7", 5, 2),
        ("dtfm-case5", "oregon-0", "virginia-0", 67, 1.15),
        ("dtfm-case5", "tokyo-0", "seoul-0", 34, 1.1),
        ("dtfm-case5", "london-0", "virginia-0", 76, 0.364),
        ("dtfm-case5", "frankfurt-7", "ireland-7", 24, 1.08),
        ("dtfm-case5", "ireland-7", "seoul-7", 228, 0.335),
        ("fluidstack", "us-mid-0", "us-mid-15", 0.5, 10.40),
        ("fluidstack", "us-mid-0", "us-east-15", 21.8, 3.87),
        ("fluidstack", "us-east-0", "us-mid-15", 21.8, 3.73),
        ("fluidstack", "us-east-0", "us-east-15", 0.5, 11.98),
        ("dreamddp-cluster1", "machine-0-0", "machine-7-3", 0.1, 8),
        ("dreamddp-cluster2", "machine-0-0", "machine-3-7", 0.1, 160),
        ("hybridps-case1", "v100-0", "v100-15", 0.1, 16),
        ("home-lab", "pc", "cloud-0", 15, 0.02),
        ("home-lab", "cloud-1", "pc", 15, 0.1),
    ],
)
def test_printed_links_are_found(name, source, target, milliseconds, gbit):
    link = Topology.preset(name).link(source, target)
    assert link.latency == pytest.approx(milliseconds / 1e3)
    assert link.bandwidth == pytest.approx(gbit * 125e6)


def test_testbeds_span_8_mbit_to_10_gbit_and_one_is_part_of_two():
    two = Topology.preset("fusionllm-testbed2")
    _, beta = off_diagonal(two)
    assert beta.min() == pytest.approx(1e6)
    assert beta.max() == pytest.approx(1.25e9)
    one = Topology.preset("fusionllm-testbed1")
    assert np.array_equal(one.beta, two.select(one.names).beta)
    assert [len(members) for members in one.regions.values()] == [8, 4, 4, 4, 4]


def test_hybridps_links_lie_in_the_printed_ranges():
    alpha, beta = off_diagonal(Topology.preset("hybridps-case2"))
    across = alpha > 1e-3
    assert beta[across].min() >= 1e9
    assert beta[across].max() <= 3e9
    assert alpha[across].min() >= 0.010
    assert alpha[across].max() <= 0.100
    topology = Topology.preset("hybridps-case3")
    assert [device.reliable for device in topology.devices] == [True] * 8 + [False] * 8
    assert topology.beta[8:, :8].min() >= 50e6 / 8
    assert topology.beta[8:, :8].max() <= 300e6 / 8
    assert topology.alpha[8:, :8].min() >= 0.100
    assert topology.alpha[8:, :8].max() <= 0.150
    assert topology.speeds[0] / topology.speeds[15] == pytest.approx(1.55)
