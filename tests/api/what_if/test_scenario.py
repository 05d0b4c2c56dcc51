"""Scenarios: changed links, machines and settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.api.what_if.scenario import Choices, LinkChange, MachineChange, Scenario, link_groups
from farflung.api.what_if.sources import preset_job
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond, Seconds

BASE = Topology.preset("local4-two-regions")
HOME = Topology.preset("home-lab")
JOB = preset_job("gpt-small")


def changed(topology: Topology = BASE, **changes: object) -> Topology:
    return Scenario(job=JOB, topology=topology, **changes).changed()


def test_factors_change_links_between_regions_only() -> None:
    found = changed(bandwidth=4.0, latency=0.5)
    assert (found.beta[0, 2], found.alpha[0, 2]) == (4 * BASE.beta[0, 2], BASE.alpha[0, 2] / 2)
    assert (found.beta[0, 1], found.alpha[0, 1]) == (BASE.beta[0, 1], BASE.alpha[0, 1])
    alone = Topology.preset("homogeneous-3")
    assert changed(alone, bandwidth=2.0).beta[0, 1] == 2 * alone.beta[0, 1], "with one region, all links change"
    pc = changed(HOME, bandwidth=2.0)
    assert pc.devices[0].uplink == 2 * HOME.devices[0].uplink
    assert pc.beta[0, 1] == 2 * HOME.beta[0, 1]


@given(bandwidth=st.floats(0.01, 100), latency=st.floats(0, 100))
def test_no_link_exceeds_the_caps_of_its_devices(bandwidth: float, latency: float) -> None:
    found = changed(HOME, bandwidth=bandwidth, latency=latency)
    pc = found.devices[0]
    assert (np.asarray(found.beta)[0, 1:] <= pc.uplink).all()
    assert (np.asarray(found.beta)[1:, 0] <= pc.downlink).all()


def test_a_link_gets_figures_and_raises_caps() -> None:
    change = LinkChange(here="home", there="cloud", latency=Seconds(0.1), bandwidth=BytesPerSecond(50e6))
    found = changed(HOME, links=(change,))
    assert (found.beta[0, 1], found.beta[2, 0]) == (50e6, 50e6)
    assert found.alpha[1, 0] == 0.1
    assert (found.devices[0].uplink, found.devices[0].downlink) == (50e6, 50e6)
    assert found.beta[1, 2] == HOME.beta[1, 2]
    with pytest.raises(InputError, match="no region and no machine is called 'moon'; known are home, cloud, pc"):
        changed(HOME, links=(LinkChange(here="moon", there="home"),))
    with pytest.raises(InputError, match="the bandwidth between home and cloud must be more than 0"):
        changed(HOME, links=(LinkChange(here="home", there="cloud", bandwidth=BytesPerSecond(0)),))


def test_machines_come_go_and_change() -> None:
    found = changed(
        machines=(
            MachineChange(name="east-0", count=3, speed=2.0, memory=Bytes(8e9)),
            MachineChange(name="west-1", count=0),
        )
    )
    assert found.names == ("east-0", "east-1", "west-0", "east-0-new-0", "east-0-new-1")
    assert [device.speed for device in found.devices] == [40e9, 20e9, 20e9, 40e9, 40e9]
    assert found.devices[4].memory == 8e9
    everything = tuple(MachineChange(name=name, count=0) for name in BASE.names)
    with pytest.raises(InputError, match="the scenario has no machine left; keep at least one"):
        changed(machines=everything)
    with pytest.raises(InputError, match="no machine is called 'x'; known are east-0"):
        changed(machines=(MachineChange(name="x"),))
    with pytest.raises(InputError, match="1003 machines: a scenario takes at most 256; use farflung plan"):
        changed(machines=(MachineChange(name="east-0", count=1000),))
    with pytest.raises(InputError, match="east-0: the number of machines must be from 0 on, and the speed more than 0"):
        changed(machines=(MachineChange(name="east-0", speed=0.0),))
    with pytest.raises(InputError, match=r"factors of links must be more than 0, got 0 \(bandwidth\)"):
        changed(bandwidth=0.0)


def test_groups_of_links_are_regions_or_single_machines() -> None:
    found = {(group.here, group.there): group for group in link_groups(BASE)}
    assert set(found) == {("east", "east"), ("east", "west"), ("west", "west")}
    assert found["east", "west"].bandwidth == BASE.beta[0, 2]
    assert found["east", "west"].latency == BASE.alpha[0, 2]
    assert len(link_groups(Topology.preset("homogeneous-4"))) == 6
    assert len(link_groups(Topology.preset("homogeneous-20"))) == 1
    for group in link_groups(BASE):  # what is shown can be set
        same = changed(links=(LinkChange(here=group.here, there=group.there, bandwidth=group.bandwidth, latency=group.latency),))
        assert np.array_equal(np.asarray(same.beta), np.asarray(BASE.beta))


def test_choices_change_the_job() -> None:
    assert Choices().job(JOB) == JOB
    found = Choices(planner="auto", codec="topk", ratio=10.0, replicas=2, strategy="diloco", micro_batches=6).job(JOB)
    assert (found.plan.planner, found.plan.replicas, found.codec.name, found.codec.ratio) == ("auto", 2, "topk", 10.0)
    assert found.sync.strategy == "diloco"
    assert found.micro_batch_sizes == (8,) * 6
    assert Choices(samples=3).job(JOB).micro_batch_sizes == (3,) * 4
    with pytest.raises(InputError, match="micro_batch_sizes"):
        Choices(samples=-1).job(JOB)
    with pytest.raises(InputError, match=r"settings: codec\.ratio"):
        Choices(ratio=0.0).job(JOB)


def test_prices_are_those_of_the_machine_that_was_copied() -> None:
    scenario = Scenario(
        job=JOB,
        topology=HOME,
        machines=(MachineChange(name="cloud-0", count=2, rent=1.5),),
        energy_price=0.3,
        traffic_price=0.09,
    )
    topology = scenario.changed()
    prices = scenario.prices(topology)
    assert [prices.device(name).hour for name in topology.names] == [0.0, 1.5, 0.0, 1.5]
    assert prices.device("pc").busy_watts == 300
    assert prices.gigabyte("home", "cloud") == 0.09
    assert prices.gigabyte("cloud", "cloud") == 0.0
    bill = prices.bill(3600.0, {"cloud-0": 3600.0, "pc": 1800.0}, {("home", "cloud"): 2e9})
    assert bill.total == pytest.approx(1.5 + 0.3 * (0.3 + 0.18) + 0.18)
