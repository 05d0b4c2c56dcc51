"""Replicas that agree by a sync strategy.

- ``interpreter``: carries out the commands of ``farflung.sync`` on an engine's tensors.
- ``replica``: a worker's replica of one stage: layers and registers.
- ``participation``: which replicas take part in a step.
- ``local_step_counts``: how many local steps each pipeline takes in a period.
- ``layer_times``: seconds of backward and of exchange by layer.
- ``replica_slots``: what replicas keep in checkpoints.
"""
