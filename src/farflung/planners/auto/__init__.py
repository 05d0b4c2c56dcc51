"""``auto``: searches partition, placement, replicas, order, schedule, micro-batches, codecs and synchronization together.

- ``planner``: ``Auto``. ``settings``: what limits a search.
- ``search``: the search. ``starts``: where it begins. ``moves``: neighbours of a layout. ``layout``: partition and placement.
- ``quick``: prices without a simulation. ``bounds``: what no plan can beat.
"""

from farflung.planners.auto.planner import Auto
from farflung.planners.auto.settings import AutoSettings, Trial

__all__ = ["Auto", "AutoSettings", "Trial"]
