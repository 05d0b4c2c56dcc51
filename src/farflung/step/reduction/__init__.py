"""Sums over replicas.

- ``ordered``: the exact exchange: gradients are added in the job's order.
- ``any_order``: sums by servers, a ring or a tree, where the job sets ``order = "any"``.
- ``averaging``: weighted means over a group, by pieces that have servers.
- ``clipping``: clipping by the norm of the previous step.
"""
