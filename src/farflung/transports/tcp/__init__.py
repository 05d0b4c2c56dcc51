"""The data plane: frames between two machines over TCP connections with TLS 1.3 (docs/links.md).

In the order in which a frame passes through them:

- ``endpoint``: ``TcpEndpoint`` accepts and dials connections, and owns one link per peer.
- ``link``: one peer's link: its sending half, its receiving half, its connections; ``link_host``: what it needs of the endpoint.
- ``dialer``: dials for a link until it has enough connections.
- ``halves``: both halves as pure state: chunks, lanes, credit, confirmations.
- ``connection``: the threads that read and write one connection.
- ``sockets``: sockets, TLS, congestion control, the greeting.
- ``lanes``: the threads that give a link's frames to the handler, in order within a lane.
- ``state``: the fields of a link's state message.
- ``adaptation``: the rate of a link, when silence means death, how many connections it needs.
- ``byte_counts``: the kernel's byte counters of the link's connections.
- ``goodput``: bandwidth and latency of a link from these counters, as pure state.
- ``bbr_pause``: when to pause so that BBR sees the empty path.
- ``relay``: the machine between two members that cannot reach each other.
- ``relay_calls``: how an endpoint dials, answers and offers relays.
"""
