"""Machines and the network between them: devices, links, topologies and presets.

- ``device``: a device, a directed link. ``blocks``: links between groups of devices. ``tables``: what a topology consists of.
- ``files``: topology files. ``table_reader``: their values, with errors. ``timeline``: changes of a network in such a file.
- ``presets``: topologies by name. ``published_networks``: those of papers.
- ``document``: topologies as JSON. ``topology``: ``Topology``. ``network``: ``Network``: a topology for emulation.
- ``relays``: pairs that can't reach each other, and who relays for them.
"""

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
