"""What topology files say for emulation: links that lose and jitter, caps, NAT, and a timeline."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.cluster import Change, Device, Network, Topology
from farflung.errors import InputError
from farflung.units import Bytes, FlopsPerSecond

TEXT = """
name = "home-lab"
[default]
latency = "20 ms"
bandwidth = "1 Gbit/s"
jitter = "2 ms"
[[device]]
name = "pc"
memory = "8 GB"
speed = "1 TFLOP/s"
region = "home"
uplink = "20 Mbit/s"
downlink = "100 Mbit/s"
nat = true
[[device]]
name = "box"
count = 2
memory = "8 GB"
speed = "1 TFLOP/s"
region = "cloud"
nat = "rack"
[[link]]
from = "pc"
to = "box-1"
latency = "30 ms"
bandwidth = "50 Mbit/s"
loss = "0.5 %"
corrupt = 0.001
queue = "50 ms"
"""


def test_links_caps_and_nat():
    network = Network.from_text(TEXT)
    topology = network.topology
    assert [device.nat for device in topology.devices] == ["nat of pc", "rack", "rack"]
    assert topology.device("pc").uplink == 2.5e6
    assert topology.device("pc").downlink == 12.5e6
    assert topology.device("box-0").uplink is None
    assert network.bandwidth[0, 1] == 125e6
    assert topology.beta[0, 1] == 2.5e6, "the planner sees what the uplink leaves"
    assert topology.beta[1, 0] == 12.5e6
    assert (network.loss[0, 2], network.corrupt[0, 2], network.queue[0, 2]) == (0.005, 0.001, 0.05)
    assert (network.loss[2, 0], network.queue[2, 0]) == (0.0, 0.2)
    assert network.jitter[0, 1] == 0.002
    assert network.jitter[1, 2] == 0.0, "[inside] has its own"


def test_devices_without_a_region_take_the_default_where_nothing_is_said_of_insides():
    device = '[[device]]\nname = "n"\ncount = 3\nmemory = "8 GB"\nspeed = "1 TFLOP/s"\n'
    default = '[default]\nlatency = "20 ms"\nbandwidth = "8 Mbit/s"\nloss = "1 %"\n'
    network = Network.from_text(default + device)
    assert (network.topology.alpha[0, 1], network.bandwidth[2, 1], network.loss[1, 0]) == (0.02, 1e6, 0.01)
    assert network.topology.alpha[1, 1] == 0.0
    same = Network.from_text(default + device + 'region = "home"\n')
    assert (same.topology.alpha[0, 1], same.bandwidth[2, 1]) == (0.001, 125e6)
    told = Network.from_text(default + '[inside]\nlatency = "2 ms"\nbandwidth = "80 Mbit/s"\n' + device)
    assert (told.topology.alpha[0, 1], told.bandwidth[2, 1]) == (0.002, 1e7)


def test_topologies_keep_caps_and_nat_in_all_their_forms():
    topology = Topology.from_text(TEXT)
    assert Topology.from_text(topology.to_toml(), "home-lab") == topology
    assert Topology.from_json(topology.to_json()) == topology
    assert '"nat"' not in Topology.preset("two-laptops").to_json()


CHANGES = """
[[change]]
at = "20 s"
between = ["home", "cloud"]
latency = "80 ms"
loss = 0.01
up = false
[[change]]
at = "10 s"
from = "box-0"
to = "pc"
bandwidth = "8 Mbit/s"
[[change]]
at = "30 s"
device = "cloud"
uplink = "1 Mbit/s"
nat = false
[[change]]
at = "40 s"
partition = [["pc", "box-0"], ["box-1"]]
[[change]]
at = "50 s"
heal = true
[[change]]
at = "60 s"
reset = true
"""


def test_the_timeline_is_sorted_and_in_base_units():
    assert Network.from_text(TEXT + CHANGES).timeline == (
        Change(at=10.0, links=((1, 0),), values={"bandwidth": 1e6}),
        Change(at=20.0, links=((0, 1), (0, 2), (1, 0), (2, 0)), values={"latency": 0.08, "loss": 0.01, "up": False}),
        Change(at=30.0, nodes=(1, 2), values={"uplink": 125e3, "nat": ""}),
        Change(at=40.0, groups=((0, 1), (2,))),
        Change(at=50.0, heal=True),
        Change(at=60.0, reset=True),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('at = "1 s"\nbetween = ["pc", "moon"]\nup = true', r"change\[0\]: 'moon' is no device and no region; known are box-0"),
        ('between = ["pc", "box-0"]\nup = true', r'change\[0\].at: is missing; write e.g. at = "24 h"'),
        ('at = "1 s"\nfrom = "pc"\nup = true', r'must say between = \["a", "b"\], or from and to'),
        ('at = "1 s"\nbetween = ["pc", "box-0"]', "says nothing to change; known are latency, bandwidth, jitter"),
        ('at = "1 s"\ndevice = "pc"', "says nothing to change; known are uplink, downlink, nat"),
        (
            'at = "1 s"\ndevice = "pc"\nlatency = 1',
            r"change\[0\].latency: unknown key; known are at, device, downlink, nat, uplink",
        ),
        ('at = "1 s"', "must have exactly one of between, from, device, partition, heal, reset, got none"),
        ('at = "1 s"\nheal = true\nreset = true', "got heal, reset"),
        ('at = "1 s"\nheal = false', r"heal: must be true, got False; leave the table out otherwise"),
        ('at = "1 s"\nbetween = ["pc", "box-0"]\nup = 1', "up: must be true or false, got 1"),
        ('at = "1 s"\nbetween = ["pc", "box-0"]\nloss = 2', 'a share must be from 0 to 1, got 2; write e.g. 0.001 or "0.1 %"'),
        ('at = "1 s"\npartition = ["pc"]', "must be groups of names"),
        ('at = "1 s"\npartition = [["home"], ["pc"]]', "a device can be in one group only"),
        ('at = "1 s"\ndevice = "pc"\nnat = 3', "nat: must be true, false or a name, got 3"),
    ],
)
def test_errors_of_changes(text, says):
    with pytest.raises(InputError, match=says):
        Network.from_text(f"{TEXT}[[change]]\n{text}\n")


@pytest.mark.parametrize("value", ['"a %"', '"101 %"', "-0.1", "true", "[]", "1" + 400 * "0"])
def test_shares_are_checked(value):
    with pytest.raises(InputError, match=r"network text: link\[0\].loss: a share must be from 0 to 1"):
        Network.from_text(TEXT.replace('"0.5 %"', value))


def test_caps_are_checked():
    with pytest.raises(InputError, match=r"device 'pc': uplink must be more than 0"):
        Network.from_text(TEXT.replace('"20 Mbit/s"', "0"))


def test_matrices_are_checked():
    topology = Topology.preset("two-laptops")
    with pytest.raises(InputError, match=r"loss must have shape \(2, 2\), got \(3, 3\)"):
        Network(topology=topology, loss=np.zeros((3, 3)))
    with pytest.raises(InputError, match="loss must be from 0 to 1"):
        Network(topology=topology, loss=np.full((2, 2), 1.5))
    assert Network(topology=topology, loss=np.array(0.5)).loss.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_named_takes_files_and_presets(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(TEXT)
    assert Network.named(str(path)).topology.name == "home-lab"
    assert Network.named("two-laptops").timeline == ()
    assert Network.from_toml(path).jitter[0, 1] == 0.002
    with pytest.raises(InputError, match="unknown topology preset 'three-laptops'"):
        Network.named("three-laptops")


def test_a_network_has_dense_matrices_and_so_a_limit_that_a_topology_has_not():
    text = TEXT.replace("count = 2", "count = 3000")
    assert len(Topology.from_text(text)) == 3001
    with pytest.raises(InputError, match="network text: device: a network has 1024 devices at most, got 3001"):
        Network.from_text(text)


def test_devices_of_one_region_may_have_different_caps():
    more = '[[device]]\nname = "slow"\nmemory = "1 GB"\nspeed = "1 TFLOP/s"\nregion = "cloud"\ndownlink = "1 Mbit/s"\n'
    topology = Topology.from_text(TEXT + more)
    assert topology.beta[1].tolist()[1:] == [float("inf"), 125e6, 125e3]
    assert topology.beta[3].tolist()[:3] == [12.5e6, 125e6, 125e6]
    assert Topology.from_text(topology.to_toml(), "home-lab") == topology


def test_a_topology_for_people_has_units_and_no_empty_keys():
    devices = [Device(name=n, memory=Bytes(15519675187.2), speed=FlopsPerSecond(41234567890.1)) for n in ("a", "b")]
    beta = np.array([[np.inf, 596739.1917745471], [5e6, np.inf]])
    topology = Topology.from_matrices(np.array([[0.0, 0.04295819949766155], [0.0121, 0.0]]), beta, devices)
    text = topology.to_toml(digits=4)
    assert text.startswith('name = "matrices"\n\n[[device]]\nname = "a"\nmemory = "15.52 GB"\nspeed = "41.23 GFLOP/s"\n'), text
    assert "region" not in text
    assert 'from = "a"\nto = "b"\nlatency = "42.96 ms"\nbandwidth = "4.774 Mbit/s"\n' in text
    read = Topology.from_text(text)
    np.testing.assert_allclose(read.alpha, topology.alpha, rtol=6e-4)
    np.testing.assert_allclose(read.beta, topology.beta, rtol=6e-4)
    assert Topology.from_text(read.to_toml(digits=4)) == read


def test_changes_are_told_to_people():
    network = Network.from_text(TEXT + CHANGES)
    told = [network.told(change) for change in network.timeline]
    assert all(told), told
    device = "".join(f'[[device]]\nname = "{n}"\nmemory = "8 GB"\nspeed = "1 TFLOP/s"\n' for n in "ab")
    cut = (
        '[[change]]\nat = "70 s"\nbetween = ["a", "b"]\nbandwidth = "12.5 Mbit/s"\nlatency = "20 ms"\nloss = "1 %"\nup = false\n'
    )
    (change,) = (network := Network.from_text(device + cut)).timeline
    assert sorted(network.told(change).replace(": ", ", ").split(", ")) == sorted(
        ["a -> b", "b -> a", "bandwidth 12.5 Mbit/s", "latency 20 ms", "loss 1 %", "up = false"]
    )
    caps = '[[change]]\nat = "1 s"\ndevice = "a"\nuplink = 0\nnat = true\n'
    (change,) = (network := Network.from_text(device + caps)).timeline
    assert network.told(change).startswith("a: no limit of uplink, nat = ")
