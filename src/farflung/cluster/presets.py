"""Named topologies: small ones for demos and tests, those of published experiments, generated ones with stated seed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from farflung.cluster import published_networks
from farflung.cluster.device import Device
from farflung.cluster.tables import TopologyTables
from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["get_preset", "preset_names"]

_NUMBERED = re.compile(r"(homogeneous|regions)-(\d{1,5})")


def preset_names() -> tuple[str, ...]:
    """The names that ``Topology.preset`` takes (``N`` stands for a number)."""
    return (*sorted(_FIXED), "homogeneous-N", "regions-N")


def get_preset(name: str) -> TopologyTables:
    """The topology called ``name``.

    Raises:
        InputError: nothing has that name; the text lists the known ones.
    """
    if name in _FIXED:
        return _FIXED[name]()
    match = _NUMBERED.fullmatch(name)
    if match is not None and 1 <= int(match[2]) <= 20_000:
        return (_homogeneous if match[1] == "homogeneous" else _regions)(int(match[2]))
    raise InputError(f"unknown topology preset {name!r}: {known_names(name, preset_names())} (N from 1 to 20000)")


def _two_regions() -> TopologyTables:
    """Four devices in two regions: 8 Mbit/s and 20 ms across, 1 Gbit/s and 1 ms inside (the demo's network)."""
    devices = [
        Device(name=f"{region}-{i}", memory=Bytes(2e9), speed=FlopsPerSecond(20e9), region=region)
        for region in ("east", "west")
        for i in range(2)
    ]
    slow, fast = BytesPerSecond.parse("8 Mbit/s"), BytesPerSecond.parse("1 Gbit/s")
    alpha, beta = ((1e-3, 20e-3), (20e-3, 1e-3)), ((fast, slow), (slow, fast))
    return TopologyTables(devices=devices, group=(0, 0, 1, 1), alpha=alpha, beta=beta, name="local4-two-regions")


def _home_lab() -> TopologyTables:
    """A PC behind 20 Mbit/s up and 100 Mbit/s down, 15 ms from two cloud machines with 1 Gbit/s and 0.5 ms between them."""
    up, down, inside = (BytesPerSecond.parse(text) for text in ("20 Mbit/s", "100 Mbit/s", "1 Gbit/s"))
    pc = Device(
        name="pc",
        memory=Bytes(10e9),
        speed=FlopsPerSecond(8e12),
        speed_factor=0.5,
        region="home",
        kind="cuda",
        disk=Bytes(200e9),
        uplink=up,
        downlink=down,
    )
    cloud = [
        Device(
            name=f"cloud-{i}",
            memory=Bytes(24e9),
            speed=FlopsPerSecond(30e12),
            speed_factor=0.5,
            region="cloud",
            kind="cuda",
            disk=Bytes(100e9),
        )
        for i in range(2)
    ]
    alpha, beta = ((0.0, 15e-3), (15e-3, 0.5e-3)), ((inside, up), (down, inside))
    return TopologyTables(devices=[pc, *cloud], group=(0, 1, 1), alpha=alpha, beta=beta, name="home-lab")


def _two_laptops() -> TopologyTables:
    """Two unequal laptops behind home connections."""
    devices = (
        Device(name="laptop-fast", memory=Bytes(16e9), speed=FlopsPerSecond(400e9), speed_factor=0.5, region="here"),
        Device(name="laptop-slow", memory=Bytes(8e9), speed=FlopsPerSecond(150e9), speed_factor=0.5, region="there"),
    )
    alpha = np.full((2, 2), Seconds.parse("15 ms"))
    beta = np.full((2, 2), BytesPerSecond.parse("50 Mbit/s"))
    return TopologyTables(devices=devices, alpha=alpha, beta=beta, name="two-laptops")


def _homogeneous(count: int) -> TopologyTables:
    """``count`` equal devices in one region: 16 GB, 1 TFLOP/s, 1 ms, 1 Gbit/s."""
    devices = tuple(
        Device(name=f"device-{i}", memory=Bytes(16e9), speed=FlopsPerSecond(1e12), region="site") for i in range(count)
    )
    return TopologyTables(devices=devices, group=[0] * count, alpha=[[1e-3]], beta=[[125e6]], name=f"homogeneous-{count}")


def _regions(count: int) -> TopologyTables:
    """``count`` accelerators in regions of eight, generated with seed 64.

    Regions lie on a circle around the earth. Inside a region: 1 ms, 10 Gbit/s. Across: 5 ms plus up to 120 ms with
    the distance, and 2 Gbit/s next door down to 0.3 Gbit/s at the antipode, times a factor from 0.8 to 1.2. Three kinds of
    devices follow the pattern 80 GB / 312 TFLOP/s, 48 GB / 150 TFLOP/s, 24 GB / 83 TFLOP/s by region; half of the peak.
    """
    random = np.random.default_rng(64)
    kinds = ((80e9, 312e12), (48e9, 150e12), (24e9, 83e12))
    region = np.arange(count) // 8
    total = int(region[-1]) + 1
    place = random.permutation(total) / total
    gap = np.abs(place[:, None] - place[None, :])
    gap = 2 * np.minimum(gap, 1 - gap)
    factor = random.uniform(0.8, 1.2, (total, total))
    factor = (factor + factor.T) / 2
    alpha = 5e-3 + 0.120 * gap
    beta = 125e6 * (2.0 * (0.3 / 2.0) ** gap) * factor
    np.fill_diagonal(alpha, 1e-3)
    np.fill_diagonal(beta, 1.25e9)
    devices = tuple(
        Device(
            name=f"r{region[i]}-{i % 8}",
            memory=Bytes(kinds[region[i] % 3][0]),
            speed=FlopsPerSecond(kinds[region[i] % 3][1]),
            speed_factor=0.5,
            region=f"region-{region[i]}",
            kind="cuda",
        )
        for i in range(count)
    )
    return TopologyTables(devices=devices, group=region, alpha=alpha, beta=beta, name=f"regions-{count}")


_FIXED: dict[str, Callable[[], TopologyTables]] = {
    "local4-two-regions": _two_regions,
    "two-laptops": _two_laptops,
    "home-lab": _home_lab,
    "dtfm-case1": published_networks.dtfm_case1,
    "dtfm-case2": published_networks.dtfm_case2,
    "dtfm-case3": published_networks.dtfm_case3,
    "dtfm-case4": published_networks.dtfm_case4,
    "dtfm-case5": published_networks.dtfm_case5,
    "fluidstack": published_networks.fluidstack,
    "fusionllm-testbed1": partial(published_networks.fusionllm_testbed, 1),
    "fusionllm-testbed2": partial(published_networks.fusionllm_testbed, 2),
    "dreamddp-cluster1": partial(published_networks.dreamddp_cluster, 1),
    "dreamddp-cluster2": partial(published_networks.dreamddp_cluster, 2),
    "hybridps-case1": partial(published_networks.hybridps_case, 1),
    "hybridps-case2": partial(published_networks.hybridps_case, 2),
    "hybridps-case3": partial(published_networks.hybridps_case, 3),
    "hybridps-case4": partial(published_networks.hybridps_case, 4),
}
