"""Connections between two machines behind NAT, without a relay (docs/nat.md).

In the order of an attempt:

- ``observation``: a member asks from which address and port the broker sees it.
- ``observer``: ``AddressObserver``: the broker's side.
- ``nat_probe``: the NAT type of this machine, from two observations.
- ``hole_puncher``: both ends dial each other at the same time.
"""
