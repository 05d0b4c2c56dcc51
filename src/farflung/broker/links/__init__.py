"""Links between workers, as the broker knows them.

- ``reachability``: who can dial whom.
- ``probes``: bandwidth probes: who measures which link when.
- ``freshness``: figures from training traffic.
- ``table``: ``LinkTable``: the figures of every link.
- ``slowdowns``: links that became slow in training.
- ``relays``: which members relay for which runs.
- ``routes``: how members of a run reach each other.
"""
