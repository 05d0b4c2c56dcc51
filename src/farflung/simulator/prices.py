"""What a step costs: energy and money from a table of prices, read from TOML.

::

    currency = "USD"
    energy_price = 0.25            # per kWh

    [default]                      # devices that no [[device]] names
    busy_watts = 60
    idle_watts = 15
    hour = 0.0                     # rent per hour

    [[device]]
    match = "gpu-*"                # names of devices, with * and ?
    busy_watts = 350
    idle_watts = 60
    hour = 1.2

    [[traffic]]
    from = "eu"                    # region, or * for any other region
    to = "us"
    gigabyte = 0.09                # per 10^9 bytes sent; what names most counts, inside a region what names it twice
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.job.traffic import gigabyte_price

__all__ = ["Bill", "DevicePrice", "PriceTable", "TrafficPrice"]

_DEVICE = ("busy_watts", "idle_watts", "hour")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrice:
    """Watts while it computes and while it waits; rent per hour."""

    match: str = "*"
    busy_watts: float = 0.0
    idle_watts: float = 0.0
    hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPrice:
    """Price of 10^9 bytes from one region to another (``*``: any other), see ``farflung.job.traffic``."""

    source: str = "*"
    target: str = "*"
    gigabyte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Joules, and money in ``currency``: rent of the devices, their energy, traffic."""

    joules: float
    rent: float
    energy: float
    traffic: float
    currency: str

    @property
    def total(self) -> float:
        """Rent, energy and traffic together."""
        return self.rent + self.energy + self.traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices of devices, of which the first that matches counts, and of traffic between regions."""

    devices: tuple[DevicePrice, ...] = ()
    traffic: tuple[TrafficPrice, ...] = ()
    energy_price: float = 0.0
    currency: str = "USD"

    def device(self, name: str) -> DevicePrice:
        """The price of the device called ``name``."""
        return next((price for price in self.devices if fnmatchcase(name, price.match)), DevicePrice())

    def gigabyte(self, source: str, target: str) -> float:
        """The price of 10^9 bytes from one region to another, by the rule that ``limits.prices`` of a job has, too."""
        return gigabyte_price(self.traffic, source, target)

    def check_regions(self, topology: Topology) -> None:
        """Check that the prices of traffic name regions of ``topology``.

        Raises:
            InputError: one names another region.
        """
        for i, price in enumerate(self.traffic):
            for key, region in (("from", price.source), ("to", price.target)):
                if region != "*" and region not in topology.regions:
                    known = ", ".join([*filter(None, topology.regions), "*"])
                    raise InputError(
                        f"traffic[{i}].{key}: topology {topology.name!r} has no region {region!r}; known are {known}"
                    )

    def bill(self, seconds: float, busy: Mapping[str, float], sent: Mapping[tuple[str, str], float]) -> Bill:
        """What ``seconds`` cost. ``busy``: device -> computing seconds. ``sent``: (region, region) -> bytes."""
        joules = rent = 0.0
        for name, working in busy.items():
            price = self.device(name)
            joules += working * price.busy_watts + max(0.0, seconds - working) * price.idle_watts
            rent += price.hour * seconds / 3600
        traffic = sum(self.gigabyte(*pair) * size / 1e9 for pair, size in sent.items())
        energy = joules / 3.6e6 * self.energy_price
        return Bill(joules=joules, rent=rent, energy=energy, traffic=traffic, currency=self.currency)

    @classmethod
    def from_toml(cls, path: str | Path) -> PriceTable:
        """Read a price file.

        Raises:
            InputError: it can't be read; the text names file, key and value.
        """
        try:
            body = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read the price file {path}: {reason}; give the path of a TOML file") from None
        return _table(body, str(path))


def _table(body: Mapping[str, Any], source: str) -> PriceTable:
    _known(body, {"currency", "energy_price", "default", "device", "traffic"}, source)
    devices = [_device(entry, f"{source}: device[{i}]", {"match"}) for i, entry in enumerate(_list(body, "device", source))]
    if "default" in body:
        devices.append(_device(body["default"], f"{source}: default", set()))
    traffic = []
    for i, entry in enumerate(_list(body, "traffic", source)):
        where = f"{source}: traffic[{i}]"
        table = _known(entry, {"from", "to", "gigabyte"}, where)
        price = _number(table, "gigabyte", where)
        traffic.append(TrafficPrice(source=str(table.get("from", "*")), target=str(table.get("to", "*")), gigabyte=price))
    return PriceTable(
        devices=tuple(devices),
        traffic=tuple(traffic),
        energy_price=_number(body, "energy_price", source),
        currency=str(body.get("currency", "USD")),
    )


def _device(entry: object, where: str, more: set[str]) -> DevicePrice:
    table = _known(entry, {*_DEVICE, *more}, where)
    return DevicePrice(match=str(table.get("match", "*")), **{key: _number(table, key, where) for key in _DEVICE})


def _list(body: Mapping[str, Any], key: str, source: str) -> list[object]:
    entries = body.get(key, [])
    if not isinstance(entries, list):
        raise InputError(f"{source}: {key} must be a list of tables, got {entries!r:.80}; write each as [[{key}]]")
    return entries


def _known(entry: object, keys: set[str], where: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict) or not set(entry) <= keys:
        unknown = isinstance(entry, dict) and ", ".join(sorted(set(entry) - keys))
        wrong = f"unknown {unknown}" if unknown else f"must be a table, got {entry!r:.80}"
        raise InputError(f"{where}: {wrong}; known are {', '.join(sorted(keys))}")
    return entry


def _number(table: Mapping[str, Any], key: str, where: str) -> float:
    value = table.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{where}: {key} must be a number from 0 on, got {value!r}")
    return float(value)
