"""Synchronization of replicas: what is exchanged when. Knows no tensors; engines run what it says."""

from farflung.sync.base import (
    LayerInfo,
    Register,
    Sent,
    Strategy,
    World,
    adds_up,
    check_clipping,
    codec_name,
    link_share,
    memory_copies,
    period,
)
from farflung.sync.commands import Command, Commands, Program
from farflung.sync.equations import (
    local_sgd_seconds,
    partial_local_sgd_seconds,
    period_objective,
    ssgd_seconds,
    start_times,
)
from farflung.sync.members import STRATEGIES, get_strategy
from farflung.sync.partial import METHODS, PartialSchedule, partial_sync_schedule
from farflung.sync.rounds import SyncRound, renormalized
from farflung.sync.timeline import Costs, explain, mean_step_seconds, timeline

__all__ = [
    "METHODS",
    "STRATEGIES",
    "Command",
    "Commands",
    "Costs",
    "LayerInfo",
    "PartialSchedule",
    "Program",
    "Register",
    "Sent",
    "Strategy",
    "SyncRound",
    "World",
    "adds_up",
    "check_clipping",
    "codec_name",
    "explain",
    "get_strategy",
    "link_share",
    "local_sgd_seconds",
    "mean_step_seconds",
    "memory_copies",
    "partial_local_sgd_seconds",
    "partial_sync_schedule",
    "period",
    "period_objective",
    "renormalized",
    "ssgd_seconds",
    "start_times",
    "timeline",
]
