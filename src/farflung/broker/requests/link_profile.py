"""Measuring the links between the joined workers, for ``farflung profile``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from farflung.broker.links.network import Network
from farflung.broker.links.probes import sampled_pairs
from farflung.broker.planning.cluster_view import devices_of, linked
from farflung.broker.requests.permission import client_of
from farflung.broker.run_table import RunTable
from farflung.cluster import Topology
from farflung.errors import ConnectionLost, InputError
from farflung.messages.calls import MeasuredTopology, Profile
from farflung.messages.remote_calls import serve_all
from farflung.messages.schema import Message
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer

__all__ = ["LinkProfile"]

#: The name under which relays carry bandwidth probes, in place of a run's.
_PROFILE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """One measurement at a time."""

    runs: RunTable
    network: Network

    def register(self, server: RpcServer) -> None:
        """Serve the call."""
        serve_all(server, Profile, self.profile)

    def profile(self, call: Call, request: Profile) -> Iterator[Message]:
        """Measure the links; yield the results as they come, and finally the topology as a document."""
        del request
        client_of(call, "measure links")
        network = self.network
        with self.runs.changed:
            members = list(self.runs.machine.members.values())
        count = len(members)
        if count < 2:
            raise InputError(f"links are measured between two workers or more, {count} joined (farflung join brings more)")
        devices = list(devices_of(members).values())
        unmeasured = Topology.from_matrices(np.zeros((count, count)), np.ones((count, count)), devices)
        regions = {member.name: member.offer.region for member in members}
        among = sampled_pairs(regions)  # a thousand members behind NATs need not dial each other
        plain = linked(unmeasured, members, network.reachability, None, among)
        network.relays.assign(_PROFILE, plain, plain.names)
        network.routes.introduce_all(plain)
        addresses = [(member.name, member.address) for member in members]
        try:
            yield from network.probes.run(addresses, partial(network.routes.probe, plain), regions)
        finally:
            network.relays.assign(_PROFILE, None, ())
        found = network.table.topology(devices, apart=plain.via)
        measured = None if found is None else linked(found, members, network.reachability, network.table, among)
        if measured is None:
            raise ConnectionLost("no worker reaches another one: see docs/network.md for the ports, and farflung doctor")
        caps = {member.name: cap for member in members if (cap := network.table.uplink(member.name)) is not None}
        yield MeasuredTopology(topology=measured.to_json(), uplinks=caps)
