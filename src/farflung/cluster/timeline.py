"""``[[change]]`` tables of topology files: what happens to a network, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farflung.cluster.table_reader import LINK_KEYS, TableReader
from farflung.units import BytesPerSecond, Seconds

__all__ = ["Change", "read_changes"]

_KINDS = ("between", "from", "device", "partition", "heal", "reset")
_LINK = {"between", "from", "to", "up", *LINK_KEYS}
_NODE = {"device", "uplink", "downlink", "nat"}

#: The indices of the devices that a name of a device or region stands for.
Find = Callable[[str, object], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changes ``at`` seconds after the beginning of the timeline. One kind at a time; the others are empty.

    ``links``: (row, column) of links that get ``values`` (keys of ``reading.LINK_KEYS`` in base units, and ``up``).
    ``nodes``: devices that get ``values`` (``uplink``, ``downlink`` in bytes per second, 0 for no limit; ``nat``, a name or "").
    ``groups``: from now on only devices of the same group reach each other; a device of no group reaches nobody.
    ``heal``: everybody reaches everybody again, as far as links are up. ``reset``: packets under way and NAT flows are lost.
    """

    at: Seconds
    links: tuple[tuple[int, int], ...] = ()
    nodes: tuple[int, ...] = ()
    values: Mapping[str, float | bool | str] = field(default_factory=dict)
    groups: tuple[tuple[int, ...], ...] = ()
    heal: bool = False
    reset: bool = False


def read_changes(reader: TableReader, entries: Sequence[object], find: Find, names: Sequence[str]) -> tuple[Change, ...]:
    """Read the tables; ``names`` are the devices' names by index.

    Raises:
        InputError: one is wrong.
    """
    return tuple(_change(reader, f"change[{i}]", entry, find, names) for i, entry in enumerate(entries))


def _change(reader: TableReader, where: str, entry: object, find: Find, names: Sequence[str]) -> Change:
    table = reader.known(where, entry, {"at", *_KINDS, *_LINK, *_NODE})
    at = Seconds(reader.quantity(where, table, "at", Seconds))
    kinds = [kind for kind in _KINDS if kind in table]
    if len(kinds) != 1:
        raise reader.fail(where, f"must have exactly one of {', '.join(_KINDS)}, got {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    allowed = _LINK if kind in ("between", "from") else _NODE if kind == "device" else {kind}
    reader.known(where, table, {"at", *allowed})
    if kind in ("between", "from"):
        return _link_change(reader, where, table, find, at)
    if kind == "device":
        nodes = tuple(find(where, table["device"]))
        return Change(at=at, nodes=nodes, values=_node_values(reader, where, table, names[nodes[0]]))
    if kind == "partition":
        return Change(at=at, groups=_groups(reader, where, table["partition"], find))
    if table[kind] is not True:
        raise reader.fail(f"{where}.{kind}", f"must be true, got {table[kind]!r}; leave the table out otherwise")
    return Change(at=at, heal=kind == "heal", reset=kind == "reset")


def _link_change(reader: TableReader, where: str, table: Mapping[str, Any], find: Find, at: Seconds) -> Change:
    both = "between" in table
    ends = table["between"] if both else [table["from"], table.get("to")]
    if not isinstance(ends, list) or len(ends) != 2 or ("to" in table) == both:
        raise reader.fail(where, f'must say between = ["a", "b"], or from and to, got {dict(table)!r}')
    rows, columns = (find(where, end) for end in ends)
    forth = [(i, j) for i in rows for j in columns if i != j]
    pairs = dict.fromkeys([*forth, *((j, i) for i, j in forth)] if both else forth)
    values: dict[str, float | bool | str] = dict(reader.link_values(where, table))
    if "up" in table:
        if not isinstance(table["up"], bool):
            raise reader.fail(f"{where}.up", f"must be true or false, got {table['up']!r}")
        values["up"] = table["up"]
    if not values:
        raise reader.fail(where, f"says nothing to change; known are {', '.join([*LINK_KEYS, 'up'])}")
    return Change(at=at, links=tuple(pairs), values=values)


def _node_values(reader: TableReader, where: str, table: Mapping[str, Any], name: str) -> dict[str, float | bool | str]:
    values: dict[str, float | bool | str] = {}
    for key in ("uplink", "downlink"):
        if key in table:
            values[key] = float(reader.quantity(where, table, key, BytesPerSecond))
    if "nat" in table:
        values["nat"] = reader.nat(where, table["nat"], name)
    if not values:
        raise reader.fail(where, "says nothing to change; known are uplink, downlink, nat")
    return values


def _groups(reader: TableReader, where: str, value: object, find: Find) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        raise reader.fail(f"{where}.partition", f'must be groups of names, got {value!r}; write [["home"], ["office", "box"]]')
    groups = tuple(tuple(dict.fromkeys(i for name in group for i in find(where, name))) for group in value)
    members = [i for group in groups for i in group]
    if len(set(members)) != len(members):
        raise reader.fail(f"{where}.partition", f"a device can be in one group only, got {value!r}")
    return groups
