"""Topology files: TOML that people write.

::

    name = "home and office"

    [default]                       # links between regions that no [[link]] names; without [inside] also those of devices
                                    # without a region
    latency = "20 ms"
    bandwidth = "8 Mbit/s"

    [inside]                        # links inside one region (default: 1 ms, 1 Gbit/s)
    latency = "1 ms"
    bandwidth = "1 Gbit/s"

    [[device]]
    name = "laptop"
    memory = "8 GB"
    speed = "100 GFLOP/s"           # peak
    speed_factor = 0.6              # share of the peak that training reaches (default 1)
    overhead = "20 us"              # what each operator costs beside its FLOPs (default 0)
    convolution = 1.3               # how many times as fast convolutions run as other operators, by FLOPs (default 1)
    region = "home"
    kind = "cpu"                    # or "cuda", "mps", "xpu"
    reliable = true                 # false: may leave without warning
    mtbf = "6 h"                    # mean time between its failures (default: not known to fail)
    offload = "100 GB"              # disk space for optimizer states that do not fit into memory (default: none), and
    offload_rate = "1 GB/s"         # what an update reads and writes there
    ranks = 8                       # a site: accelerators, over which memory and speed are sums (default 1: no site), and
    rank_rate = "100 GB/s"          # bytes per second that they exchange, in which each sends its part to all others
    rank_latency = "50 us"          # what such an exchange takes beside its bytes (default 0)
    count = 1                       # more than 1: laptop-0, laptop-1, ...
    uplink = "20 Mbit/s"            # all that it sends together (default: no limit), and
    downlink = "100 Mbit/s"         # all that it receives; no bandwidth of a pair is more than these
    host = "pc1"                    # devices with the same host share its cores (default: it shares with nobody), and
    host_capacity = 2.0             # that many of them reach their full speed at the same time
    nat = true                      # it can dial out and not be dialled; a name: devices behind the same NAT reach each other

    [[link]]
    between = ["home", "office"]    # two regions or two devices; or from = .., to = .. for one direction
    latency = "35 ms"
    bandwidth = "100 Mbit/s"
    jitter = "2 ms"                 # emulation only: up to so much later than the latency says (default 0),
    loss = "0.1 %"                  # share of packets that are lost (or 0.001; default 0),
    corrupt = 0.0                   # share of packets with a turned bit that no checksum tells (default 0),
    queue = "200 ms"                # what would wait longer for the bandwidth is dropped (default 200 ms)

    [[change]]                      # emulation only: what happens after so much time; see docs/emulation.md
    at = "30 s"
    between = ["home", "office"]
    bandwidth = "8 Mbit/s"

``jitter``, ``loss``, ``corrupt`` and ``queue`` may stand in ``[default]`` and ``[inside]``, too.

A link between devices beats a link between regions, which beats ``[inside]`` and ``[default]``; of two equals the later wins.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farflung.cluster.device import Device
from farflung.cluster.table_reader import LINK_KEYS, QUEUE, Names, TableReader
from farflung.cluster.tables import Matrix, TopologyFields, TopologyTables, link_caps
from farflung.cluster.timeline import Change, read_changes
from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Quantity, Seconds

__all__ = ["FileContents", "parse_topology", "read_contents", "read_text", "read_topology", "write_topology"]

_TOP = {"name", "default", "inside", "device", "link", "change"}
_CAPS = ("uplink", "downlink")
_LINK = {"between", "from", "to", *LINK_KEYS}
_DEFAULTS = {"latency": np.nan, "bandwidth": np.nan, "jitter": 0.0, "loss": 0.0, "corrupt": 0.0, "queue": QUEUE}
_MAX_BYTES = 64 << 20
_MAX_DEVICES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """What a file says. ``tables``: for each of ``LINK_KEYS`` a (k, k) table of the links between ``group``s of devices."""

    reader: TableReader
    body: Mapping[str, Any]
    name: str
    devices: Sequence[Device]
    group: Sequence[int]
    tables: Mapping[str, Matrix]

    @property
    def topology(self) -> TopologyTables:
        """What planners need."""
        beta = _capped(self.tables["bandwidth"], self.devices, self.group)
        return TopologyTables(devices=self.devices, group=self.group, alpha=self.tables["latency"], beta=beta, name=self.name)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The timeline."""
        names = Names(self.reader, [device.name for device in self.devices], [device.region for device in self.devices])
        entries = self.reader.tables(self.body, "change")
        return read_changes(self.reader, entries, names.find, [device.name for device in self.devices])


