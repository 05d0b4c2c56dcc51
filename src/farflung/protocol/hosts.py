"""Workers that share the processors of one host, and how many of them reach their full speed at the same time.

Workers share a host if they name the same host and have a processor in common, directly or through other workers. Containers on
different cores do not share a host. The capacity of a host is what its workers measured together. Before that, and for more
workers, it is the number of processors divided by the threads of a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.protocol.events import Offer
from farflung.protocol.members import Member

__all__ = ["host_capacity", "host_groups", "host_names", "is_same_device", "processor_capacity"]


def host_groups(members: Sequence[Member]) -> list[list[Member]]:
    """Return the sets of two or more members that share processors, each in the order of ``members``."""
    leader: dict[str, str] = {}
    first: dict[tuple[str, str, str], str] = {}

    def lead(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = name = leader[leader[name]]
        return name

    for member in members:  # disjoint sets by union and find: linear in the processors, where comparing groups is quadratic
        for processor in member.offer.processors if member.offer.host else ():
            other = first.setdefault((member.offer.host, member.offer.kind, processor), member.name)
            leader[lead(other)] = lead(member.name)
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(lead(member.name), []).append(member)
    return [group for group in groups.values() if len(group) > 1]


def is_same_device(one: Offer, other: Offer) -> bool:
    """Return whether two workers compute with the same engine on the same processors, so that one is as fast as the other."""

    def device(offer: Offer) -> tuple[object, ...]:
        return offer.host, offer.processors, offer.kind, offer.ranks, offer.isolation, offer.versions.get("engine")

    return bool(one.host and one.processors) and device(one) == device(other)


def host_capacity(group: Sequence[Member], threads: int) -> float:
    """Return how many of ``group``, which share processors, reach their full speed at once with ``threads`` each."""
    measured = max(group, key=lambda member: member.measured_with)
    if measured.measured_with >= len(group):
        return measured.capacity
    return max(1.0, processor_capacity(group, threads), measured.capacity)


def processor_capacity(group: Sequence[Member], threads: int) -> float:
    """Return the capacity of the processors of ``group``, if its members compete for nothing else."""
    processors = {processor for member in group for processor in member.offer.processors}
    return len(processors) / threads if group[0].offer.kind == "cpu" else float(len(processors))


def host_names(members: Sequence[Member]) -> dict[str, tuple[str, list[Member]]]:
    """Return, for each member that shares processors, a name for its host and all members that share them."""
    found: dict[str, tuple[str, list[Member]]] = {}
    for group in host_groups(members):
        name = f"host of {min(member.name for member in group)}"
        found |= {member.name: (name, group) for member in group}
    return found
