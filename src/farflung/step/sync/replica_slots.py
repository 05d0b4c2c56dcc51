"""What checkpoints hold of replicas under a sync strategy, so that a run resumes exactly, also in the middle of a period.

A checkpoint's states are those of the first replica. Beside its optimizer slots stand slots of every replica, called
``sync.<step that the strategy counts from>.<members>.<rank>.<what>``: registers of the strategy; parameters and optimizer slots
of the other replicas, where these train alone; and exchanges that end in a later step than they began, as they arrived. A run
with another number of members begins the strategy anew from the first replica's states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from farflung.engines.base import Array, StageRunner
from farflung.plan.model import Plan

__all__ = ["PREFIX", "RetainedReplica", "is_replica_slot", "read_slots", "wanted_by", "write_slots"]

PREFIX = "sync."
_SLOT = re.compile(r"sync\.(\d{1,12})\.(\d{1,5})\.(\d{1,5})\.(mark|register|parameter|optimizer|mean|value)\.([^/]{0,200})/(.+)")
#: What a tag's stroke is in a slot's name, which ends at the first one.
_STROKE = "~"


@dataclass(slots=True, kw_only=True)
class RetainedReplica:
    """What a checkpoint holds of one replica, beside the first one's states. ``origin``: the step from which its strategy counts.

    ``means``: tag -> parameter -> mean that has arrived. ``values``: tag -> rank -> parameter -> what that member sent, where
    members' values are needed one by one (parameters in the order in which they were sent). ``times``:
    ``World.times_and_latencies`` of a strategy that adapts; of one ``by_speed`` the local steps in force; of one that chooses a
    codec for each layer those in force.
    """

    origin: int
    times: Array | None = None
    registers: dict[str, dict[str, Array]] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    optimizer: dict[str, Array] = field(default_factory=dict)
    means: dict[str, dict[str, Array]] = field(default_factory=dict)
    values: dict[str, dict[int, dict[str, Array]]] = field(default_factory=dict)

    def load(self, runner: StageRunner) -> None:
        """Give ``runner`` the parameters and optimizer slots of this replica, where they are its own."""
        if self.parameters:
            runner.load(self.parameters)
            runner.load_optimizer(self.optimizer)


def is_replica_slot(name: str) -> bool:
    """Whether a checkpoint's optimizer slot ``<slot>/<parameter>`` is one of these."""
    return name.startswith(PREFIX)


def wanted_by(plan: Plan | None, device: str) -> Callable[[str], bool]:
    """Whether ``device`` needs a slot to continue under ``plan``: of replicas only its own one's, if there were as many."""
    own = {
        (len(stage.devices), stage.devices.index(device))
        for stage in (plan.stages if plan is not None else ())
        if device in stage.devices
    }

    def wanted(slot: str) -> bool:
        match = _SLOT.fullmatch(slot)
        return match is None or not own or (int(match[2]), int(match[3])) in own

    return wanted


def write_slots(retained: RetainedReplica, members: int, rank: int, mark: str) -> dict[str, Array]:
    """``retained`` as slots of a checkpoint; ``mark``: any parameter, for a slot that marks this replica as present."""
    head = f"{PREFIX}{retained.origin}.{members}.{rank}"
    found: dict[str, Array] = {f"{head}.mark./{mark}": np.zeros(1, np.float32) if retained.times is None else retained.times}
    found |= {f"{head}.parameter./{name}": array for name, array in retained.parameters.items()}
    for key, array in retained.optimizer.items():
        slot, _, name = key.partition("/")
        found[f"{head}.optimizer.{slot}/{name}"] = array
    for register, arrays in retained.registers.items():
        found |= {f"{head}.register.{register}/{name}": array for name, array in arrays.items()}
    for tag, means in retained.means.items():
        found |= {f"{head}.mean.{_flat(tag)}/{name}": array for name, array in means.items()}
    for tag, values in retained.values.items():
        for member, arrays in values.items():
            for place, (name, array) in enumerate(arrays.items()):
                found[f"{head}.value.{member}:{place}:{_flat(tag)}/{name}"] = array
    return found


def read_slots(slots: Mapping[str, Array], members: int, rank: int) -> RetainedReplica | None:
    """What ``write_slots`` made of replica ``rank``. ``None``: the checkpoint has nothing of it, or another number of members."""
    retained: RetainedReplica | None = None
    values: dict[str, dict[int, dict[int, tuple[str, Array]]]] = {}
    for key, array in slots.items():
        match = _SLOT.fullmatch(key)
        if match is None or (int(match[2]), int(match[3])) != (members, rank):
            continue
        retained = retained or RetainedReplica(origin=int(match[1]))
        what, detail, name = match[4], match[5], match[6]
        if what == "mark":
            retained.times = array if array.size > 1 else None
            continue
        if what == "register":
            retained.registers.setdefault(detail, {})[name] = array
        elif what == "parameter":
            retained.parameters[name] = array
        elif what == "optimizer":
            retained.optimizer[f"{detail}/{name}"] = array
        elif what == "mean":
            retained.means.setdefault(_tag(detail), {})[name] = array
        else:
            member, place, tag = detail.split(":", 2)
            values.setdefault(_tag(tag), {}).setdefault(int(member), {})[int(place)] = (name, array)
    if retained is not None:
        for tag, sent in values.items():
            retained.values[tag] = {member: dict(placed[place] for place in sorted(placed)) for member, placed in sent.items()}
    return retained


def _flat(tag: str) -> str:
    return tag.replace("/", _STROKE)


def _tag(flat: str) -> str:
    return flat.replace(_STROKE, "/")
