"""Orders that planners ask for again and again: those of a schedule, and the part of one that a replica has, by their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from farflung.schedules.base import Action
from farflung.schedules.dry_run import retained
from farflung.schedules.pipeline_times import PreparedOrder, prepare_order
from farflung.schedules.pipelines import get_schedule
from farflung.schedules.progress import as_ready

__all__ = ["Part", "orders_of", "part_of"]

#: Steps of more micro-batches are rare and their orders long: they are not kept.
_MOST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a copy of a stage does: its actions, as ``time_schedule`` reads them, and what it retains at most (``retained``)."""

    actions: tuple[Action, ...]
    prepared: PreparedOrder
    in_flight: int


def orders_of(schedule: str, stages: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    """For each stage its actions of one step (``PipelineSchedule.actions``).

    Raises:
        InputError: nothing has that name. PlanError: the schedule can't deal out so many stages.
    """
    return (_kept_orders if micro_batches <= _MOST else _orders)(schedule, stages, micro_batches)


def part_of(schedule: str, stages: int, micro_batches: int, stage: int, share: tuple[int, int]) -> Part:
    """The part of a stage's order with the micro-batches of ``share`` (first, end); errors as ``orders_of``."""
    return (_kept_part if micro_batches <= _MOST else _part)(schedule, stages, micro_batches, stage, share)


def _orders(schedule: str, stages: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(order) for order in get_schedule(schedule).actions(stages, micro_batches))


def _part(schedule: str, stages: int, micro_batches: int, stage: int, share: tuple[int, int]) -> Part:
    first, end = share
    own = tuple(a for a in orders_of(schedule, stages, micro_batches)[stage] if first <= a.micro_batch < end)
    return Part(actions=own, prepared=prepare_order(own, free=as_ready(get_schedule(schedule))), in_flight=retained(own))


_kept_orders = lru_cache(maxsize=16)(_orders)
_kept_part = lru_cache(maxsize=1024)(_part)
