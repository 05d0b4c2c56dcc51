"""A topology as it could be: with further devices, a faster link, or without a region."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from farflung.cluster import Topology
from farflung.cluster.topology import link_caps
from farflung.errors import InputError

__all__ = ["WHAT_IF", "changed_topology", "with_copies"]

#: The changes that are understood, for help texts and errors.
WHAT_IF = (
    'Compare with a changed topology: "add 2 like NAME" (a device or group), '
    '"double A B" (bandwidth between devices, groups or regions), '
    '"double A" (uplink and downlink of a device), "lose NAME".'
)
_ADD = re.compile(r"add ([1-9]\d{0,3}) like (\S+)")
_DOUBLE = re.compile(r"double (\S+) (\S+)")
_LINE = re.compile(r"double (\S+)")
_REMOVE = re.compile(r"(?:lose|remove) (\S+)")
#: Between a device and its copy where it has no neighbour in its region: seconds, bytes per second.
_NEAR = (1e-3, 125e6)


def changed_topology(topology: Topology, change: str) -> Topology:
    """``topology`` after ``change`` (see ``WHAT_IF``).

    A copy of a device has its links; with the original and its other copies it is linked as this is with the nearest device of
    its region (1 ms and 1 Gbit/s where there is none). No link gets faster than its sender's uplink or its receiver's downlink.

    Raises:
        InputError: the change is not understood, names nothing known, or removes everything.
    """
    text = " ".join(change.split())
    if match := _ADD.fullmatch(text):
        return with_copies(topology, int(match[1]), match[2])
    if match := _DOUBLE.fullmatch(text):
        return _doubled(topology, _members(topology, match[1]), _members(topology, match[2]))
    if match := _LINE.fullmatch(text):
        return _lined(topology, match[1])
    if match := _REMOVE.fullmatch(text):
        gone = set(_members(topology, match[1]))
        left = [name for i, name in enumerate(topology.names) if i not in gone]
        if not left:
            raise InputError(f"--what-if {change!r} leaves no device; remove less")
        return topology.select(left)
    raise InputError(f"--what-if {change!r} is not understood; write {WHAT_IF.partition(': ')[2]}")


def _members(topology: Topology, name: str) -> list[int]:
    """The devices that a name stands for: one, or those of a region or a group."""
    if name in topology.names:
        return [topology.index(name)]
    if name in topology.regions:
        return list(topology.regions[name])
    if group := _group(topology, name):
        return group
    known = ", ".join([*filter(None, topology.regions), *topology.names][:16])
    raise InputError(f"--what-if: {name!r} is no device, no group of devices and no region; known are {known}")


def _group(topology: Topology, name: str) -> list[int]:
    """The devices of a ``[[device]]`` with ``count``: ``NAME-0``, ``NAME-1``, ..."""
    return [i for i, each in enumerate(topology.names) if re.fullmatch(rf"{re.escape(name)}-\d+", each)]


def _doubled(topology: Topology, here: list[int], there: list[int]) -> Topology:
    beta = np.array(topology.beta)
    grid = np.zeros(beta.shape, dtype=bool)
    grid[np.ix_(here, there)] = grid[np.ix_(there, here)] = True
    most = np.maximum(beta, link_caps(topology.devices))
    beta[grid] = np.minimum(2.0 * beta, most)[grid]
    return replace(topology, beta=beta)


def _lined(topology: Topology, name: str) -> Topology:
    """Twice the up- and down-link of a device; its links that these bound grow with them."""
    (index, *more) = _members(topology, name)
    device = topology.devices[index]
    if more or name not in topology.names or (device.uplink is None and device.downlink is None):
        raise InputError(
            f"--what-if: {name!r} is no device with an up- or down-link of its own, which all its links share; "
            'for links between two devices or regions write "double A B"'
        )
    wider = replace(
        device,
        uplink=None if device.uplink is None else type(device.uplink)(2 * device.uplink),
        downlink=None if device.downlink is None else type(device.downlink)(2 * device.downlink),
    )
    devices = [wider if one is device else one for one in topology.devices]
    beta, before = np.array(topology.beta), link_caps(topology.devices)
    bound = np.zeros(beta.shape, dtype=bool)
    bound[index, :] = bound[:, index] = True
    bound &= (beta >= before * (1 - 1e-9)) & ~np.eye(len(devices), dtype=bool)
    beta[bound] = np.minimum(2.0 * beta, link_caps(devices))[bound]
    return replace(topology, devices=tuple(devices), beta=beta)


def with_copies(topology: Topology, count: int, name: str) -> Topology:
    """Return ``topology`` with ``count`` more devices like ``name`` (a device or a group); see ``changed_topology``."""
    group = _group(topology, name)
    like = group[0] if group and name not in topology.names else topology.index(name)
    device = topology.devices[like]
    alpha, beta = np.array(topology.alpha), np.array(topology.beta)
    near = [i for i in topology.regions[device.region] if i != like]
    latency, bandwidth = _NEAR
    if near:
        best = min(near, key=lambda i: (alpha[like, i], -beta[like, i]))
        latency, bandwidth = float(alpha[like, best]), float(beta[like, best])
    rows = [*range(len(topology)), *[like] * count]
    grid = np.ix_(rows, rows)
    alpha, beta = alpha[grid], beta[grid]
    same = np.array([i == like for i in rows])
    twins = np.ix_(same, same)
    alpha[twins] = latency
    beta[twins] = min(bandwidth, float(link_caps([device])[0, 0]))
    names = _names(topology, name, count)
    devices = (*topology.devices, *(replace(device, name=each) for each in names))
    return Topology(devices=devices, alpha=alpha, beta=beta, name=topology.name)


def _names(topology: Topology, name: str, count: int) -> list[str]:
    taken = set(topology.names)
    free = (f"{name}-new-{i}" for i in range(len(taken) + count))
    return [each for each in free if each not in taken][:count]
