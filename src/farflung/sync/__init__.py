"""Synchronization of replicas: what they exchange, and when. Knows no tensors; engines carry out the programs.

- ``base``: ``Strategy`` and its ``Traits``. ``settings``: checks of what users write.
- ``world``: ``World``: a replica's view of its group, layers and times.
- ``strategies``: the strategies, one file for each family. ``members``: all of them by name.
- ``layer_sets``: which layers are averaged in which step (DreamDDP). ``equations``: its equations as it prints them.
- ``local_step_counts``: how many local steps slower replicas take. ``robust_rules``: means that tolerate faulty members.
- ``unit_matching``: hidden units of several models in one order.
- ``commands``: the instructions of a program.
- ``sync_round``: who counts when members are missing.
- ``reductions``: ways to sum over a group's links. ``timeline``: what programs take, for predictions.
"""

from farflung.sync.base import (
    LayerCodecs,
    Register,
    Sent,
    Strategy,
    StrategyDefaults,
    Traits,
    check_clipping,
    check_loss_scale,
    codec_name,
)
from farflung.sync.commands import Command, Commands, Program
from farflung.sync.equations import (
    local_sgd_seconds,
    partial_local_sgd_seconds,
    period_objective,
    ssgd_seconds,
    start_times,
)
from farflung.sync.layer_sets import METHODS, PartialSchedule, partial_sync_schedule
from farflung.sync.members import STRATEGIES, get_strategy
from farflung.sync.sync_round import SyncRound, renormalized
from farflung.sync.timeline import Costs, explain, mean_step_seconds, timeline
from farflung.sync.world import LayerInfo, World

__all__ = [
    "METHODS",
    "STRATEGIES",
    "Command",
    "Commands",
    "Costs",
    "LayerCodecs",
    "LayerInfo",
    "PartialSchedule",
    "Program",
    "Register",
    "Sent",
    "Strategy",
    "StrategyDefaults",
    "SyncRound",
    "Traits",
    "World",
    "check_clipping",
    "check_loss_scale",
    "codec_name",
    "explain",
    "get_strategy",
    "local_sgd_seconds",
    "mean_step_seconds",
    "partial_local_sgd_seconds",
    "partial_sync_schedule",
    "period_objective",
    "renormalized",
    "ssgd_seconds",
    "start_times",
    "timeline",
]
