"""Topologies as JSON: version 1 has a row for each device, version 2 (more than 2,048 devices) a row for each group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from farflung.cluster.device import Device
from farflung.cluster.tables import TopologyFields, TopologyTables
from farflung.errors import InputError
from farflung.ids import pair_of
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["device_entry", "device_of_entry", "read_tables", "to_json"]


def to_json(topology: TopologyFields) -> str:
    """The document; an infinite beta is written as 0."""
    body: dict[str, Any] = {"version": 1, "name": topology.name, "devices": [device_entry(d) for d in topology.devices]}
    alpha, beta = topology.alpha, topology.beta
    if topology.in_blocks:
        blocks = topology.blocks
        alpha, beta = blocks.alpha, blocks.beta
        body |= {"version": 2, "group": blocks.group.tolist()}
    if topology.via:
        body["via"] = [[*pair, list(relays)] for pair, relays in sorted(topology.via.items())]
    body |= {"alpha": alpha.tolist(), "beta": np.where(np.isinf(beta), 0.0, beta).tolist()}
    return json.dumps(body, separators=(",", ":"))


def read_tables(text: str) -> TopologyTables:
    """Read what ``to_json`` wrote.

    Raises:
        InputError: the text is not such a document.
    """
    try:
        body: dict[str, Any] = json.loads(text)
        devices = tuple(device_of_entry(entry) for entry in body["devices"])
        alpha = np.array(body["alpha"], dtype=np.float64)
        beta = np.array(body["beta"], dtype=np.float64)
        name = str(body["name"])
        version = body["version"]
        group = np.array(body["group"], dtype=np.int64) if version == 2 else None
        via = {pair_of(str(a), str(b)): tuple(str(relay) for relay in relays) for a, b, relays in body.get("via", ())}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"not a topology in JSON ({type(error).__name__}: {error}); write it with Topology.to_json") from None
    if version not in (1, 2):
        raise InputError(
            f"topology version {version!r} is not known, this farflung reads 1 and 2; write it again with this version"
        )
    beta[beta == 0] = np.inf
    return TopologyTables(devices=devices, group=group, alpha=alpha, beta=beta, name=name, via=via)


def device_entry(device: Device) -> dict[str, Any]:
    """Return ``device`` as it is in a document."""
    entry = {
        "name": device.name,
        "memory": float(device.memory),
        "speed": float(device.speed),
        "speed_factor": device.speed_factor,
        "overhead": float(device.overhead),
        "region": device.region,
        "kind": device.kind,
        "disk": None if device.disk is None else float(device.disk),
    }
    usual: dict[str, Any] = {"reliable": True, "uplink": None, "downlink": None, "nat": "", "mtbf": None, "convolution": 1.0}
    usual |= {"host": "", "host_capacity": float("inf")}
    usual |= {"engine": "", "precisions": (), "ranks": 1}
    rates = {key: getattr(device, key) for key in ("offload", "offload_rate", "rank_rate")}
    entry |= {key: float(value) for key, value in rates.items() if value is not None}
    entry |= {"rank_latency": float(device.rank_latency)} if device.rank_latency else {}
    lacks = {"lacks": sorted(device.lacks)} if device.lacks else {}
    return entry | lacks | {key: getattr(device, key) for key, value in usual.items() if getattr(device, key) != value}


def device_of_entry(entry: Mapping[str, Any]) -> Device:
    """Read what ``device_entry`` returned."""
    disk = entry["disk"]
    return Device(
        name=str(entry["name"]),
        memory=Bytes.parse(entry["memory"]),
        speed=FlopsPerSecond.parse(entry["speed"]),
        speed_factor=float(entry["speed_factor"]),
        overhead=Seconds(float(entry.get("overhead", 0.0))),
        convolution=float(entry.get("convolution", 1.0)),
        region=str(entry["region"]),
        kind=entry["kind"],
        disk=None if disk is None else Bytes.parse(disk),
        reliable=bool(entry.get("reliable", True)),
        uplink=BytesPerSecond.parse(entry["uplink"]) if "uplink" in entry else None,
        downlink=BytesPerSecond.parse(entry["downlink"]) if "downlink" in entry else None,
        nat=str(entry.get("nat", "")),
        mtbf=Seconds.parse(entry["mtbf"]) if "mtbf" in entry else None,
        host=str(entry.get("host", "")),
        host_capacity=float(entry.get("host_capacity", "inf")),
        engine=str(entry.get("engine", "")),
        lacks=frozenset(map(str, entry.get("lacks", ()))),
        precisions=tuple(map(str, entry.get("precisions", ()))),
        ranks=int(entry.get("ranks", 1)),
        rank_latency=Seconds(float(entry.get("rank_latency", 0.0))),
        rank_rate=BytesPerSecond.parse(entry["rank_rate"]) if "rank_rate" in entry else None,
        offload=Bytes.parse(entry["offload"]) if "offload" in entry else None,
        offload_rate=BytesPerSecond.parse(entry["offload_rate"]) if "offload_rate" in entry else None,
    )
