"""Replicas that agree by a sync strategy.

- ``interpreter``: ``Synchronizer``: the strategy's programs, step by step, on the worker's replicas.
- ``stage_replica``: ``StageReplica``: a worker's replica of one stage: layers, registers, what is under way.
- ``command_runner``: carries out the commands of a program.
- ``arithmetic``: commands on registers, in NumPy.
- ``mean_exchange``: means that are added up on the way.
- ``seeded_directions``: directions of zeroth-order probes, from a seed.
- ``value_exchange``: members' values one by one, through a codec or plain.
- ``participation``: which replicas take part in a step.
- ``local_step_counts``: how many local steps each pipeline takes in a period.
- ``layer_times``: seconds of backward and of exchange by layer.
- ``layer_set_follower``: sets of layers that follow these times.
- ``layer_codecs``: codecs of layers that follow measured errors.
- ``replica_checkpoint``: what a checkpoint holds of replicas; ``replica_slots``: under which names.
"""
