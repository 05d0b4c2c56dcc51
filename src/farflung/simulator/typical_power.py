"""Typical electric power by kind of device, for estimates where nobody has measured it.

The figures are round numbers for one machine: a desktop or laptop processor, a data-center accelerator, an Apple chip. They can
be wrong by a factor of three. A price file (``simulator.prices``) replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import escape

from farflung.cluster import Device
from farflung.simulator.prices import DevicePrice, PriceTable

__all__ = ["TYPICAL_WATTS", "typical_power", "with_typical_power"]

#: Kind of device -> watts while the device computes, and while it waits.
TYPICAL_WATTS: dict[str, tuple[float, float]] = {
    "cpu": (65.0, 20.0),
    "cuda": (300.0, 60.0),
    "mps": (40.0, 10.0),
    "xpu": (150.0, 30.0),
}


def typical_power(devices: Sequence[Device]) -> tuple[DevicePrice, ...]:
    """Return an entry of a price table for each device: typical watts, no rent."""
    return tuple(
        DevicePrice(match=escape(device.name), busy_watts=busy, idle_watts=idle)
        for device in devices
        for busy, idle in [TYPICAL_WATTS[device.kind]]
    )


def with_typical_power(table: PriceTable, devices: Sequence[Device]) -> PriceTable:
    """Return ``table`` with typical watts for the devices of which it says none; their rent stays."""
    entries = []
    for device, usual in zip(devices, typical_power(devices), strict=True):
        own = table.device(device.name)
        watts = own if own.busy_watts or own.idle_watts else usual
        entries.append(replace(usual, busy_watts=watts.busy_watts, idle_watts=watts.idle_watts, hour=own.hour))
    return replace(table, devices=tuple(entries))
