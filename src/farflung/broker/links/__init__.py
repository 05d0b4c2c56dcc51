"""Links between workers, as the broker knows them.

- ``advertised_address``: which addresses workers may advertise.
- ``reachability``: ``Reachability``: who can dial whom.
- ``punched_pairs``: ``PunchedPairs``: which pairs hole punching connects, and types of NAT.
- ``hole_punching``: ``HolePunching``: connects members behind NAT.
- ``probes``: ``LinkProbes``: which worker probes which other one, and when.
- ``traffic_figures``: figures of links from training traffic.
- ``table``: ``LinkTable``: the figures of every link.
- ``slowdowns``: ``LinkSlowdowns``: links that became slow in training.
- ``relays``: ``Relays``: which members relay for which runs.
- ``routes``: ``Routes``: how the members of a run reach each other.
- ``network``: ``Network``: these parts as one value.
"""