def read_topology(path: Path) -> TopologyTables:
    """Read a topology file; what only emulation needs is checked and left out.

    Raises:
        InputError: it is missing, too large, or wrong; the text names file, key, value and remedy.
    """
    return parse_topology(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a topology file.

    Raises:
        InputError: the file is missing, too large, or not UTF-8.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path}: a topology file may have {_MAX_BYTES} bytes at most, this has {path.stat().st_size}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the topology file {path}: {reason}; give the path of a TOML file") from None


def parse_topology(text: str, source: str) -> TopologyTables:
    """Read the TOML text of a topology; ``source`` is what errors call it."""
    contents = read_contents(text, source)
    _ = contents.changes
    return contents.topology


def read_contents(text: str, source: str) -> FileContents:
    """Read the TOML text of a topology; ``source`` is what errors call it.

    Raises:
        InputError: it is wrong; the text names key, value and remedy.
    """
    reader = TableReader(source)
    try:
        body = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not TOML: {error}") from None
    reader.known("", body, _TOP)
    devices: list[Device] = []
    for number, entry in enumerate(reader.tables(body, "device")):
        devices += _devices(reader, number, entry)
    reader.check()
    if not devices:
        raise reader.fail("device", "the file names no device; add at least one [[device]]")
    if len(devices) > _MAX_DEVICES:
        raise reader.fail("device", f"at most {_MAX_DEVICES} devices can be described, got {len(devices)}")
    group, tables = _tables(reader, body, devices)
    name = reader.text("", body, "name", Path(source).stem)
    return FileContents(reader=reader, body=body, name=name, devices=devices, group=group, tables=tables)


def _capped(bandwidth: Matrix, devices: Sequence[Device], group: Sequence[int]) -> Matrix:
    """No pair is faster than its sender's uplink and its receiver's downlink, which are alike in a group."""
    first = [devices[group.index(number)] for number in range(len(bandwidth))]
    capped: Matrix = np.minimum(bandwidth, link_caps(first))
    return capped


def _devices(reader: TableReader, number: int, entry: object) -> list[Device]:
    """The devices of one entry; what is wrong with it is gathered, each key by itself."""
    where = f"device[{number}]"
    if not isinstance(entry, dict):
        with reader.gathering():
            reader.known(where, entry, _DEVICE)
        return []
    for key in entry:
        with reader.gathering():
            reader.known(where, {key: entry[key]}, _DEVICE)
    found: dict[str, Any] = {}
    for key, read in _READERS.items():
        with reader.gathering():
            found |= {key: read(reader, where, entry, key)} if key in entry or key in _NEEDED else {}
    count = 1
    with reader.gathering():
        count = _count(reader, where, entry.get("count", 1))
    devices: list[Device] = []
    if not set(_NEEDED) <= set(found):
        return devices
    with reader.gathering():
        names = [f"{found['name']}-{i}" if count > 1 else found["name"] for i in range(count)]
        nats = [reader.nat(where, entry.get("nat", False), own) for own in names]
        devices += [_device(reader, where, {**found, "name": own, "nat": nat}) for own, nat in zip(names, nats, strict=True)]
    return devices


def _device(reader: TableReader, where: str, fields: Mapping[str, Any]) -> Device:
    try:
        return Device(**fields)
    except InputError as error:
        raise reader.fail(where, str(error)) from None


_Read = Callable[[TableReader, str, Mapping[str, Any], str], object]


def _quantity(kind: type[Quantity]) -> _Read:
    return lambda reader, where, table, key: reader.quantity(where, table, key, kind)


def _plain(reader: TableReader, where: str, table: Mapping[str, Any], key: str) -> str:
    return reader.text(where, table, key, None)


def _factor(reader: TableReader, where: str, table: Mapping[str, Any], key: str) -> float:
    found = table[key]
    if isinstance(found, bool) or not isinstance(found, (int, float)) or (isinstance(found, int) and abs(found) > 1 << 53):
        raise reader.fail(f"{where}.{key}", f"must be a number, got {found!r:.60}; write e.g. 0.5")
    return float(found)


