"""What a worker does with its links.

- ``peer_links``: ``PeerLinks``: addresses and relays of peers; ``RelayService``: relays for others.
- ``punching``: ``Punching``: connections with peers behind NAT.
- ``mapped_port``: a port that the router forwards.
- ``second_address``: where a worker listens, and its address with IPv6.
- ``link_probe``: measures one direction of a link.
- ``link_shaping``: emulated links on one machine.
"""
