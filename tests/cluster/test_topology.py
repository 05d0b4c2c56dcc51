"""Topologies: arrays, names, sub-topologies, presets, JSON."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Device, Topology, preset_names
from farflung.errors import InputError
from farflung.units import Bytes, FlopsPerSecond


def device(name, **fields):
    return Device(**({"name": name, "memory": Bytes(1e9), "speed": FlopsPerSecond(1e9)} | fields))


def test_matrices_have_a_free_diagonal_and_cannot_be_written():
    topology = Topology.from_matrices([[5, 1], [2, 5]], [[1, 10], [20, 1]])
    assert topology.names == ("device-0", "device-1")
    assert topology.alpha.tolist() == [[0, 1], [2, 0]]
    assert topology.beta[0, 0] == np.inf
    assert topology.seconds("device-0", "device-1", 100) == 1 + 100 / 10
    assert topology.seconds("device-0", "device-0", 100) == 0
    assert topology.link("device-1", "device-0").seconds(40) == 2 + 40 / 20
    with pytest.raises(ValueError, match="read-only"):
        topology.alpha[0, 1] = 3


def test_achieved_speed_is_factor_times_peak():
    assert device("a", speed_factor=0.25).achieved == 0.25e9


def test_select_and_rename_keep_the_links():
    topology = Topology.from_matrices(np.arange(9).reshape(3, 3), np.arange(9).reshape(3, 3) + 1)
    part = topology.select(["device-2", "device-0"]).rename({"device-2": "far"})
    assert part.names == ("far", "device-0")
    assert part.alpha[0, 1] == topology.alpha[2, 0]
    assert part.beta[1, 0] == topology.beta[0, 2]


def test_regions_group_devices_in_order():
    devices = [device("a", region="x"), device("b", region="y"), device("c", region="x")]
    topology = Topology.from_matrices(np.zeros((3, 3)), np.ones((3, 3)), devices)
    assert topology.regions == {"x": (0, 2), "y": (1,)}


@pytest.mark.parametrize("name", ["local4-two-regions", "two-laptops", "homogeneous-5", "regions-64", "regions-20"])
def test_presets_survive_json_and_toml(name):
    topology = Topology.preset(name)
    assert Topology.from_json(topology.to_json()) == topology
    assert Topology.from_text(topology.to_toml()) == topology


def test_the_demo_preset_is_what_it_says():
    topology = Topology.preset("local4-two-regions")
    across, inside = topology.link("east-0", "west-1"), topology.link("west-0", "west-1")
    assert (across.latency, across.bandwidth) == (0.02, 1e6)
    assert (inside.latency, inside.bandwidth) == (0.001, 125e6)


def test_regions_64_has_fast_regions_and_slow_links_between_them():
    topology = Topology.preset("regions-64")
    assert len(topology) == 64
    assert len(topology.regions) == 8
    region = np.repeat(np.arange(8), 8)
    same = region[:, None] == region[None, :]
    off = ~np.eye(64, dtype=bool)
    assert topology.beta[same & off].min() > 3 * topology.beta[~same].max()
    assert topology.alpha[same].max() < topology.alpha[~same].min()


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(InputError, match=r"unknown topology preset 'moon': known are .*local4-two-regions.*regions-N"):
        Topology.preset("moon")
    assert "homogeneous-N" in preset_names()


def test_an_unknown_device_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no device 'x'; known are laptop-fast, laptop-slow"):
        Topology.preset("two-laptops").index("x")


@pytest.mark.parametrize(
    ("alpha", "beta", "text"),
    [
        (
            np.zeros((2, 2)),
            np.zeros((2, 2)),
            r"beta from 'device-0' to 'device-1' must be more than 0 .*got 0.0; correct the link",
        ),
        (-np.ones((2, 2)), np.ones((2, 2)), r"alpha from 'device-0' to 'device-1' must be finite and not negative"),
        (np.zeros((2, 2)), np.ones((3, 3)), r"beta must have shape \(2, 2\) for 2 devices, got \(3, 3\)"),
    ],
)
def test_impossible_matrices_are_refused(alpha, beta, text):
    with pytest.raises(InputError, match=text):
        Topology.from_matrices(alpha, beta)


def test_names_must_differ():
    with pytest.raises(InputError, match="two devices are called 'a'; give each its own name"):
        Topology.from_matrices(np.zeros((2, 2)), np.ones((2, 2)), [device("a"), device("a")])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "a device needs a name"),
        ({"memory": Bytes(0)}, "memory must be more than 0"),
        ({"speed": FlopsPerSecond(0)}, "speed must be more than 0"),
        ({"speed_factor": 0.0}, "speed_factor must be more than 0"),
        ({"overhead": -1e-6}, 'overhead must be from 0 to 1.00 s, got .*; write e.g. "20 us"'),
        ({"overhead": float("nan")}, "overhead must be from 0 to 1.00 s"),
        ({"convolution": 0.0}, "convolution must be more than 0, got 0.0; write e.g. 1.5"),
        ({"kind": "tpu"}, "unknown kind 'tpu'; known are cpu, cuda, mps, xpu"),
    ],
)
def test_impossible_devices_are_refused(fields, text):
    with pytest.raises(InputError, match=text):
        device(**({"name": "a"} | fields))


HUGE = Topology.preset("two-laptops").to_json().replace('"alpha":[[0.0', f'"alpha":[[{10**400}')


@pytest.mark.parametrize("text", ["{", "[]", '{"version":1}', "[" * 100_000, HUGE])
def test_json_that_is_no_topology_is_refused(text):
    with pytest.raises(InputError, match="not a topology in JSON"):
        Topology.from_json(text)


def test_another_version_is_refused():
    text = Topology.preset("two-laptops").to_json().replace('"version":1', '"version":3')
    with pytest.raises(InputError, match="topology version 3 is not known"):
        Topology.from_json(text)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_any_matrices_survive_json_and_toml(n, seed):
    random = np.random.default_rng(seed)
    topology = Topology.from_matrices(random.uniform(0, 1, (n, n)), random.uniform(1, 1e9, (n, n)))
    assert Topology.from_json(topology.to_json()) == topology
    assert Topology.from_text(topology.to_toml()) == topology


def test_convolution_speed_is_kept_in_json_and_toml(tmp_path):
    topology = Topology.from_matrices(np.zeros((1, 1)), np.ones((1, 1)), [device("a", convolution=1.5)])
    assert Topology.from_json(topology.to_json()).device("a").convolution == 1.5
    (tmp_path / "t.toml").write_text(topology.to_toml())
    assert Topology.from_toml(tmp_path / "t.toml").device("a").convolution == 1.5