def _truth(reader: TableReader, where: str, table: Mapping[str, Any], key: str) -> bool:
    if not isinstance(table[key], bool):
        raise reader.fail(f"{where}.{key}", f"must be true or false, got {table[key]!r}")
    return bool(table[key])


def _ranks(reader: TableReader, where: str, table: Mapping[str, Any], key: str) -> int:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise reader.fail(f"{where}.{key}", f"must be a whole number, got {value!r}; write e.g. 8")
    return value


def _count(reader: TableReader, where: str, count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_DEVICES:
        raise reader.fail(f"{where}.count", f"must be a whole number from 1 to {_MAX_DEVICES}, got {count!r}")
    return count


_NEEDED = ("name", "memory", "speed")
#: How each key of a device is read, beside ``count`` and ``nat``.
_READERS: Mapping[str, _Read] = {
    "name": _plain,
    "memory": _quantity(Bytes),
    "speed": _quantity(FlopsPerSecond),
    "speed_factor": _factor,
    "overhead": _quantity(Seconds),
    "convolution": _factor,
    "region": _plain,
    "kind": _plain,
    "disk": _quantity(Bytes),
    "ranks": _ranks,
    "rank_rate": _quantity(BytesPerSecond),
    "rank_latency": _quantity(Seconds),
    "offload": _quantity(Bytes),
    "offload_rate": _quantity(BytesPerSecond),
    "reliable": _truth,
    "mtbf": _quantity(Seconds),
    "host": _plain,
    "host_capacity": _factor,
    **{key: _quantity(BytesPerSecond) for key in _CAPS},
}
_DEVICE = {*_READERS, "count", "nat"}


def _tables(reader: TableReader, body: Mapping[str, Any], devices: Sequence[Device]) -> tuple[list[int], dict[str, Matrix]]:
    """Group of each device and links between groups: a device that a [[link]] names is a group of its own; others are grouped
    by region and caps."""
    regions = {device.region for device in devices}
    names = {device.name for device in devices}
    entries = [way for i, entry in enumerate(reader.tables(body, "link")) for way in _link(reader, i, entry, regions, names)]
    alone = {end for entry in entries for end in entry[:2] if end in names}
    numbers: dict[tuple[str, str, float | None, float | None], int] = {}
    keys = [(d.region, d.name if d.name in alone else "", d.uplink, d.downlink) for d in devices]
    group = [numbers.setdefault(key, len(numbers)) for key in keys]
    region = np.array([key[0] for key in numbers])
    tables = {key: np.full((len(numbers),) * 2, default) for key, default in _DEFAULTS.items()}
    same = region[:, None] == region[None, :]
    if "default" in body and "inside" not in body:
        same &= region[:, None] != ""  # who names no region shares none
    inside: Mapping[str, Any] = body.get("inside", {"latency": "1 ms", "bandwidth": "1 Gbit/s"})
    for where, table, mask in (("default", body.get("default"), ~same), ("inside", inside, same)):
        if table is not None:
            for key, value in _described(reader, where, reader.known(where, table, set(LINK_KEYS))).items():
                tables[key][mask] = value
    members = {name: [i for i, key in enumerate(numbers) if key[0] == name] for name in regions}
    members |= {key[1]: [i] for i, key in enumerate(numbers) if key[1]}
    for source, target, values, _ in sorted(entries, key=lambda entry: entry[3]):
        for key, value in values.items():
            tables[key][np.ix_(members[source], members[target])] = value
    single = np.bincount(group) == 1
    tables["latency"][single, single], tables["bandwidth"][single, single] = 0.0, np.inf
    missing = np.argwhere(np.isnan(tables["latency"]))
    if len(missing):
        i, j = (group.index(int(x)) for x in missing[0])
        ends = f"from {devices[i].name!r} to {devices[j].name!r}"
        raise reader.fail("link", f"nothing describes the way {ends}; add [default] or a [[link]]")
    return group, tables


def _described(reader: TableReader, where: str, table: Mapping[str, Any]) -> dict[str, float]:
    """What a table says about links; latency and bandwidth must be there."""
    reader.quantity(where, table, "latency", Seconds)
    reader.quantity(where, table, "bandwidth", BytesPerSecond)
    return reader.link_values(where, table)


_Entry = tuple[str, str, dict[str, float], int]


def _link(reader: TableReader, number: int, entry: object, regions: set[str], names: set[str]) -> list[_Entry]:
    """(source, target, values, rank) per direction; rank puts links between regions before those of devices."""
    where = f"link[{number}]"
    table = reader.known(where, entry, _LINK)
    both = "between" in table
    ends = table["between"] if both else [table.get("from"), table.get("to")]
    if both == ("from" in table or "to" in table) or not isinstance(ends, list) or len(ends) != 2 or None in ends:
        raise reader.fail(where, f'must say between = ["a", "b"], or from and to, got {dict(table)!r}')
    for end in ends:
        if not isinstance(end, str) or not end or end not in names | regions:
            listed = ", ".join(sorted({*regions, *names} - {""})[:16])
            raise reader.fail(where, f"{end!r} is no device and no region; known are {listed}")
    source, target = ends
    values = _described(reader, where, table)
    rank = sum(end in names for end in ends)
    return [(source, target, values, rank), (target, source, values, rank)] if both else [(source, target, values, rank)]


def write_topology(topology: TopologyFields, digits: int | None = None) -> str:
    """TOML that reads back to an equal topology; a [[link]] per pair of regions where all links agree, else of devices.

    Quantities have units. ``digits``: round them to so many.
    """
    lines = [f"name = {_quoted(topology.name)}", ""]
    for device in topology.devices:
        lines += ["[[device]]", f"name = {_quoted(device.name)}", f"memory = {_written(device.memory, digits)}"]
        factor = float(device.speed_factor) if digits is None else float(f"{float(device.speed_factor):.{digits}g}")
        lines += [f"speed = {_written(device.speed, digits)}", f"speed_factor = {factor!r}"]
        lines += [f"overhead = {_written(device.overhead, digits)}"] if device.overhead else []
        lines += [f"convolution = {device.convolution!r}"] if device.convolution != 1.0 else []
        lines += [f"region = {_quoted(device.region)}"] if device.region else []
        lines += [f"kind = {_quoted(device.kind)}"]
        lines += [f"ranks = {device.ranks}"] if device.ranks > 1 else []
        lines += [f"rank_latency = {_written(device.rank_latency, digits)}"] if device.rank_latency else []
        for key in ("disk", "rank_rate", "offload", "offload_rate", "mtbf", *_CAPS):
            value = getattr(device, key)
            lines += [] if value is None else [f"{key} = {_written(value, digits)}"]
        lines += [f"nat = {_quoted(device.nat)}"] if device.nat else []
        lines += [f"host = {_quoted(device.host)}"] if device.host else []
        if device.host_capacity < np.inf:
            lines += [
                f"host_capacity = {device.host_capacity if digits is None else float(f'{device.host_capacity:.{digits}g}')!r}"
            ]
        lines += ([] if device.reliable else ["reliable = false"]) + [""]
    blocks = topology.blocks
    regions = list(topology.regions.items())
    for source, rows in regions:
        for target, columns in regions:
            values = {
                (float(blocks.alpha[g, h]), float(blocks.beta[g, h]))
                for g in set(blocks.group[list(rows)].tolist())
                for h in set(blocks.group[list(columns)].tolist())
                if g != h or blocks.sizes[g] > 1
            }
            if not values:
                continue
            if len(values) == 1 and source and target and not {source, target} & set(topology.names):
                lines += _link_lines(source, target, *values.pop(), digits)
            else:
                for i, j in ((i, j) for i in rows for j in columns if i != j):
                    ends = (topology.names[i], topology.names[j])
                    lines += _link_lines(*ends, float(topology.alpha[i, j]), float(topology.beta[i, j]), digits)
    return "\n".join(lines)


def _link_lines(source: str, target: str, latency: float, bandwidth: float, digits: int | None) -> list[str]:
    ends = f"from = {_quoted(source)}\nto = {_quoted(target)}"
    figures = f"latency = {_written(Seconds(latency), digits)}", f"bandwidth = {_written(BytesPerSecond(bandwidth), digits)}"
    return ["[[link]]", ends, *figures, ""]


def _written(value: Quantity, digits: int | None) -> str:
    if not math.isfinite(value):
        return repr(float(value))
    return _quoted(value.written(digits))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
