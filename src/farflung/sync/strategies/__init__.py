"""The strategies. Each file has a table ``STRATEGIES`` of its own, by name; ``farflung.sync.members`` collects them.

- ``arrivals``: ``fedbuff``, ``fedfix``, ``fedcompass``: pseudo-gradients, each member's when it has finished.
- ``branch_train_merge``: parameters, in every step at first, then never or seldom.
- ``fedamd``: parameters of miners, and gradients of anchors.
- ``dimat``: all parameters, once per period, hidden units in one order.
- ``every_step``: ``ssgd``, ``wfbp``, ``asc_wfbp``, ``delayed``, ``robust``: gradients, in every step.
- ``lgreco``: gradients, in every step, each layer through a codec of its own.
- ``local_sgd``: all parameters, once per period.
- ``partial_sync``: ``partial``, ``dreamddp``, ``contiguous``, ``free_sets``: some layers' parameters in each step.
- ``modest``: parameters of a sample of the members, by aggregators.
- ``outer``: ``diloco``, ``streaming_diloco``, ``co2``: pseudo-gradients and an outer optimizer.
- ``gossip``: parameters, in pairs.
- ``seed_and_scalar``: one number of each replica, no backward. ``fedkseed``: the same with local steps.
"""
