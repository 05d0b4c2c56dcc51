"""Pipeline schedules as data, by name, and the dry-runs that check and time them.

- ``base``: ``Schedule``. ``orders``: schedules by name. ``pipelines``: the orders of actions. ``micro_batch_groups``: of sites.
- ``dry_run``: finds deadlocks. ``timing``, ``pipeline_times``: times of a step. ``shared_host``: stages on one machine.
- ``progress``: which actions are ready.
"""

from farflung.schedules.base import Action, ActionKind, PipelineSchedule
from farflung.schedules.dry_run import check_schedule, in_flight, retained, splits
from farflung.schedules.micro_batch_groups import grouped, read_group
from farflung.schedules.orders import Part, orders_of, part_of
from farflung.schedules.pipeline_times import (
    Exchange,
    PipelineTimes,
    PreparedOrder,
    StepTimeline,
    TimedEdge,
    Transfer,
    prepare_order,
)
from farflung.schedules.pipelines import EAGER, get_schedule, schedule_names
from farflung.schedules.progress import Progress, Track, as_ready, tracks_of
from farflung.schedules.shared_host import ACTION_SECONDS, SharedHost, transfer_work
from farflung.schedules.timing import time_schedule

__all__ = [
    "ACTION_SECONDS",
    "EAGER",
    "Action",
    "ActionKind",
    "Exchange",
    "Part",
    "PipelineSchedule",
    "PipelineTimes",
    "PreparedOrder",
    "Progress",
    "SharedHost",
    "StepTimeline",
    "TimedEdge",
    "Track",
    "Transfer",
    "as_ready",
    "check_schedule",
    "get_schedule",
    "grouped",
    "in_flight",
    "orders_of",
    "part_of",
    "prepare_order",
    "read_group",
    "retained",
    "schedule_names",
    "splits",
    "time_schedule",
    "tracks_of",
    "transfer_work",
]
