"""Machines and the network between them: devices, links, topologies and presets."""

from farflung.cluster.device import Device, Link
from farflung.cluster.network import Network
from farflung.cluster.presets import preset_names
from farflung.cluster.relays import apart_by_nat, with_relays
from farflung.cluster.timeline import Change
from farflung.cluster.topology import Topology, pair_of

__all__ = [
    "Change",
    "Device",
    "Link",
    "Network",
    "Topology",
    "apart_by_nat",
    "pair_of",
    "preset_names",
    "with_relays",
]
