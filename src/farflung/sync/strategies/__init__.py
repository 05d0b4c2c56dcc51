"""The strategies. Each file has a table ``STRATEGIES`` of its own, by name; ``farflung.sync.members`` collects them.

- ``every_step``: ``ssgd``, ``wfbp``, ``asc_wfbp``, ``delayed``, ``robust``: gradients, in every step.
- ``local_sgd``: all parameters, once per period.
- ``partial_sync``: ``partial``, ``dreamddp``, ``contiguous``, ``free_sets``: some layers' parameters in each step.
- ``outer``: ``diloco``, ``streaming_diloco``, ``co2``: pseudo-gradients and an outer optimizer.
- ``gossip``: parameters, in pairs.
- ``seed_and_scalar``: one number of each replica, no backward.
"""
