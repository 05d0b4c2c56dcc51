"""``auto``: searches partition, placement, replicas, order, schedule, micro-batches, codecs and synchronization together."""

from farflung.planners.auto.planner import Auto
from farflung.planners.auto.settings import AutoSettings, Trial

__all__ = ["Auto", "AutoSettings", "Trial"]
