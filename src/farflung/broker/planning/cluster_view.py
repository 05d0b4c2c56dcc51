"""The joined workers as the topology that planners receive."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.cluster import Device, Topology, with_relays
from farflung.cluster.device import DeviceKind
from farflung.cluster.topology import Pair
from farflung.errors import InputError
from farflung.graph.opset import OPSET
from farflung.messages.submission import Bundle
from farflung.protocol.events import Offer
from farflung.protocol.hosts import host_capacity, host_names
from farflung.protocol.members import Member
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["cluster_of", "devices_of", "linked", "strangers_of"]

#: Seconds per operator that a device may have.
_MOST_OVERHEAD = 1.0


def devices_of(members: Sequence[Member], threads: int = 1) -> dict[str, Device]:
    """Return the joined workers as devices, by name; memory and speed as measured, and slower where their steps are.

    Workers on one host share its cores; ``threads``: of each worker, for hosts that were not measured.
    """
    shared = host_names(members)
    capacity = {name: host_capacity(group, threads) for name, (_, group) in shared.items()}
    figures = {member.name: _figures(member, shared) for member in members}
    return {
        member.name: Device(
            name=member.name,
            memory=Bytes(member.offer.memory),
            speed=FlopsPerSecond(figures[member.name].speed / figures[member.name].factor),
            speed_factor=figures[member.name].factor / member.drift,
            overhead=_overhead(figures[member.name], member.drift),
            convolution=figures[member.name].convolution,
            region=member.offer.region,
            kind=_kind(member.offer.kind),
            reliable=member.offer.reliable,
            host=shared[member.name][0] if member.name in shared else "",
            host_capacity=capacity.get(member.name, math.inf),
            engine=member.offer.versions.get("engine", ""),
            lacks=_lacking(member.offer),
            precisions=member.offer.precisions,
            ranks=member.offer.ranks,
            rank_latency=Seconds(member.offer.rank_latency),
            rank_rate=BytesPerSecond(member.offer.rank_rate) if member.offer.rank_rate else None,
            offload=Bytes(member.offer.offload) if _offloads(member) else None,
            offload_rate=_disk_rate(member, shared),
        )
        for member in members
    }


def _kind(offered: str) -> DeviceKind:
    return next((kind for kind in get_args(DeviceKind) if kind == offered), "cpu")


def _lacking(offer: Offer) -> frozenset[str]:
    """Return the operators of the allow-list that the worker's engine does not support."""
    return frozenset() if offer.operators is None else frozenset(OPSET.keys() - offer.operators)


def _figures(member: Member, shared: Mapping[str, tuple[str, Sequence[Member]]]) -> Offer:
    """Return the offer of ``member``; while it is idle, with the speed of a busy worker on the same processors."""
    busy = [
        one.offer
        for one in shared.get(member.name, ("", ()))[1]
        if one.run is not None and one.offer.processors == member.offer.processors and one.offer.speed > member.offer.speed
    ]
    return member.offer if member.run is not None else max([member.offer, *busy], key=lambda offer: offer.speed)


def _disk_rate(member: Member, shared: Mapping[str, tuple[str, Sequence[Member]]]) -> BytesPerSecond | None:
    """Return the part of the disk's rate that ``member`` has while all workers of its host use it (None: it offers none)."""
    group = shared.get(member.name, ("", (member,)))[1]
    return BytesPerSecond(member.offer.offload_rate / sum(map(_offloads, group))) if _offloads(member) else None


def _offloads(member: Member) -> bool:
    return member.offer.offload > 0 and member.offer.offload_rate > 0


def _overhead(offer: Offer, drift: float) -> Seconds:
    return Seconds(min(offer.overhead * drift, _MOST_OVERHEAD))


def strangers_of(bundle: Bundle, members: Sequence[Member]) -> list[str]:
    """Return the names of those ``members`` that are not in the submitted topology."""
    return [] if bundle.topology is None else [one.name for one in members if one.name not in bundle.topology.names]


def cluster_of(
    bundle: Bundle, members: Sequence[Member], links: LinkTable | None = None, reachability: Reachability | None = None
) -> Topology:
    """Return the joined workers as a topology: links of the submitted topology (by name), memory and speed as measured.

    Without a submitted topology the links are the measured ones; an unmeasured link counts as 1 Gbit/s with 1 ms. Links that
    became slow in training count as slow. Pairs that can't reach each other are linked through relays. ``strangers_of`` the
    topology are left out.

    Raises:
        InputError: without those there are fewer than the job asks for, or nobody.
    """
    strangers = strangers_of(bundle, members)
    if bundle.topology is not None and strangers:
        if len(members) - len(strangers) < (bundle.job.workers or 1):
            known = ", ".join(bundle.topology.names)
            raise InputError(
                f"worker {strangers[0]!r} is not in the submitted topology, which has {known}; "
                "join under one of these names (farflung join --name), or submit without --topology"
            )
        members = [member for member in members if member.name not in strangers]
    apart = frozenset() if reachability is None else reachability.apart(members)
    direct = _directly(bundle, members, links, apart)
    whole = direct if reachability is None else linked(direct, members, reachability, links if bundle.topology is None else None)
    return whole if links is None else links.slowdowns.apply(whole)


def linked(
    topology: Topology,
    members: Sequence[Member],
    reachability: Reachability,
    links: LinkTable | None,
    among: Collection[Pair] | None = None,
) -> Topology:
    """Return ``topology`` with the NATs and relays of ``reachability``. ``links``: its measured links, including relayed ones.

    ``among``: the pairs that may need a relay (None: all).
    """
    apart, nats = reachability.apart(members, among), reachability.nats(members)
    able = [member.name for member in members if member.offer.relay and not nats[member.name]]
    known = {} if links is None else links.relays(apart)
    named = topology.with_devices([replace(device, nat=nats[device.name]) for device in topology.devices])
    return with_relays(named, apart, able, reachability.can_dial, known)


def _directly(bundle: Bundle, members: Sequence[Member], links: LinkTable | None, apart: frozenset[Pair]) -> Topology:
    devices = devices_of(members, bundle.job.threads)
    measured = None if links is None else links.topology(list(devices.values()), apart=apart)
    if bundle.topology is None and measured is not None:
        return measured
    if bundle.topology is None:
        count = len(members)
        blank = Topology.preset(f"homogeneous-{count}")
        renamed = blank.rename(dict(zip(blank.names, devices, strict=True)))
        return renamed.with_devices([devices[name] for name in renamed.names])
    chosen = bundle.topology.select([name for name in bundle.topology.names if name in devices])
    return chosen.with_devices([_measured(known, devices[known.name]) for known in chosen.devices])


def _measured(known: Device, offered: Device) -> Device:
    memory = Bytes(min(known.memory, offered.memory))
    return replace(
        known,
        memory=memory,
        region=known.region or offered.region,
        reliable=known.reliable and offered.reliable,
        speed=offered.speed,
        speed_factor=offered.speed_factor,
        overhead=offered.overhead,
        convolution=offered.convolution,
        kind=offered.kind,
        host=offered.host,
        host_capacity=offered.host_capacity,
        engine=offered.engine,
        lacks=offered.lacks,
        precisions=offered.precisions,
        ranks=offered.ranks,
        rank_latency=offered.rank_latency,
        rank_rate=offered.rank_rate,
        offload=offered.offload,
        offload_rate=offered.offload_rate,
    )
