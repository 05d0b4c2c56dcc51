"""Sums over the replicas of a stage.

- ``base``: ``Reduction``, the protocol of the engines: contribute, wait, receive.
- ``pieces``: how arrays are cut into pieces, and how a piece is added, packed and unpacked.
- ``orders``: in which order gradients are added: ``JobOrder`` (exact, by buckets) or ``RouteOrder`` (server, ring, tree).
- ``gradient_sums``: ``GradientSums``: sums of gradients by one of these orders, on the compute thread.
- ``gradient_exchange``: ``GradientExchange``: when a backward ends a part of a sum, and when runners get the total.
- ``averaging``: ``Averager``: weighted means for sync strategies, by rank, with a patience.
- ``piece_sender``: frames that carry several small pieces of means, and the bytes that may be under way.
- ``clipping``: clipping by the norm of the previous step.
"""
