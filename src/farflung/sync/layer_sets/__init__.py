"""Which layers are averaged in which step of a period (DreamDDP), from the layers' times.

- ``layers``: ``Layers``: times in backward order, tied layers as one unit; the exact score of sets.
- ``contiguous``: sets that are runs of layers: equal numbers, and the exact optimum.
- ``dreamddp``: Algorithm 2, as a reference.
- ``free_sets``: sets that need not be runs.
- ``bubble_filling``: bubble filling, equation (12).
- ``bounds``: a lower bound for any sets.
- ``message_merging``: gradients that travel as one message, by the cost model of ASC-WFBP.
- ``partial_schedule``: ``partial_sync_schedule``: one of these methods, scored.
"""

from farflung.sync.layer_sets.message_merging import fitted_exchange, merged_layers
from farflung.sync.layer_sets.partial_schedule import METHODS, PartialSchedule, partial_sync_schedule

__all__ = ["METHODS", "PartialSchedule", "fitted_exchange", "merged_layers", "partial_sync_schedule"]
