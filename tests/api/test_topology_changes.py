"""Changes of a topology, and what is no change."""

from dataclasses import replace

import numpy as np
import pytest

from farflung.api import plan
from farflung.api.topology_changes import changed_topology
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.builder import GraphBuilder
from farflung.job.spec import JobSpec
from farflung.units import BytesPerSecond

BASE = Topology.preset("local4-two-regions")


def test_devices_are_added():
    grown = changed_topology(BASE, "add 2 like east-0")
    assert grown.names == (*BASE.names, "east-0-new-0", "east-0-new-1")
    assert np.array_equal(np.asarray(grown.alpha)[:4, :4], np.asarray(BASE.alpha))
    new, old, west = (grown.index(name) for name in ("east-0-new-1", "east-0", "west-1"))
    assert grown.beta[new, west] == BASE.beta[0, BASE.index("west-1")]
    assert grown.beta[new, old] == BASE.beta[0, 1]
    assert (grown.beta[new, new], grown.alpha[new, new]) == (np.inf, 0)
    alone = changed_topology(Topology.preset("two-laptops"), "add 1 like laptop-fast")
    assert alone.beta[0, 2] == 125e6


def test_links_are_doubled_and_regions_removed():
    faster = changed_topology(BASE, "double east west")
    ratio = np.asarray(faster.beta)[:2, 2:] / np.asarray(BASE.beta)[:2, 2:]
    assert (ratio == 2).all()
    assert (np.asarray(faster.beta)[0, 1], faster.beta[3, 0]) == (BASE.beta[0, 1], 2 * BASE.beta[3, 0])
    assert changed_topology(BASE, "lose east").names == ("west-0", "west-1")
    assert changed_topology(BASE, "remove east").names == ("west-0", "west-1")
    assert changed_topology(BASE, "remove west-1").names == ("east-0", "east-1", "west-0")


def test_no_link_gets_faster_than_a_cap_of_its_devices():
    first, second, *others = BASE.devices
    capped = replace(first, uplink=BytesPerSecond(1.5 * BASE.beta[0, 2]), downlink=BytesPerSecond(1.2 * BASE.beta[2, 0]))
    faster = changed_topology(BASE.with_devices([capped, second, *others]), "double east west")
    assert (faster.beta[0, 2], faster.beta[2, 0]) == (capped.uplink, capped.downlink)
    assert (faster.beta[1, 2], faster.beta[2, 1]) == (2 * BASE.beta[1, 2], 2 * BASE.beta[2, 1])
    slow = replace(capped, uplink=BytesPerSecond(BASE.beta[0, 2] / 2))
    same = changed_topology(BASE.with_devices([slow, second, *others]), "double east west")
    assert same.beta[0, 2] == BASE.beta[0, 2], "what is there is not taken away"
    laptops = Topology.preset("two-laptops")
    few = laptops.with_devices([replace(device, uplink=BytesPerSecond(1e6)) for device in laptops.devices])
    grown = changed_topology(few, "add 2 like laptop-fast")
    assert {grown.beta[i, j] for i in (0, 2, 3) for j in (0, 2, 3) if i != j} == {1e6}


def test_a_line_that_links_share_is_doubled_with_the_links_that_it_binds():
    home = Topology.preset("home-lab")
    pc, cloud = home.index("pc"), home.index("cloud-0")
    wider = changed_topology(home, "double pc")
    assert (wider.devices[pc].uplink, wider.devices[pc].downlink) == (2 * home.devices[pc].uplink, 2 * home.devices[pc].downlink)
    assert wider.beta[pc, cloud] == 2 * home.beta[pc, cloud]
    assert wider.beta[cloud, pc] == 2 * home.beta[cloud, pc]
    others = np.ones(home.beta.shape, dtype=bool)
    others[pc, :] = others[:, pc] = False
    assert np.array_equal(wider.beta[others], home.beta[others])
    assert wider.beta[pc, pc] == home.beta[pc, pc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("double east-0", r"'east-0' is no device with an up- or down-link of its own.*write \"double A B\""),
        ("double east", r"'east' is no device with an up- or down-link of its own"),
        ("shrink all", r"--what-if 'shrink all' is not understood; write \"add 2 like NAME\""),
        ("double east mars", "'mars' is no device, no group of devices and no region; known are east, west, east-0"),
        ("add 2 like mars", "has no device 'mars'"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        changed_topology(BASE, change)
    with pytest.raises(InputError, match="leaves no device; remove less"):
        changed_topology(Topology.preset("homogeneous-2"), "remove site")


def test_plan_of_the_interface_is_judged_by_simulation():
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (4, 8))
    for i in range(4):
        value = builder.add(f"fc{i}", "Linear", value, in_features=8, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 8)))
    found = plan(builder.build(), BASE, job=JobSpec(micro_batch_sizes=(4, 4)))
    assert found.planner == "auto"


GROUP = Topology.from_text(
    """
[default]
latency = "10 ms"
bandwidth = "100 Mbit/s"

[[device]]
name = "a100"
count = 2
memory = "40 GB"
speed = "100 TFLOP/s"
region = "cloud"

[[device]]
name = "pc"
memory = "8 GB"
speed = "5 TFLOP/s"
region = "home"
""",
    "group",
)


def test_a_group_of_devices_has_a_name():
    assert changed_topology(GROUP, "add 2 like a100").names == ("a100-0", "a100-1", "pc", "a100-new-0", "a100-new-1")
    assert changed_topology(GROUP, "lose a100").names == ("pc",)
    faster = changed_topology(GROUP, "double a100 pc")
    assert faster.beta[0, 2] == 2 * GROUP.beta[0, 2]
    assert faster.beta[2, 1] == 2 * GROUP.beta[2, 1]
    with pytest.raises(InputError, match="'a10' is no device, no group of devices and no region; known are cloud, home, a100-0"):
        changed_topology(GROUP, "lose a10")
