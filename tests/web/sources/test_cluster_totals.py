"""What workers of one machine share counts once."""

from __future__ import annotations

from typing import Any

import pytest

from farflung.cluster import Device
from farflung.cluster.document import device_entry
from farflung.units import Bytes, FlopsPerSecond
from farflung.web.sources.cluster_totals import cluster_totals


def member(
    name: str, memory: float = 15e9, host: str = "", capacity: float = 1.0, installed: float | None = 23e9
) -> dict[str, Any]:
    device = Device(name=name, memory=Bytes(memory), speed=FlopsPerSecond(4e9))
    if host:
        device = Device(name=name, memory=Bytes(memory), speed=FlopsPerSecond(4e9), host=host, host_capacity=capacity)
    return {"name": name, "memory": memory, "speed": 2e9, "installed": installed, "device": device_entry(device)}


def test_machines_of_their_own_add_up() -> None:
    assert cluster_totals([member("a"), member("b")]) == (30e9, 4e9)


def test_workers_of_one_machine_have_its_memory_and_its_capacity() -> None:
    shared = [member(name, host="host of a", capacity=1.5) for name in "abc"]
    assert cluster_totals(shared) == (23e9, pytest.approx(3e9))
    assert cluster_totals([*shared, member("d")]) == (38e9, pytest.approx(5e9))


def test_small_offers_of_one_machine_add_up() -> None:
    assert cluster_totals([member(name, memory=4e9, host="host of a") for name in "ab"])[0] == 8e9


def test_without_the_installed_memory_offers_add_up() -> None:
    assert cluster_totals([member(name, host="host of a", installed=None) for name in "ab"])[0] == 30e9
