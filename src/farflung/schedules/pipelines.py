"""GPipe, 1F1B, eager 1F1B, interleaved 1F1B and ZB-H1, by name.

GPipe (Huang et al. 2019): all forwards, then all backwards; every micro-batch is in flight at once.
1F1B (PipeDream-flush, Narayanan et al. 2021): stage s of S runs S - 1 - s forwards ahead, then one forward and one
backward in turn, so that at most S - s micro-batches are in flight there. Both take the same time on equal stages, where
sending takes no time.
Eager 1F1B (Zhuang et al. 2022, "On Optimizing the Communication of Model Parallelism", section 4), ``eager-K``: stage s runs
K (S - 1 - s) forwards ahead. A micro-batch comes back to a stage after the computing *and the sending* of all later ones; 1F1B
has work for the first alone, so it waits where links take as long as computing. The text has K = 2; K = 3 and 4 cover links that
are far and slow. The cost is memory: about K times the micro-batches of 1F1B in flight. What differs: the order is no law. With a
fixed one, too few forwards ahead leave links idle and too many let backwards wait for forwards that are on their way; so K only
bounds what is in flight, and a stage takes its next backward when the gradient is here, else its next forward (``as_ready``).
Interleaved 1F1B (Narayanan et al. 2021, section 2.2), ``interleaved-V``: S = V D stages on D devices, device d holds stages d,
d + D, ...; micro-batches pass in groups of D through one chunk after the other. Here each stage has its own order and a
device takes whichever stage can go on, so the order between a device's stages is the text's only where it does not wait; the
last group may lack some.
ZB-H1 (Qi et al. 2023, section 2.2): 1F1B whose backward is split, so that a stage hands gradients upstream before it makes
those of its parameters; stage s makes them s micro-batches later, and at most S micro-batches are in flight everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from farflung.errors import PlanError
from farflung.registry import Registry
from farflung.schedules.base import Action, ActionKind, PipelineSchedule
from farflung.schedules.micro_batch_groups import Grouped, read_group

__all__ = ["EAGER", "GPipe", "Interleaved", "OneForwardOneBackward", "ZeroBubble", "get_schedule", "schedule_names"]


class GPipe:
    """All forwards, then all backwards, each by ascending micro-batch."""

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order."""
        kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
        return tuple(
            tuple(Action(stage, kind, micro_batch) for kind in kinds for micro_batch in range(micro_batches))
            for stage in range(stages)
        )


class OneForwardOneBackward:
    """Some forwards ahead (``ahead`` for each later stage), then one forward and one backward in turn.

    With ``as_ready``, that is an order which says how many forwards may be ahead, and a stage takes what has arrived.
    """

    def __init__(self, ahead: int = 1, *, as_ready: bool = False) -> None:
        self.ahead, self.as_ready = ahead, as_ready

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order."""
        return tuple(self._stage(stage, stages, micro_batches) for stage in range(stages))

    def _stage(self, stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
        ahead = min(self.ahead * (stages - 1 - stage), micro_batches)
        order = [Action(stage, ActionKind.FORWARD, m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                order.append(Action(stage, ActionKind.FORWARD, m + ahead))
            order.append(Action(stage, ActionKind.BACKWARD, m))
        return tuple(order)


class Interleaved:
    """Several stages on each device, ``chunks`` of them, in groups of as many micro-batches as there are devices."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order.

        Raises:
            PlanError: the stages can't be dealt out evenly.
        """
        devices, rest = divmod(stages, self.chunks)
        if rest or not devices:
            raise PlanError(
                f"the schedule interleaved-{self.chunks} needs {self.chunks} stages for each device; "
                f"this plan has {stages} stages, no multiple of {self.chunks}; use 1f1b"
            )
        orders: list[list[Action]] = [[] for _ in range(stages)]
        for device in range(devices):
            for action in self._device(device, devices, micro_batches):
                orders[action.stage].append(action)
        return tuple(tuple(order) for order in orders)

    def _device(self, device: int, devices: int, micro_batches: int) -> list[Action]:
        """Narayanan's order of one device: warm-up forwards, then forwards and backwards in turn.

        It is made for whole groups; micro-batches that the last one lacks are left out afterwards (shorter groups deadlock).
        """
        groups = [range(start, start + devices) for start in range(0, micro_batches, devices)]
        chunks = range(self.chunks)
        forwards = [Action(c * devices + device, ActionKind.FORWARD, m) for group in groups for c in chunks for m in group]
        backwards = [
            Action(c * devices + device, ActionKind.BACKWARD, m) for group in groups for c in reversed(chunks) for m in group
        ]
        ahead = min(len(forwards), 2 * (devices - 1 - device) + (self.chunks - 1) * devices)
        if self.chunks == 1:
            ahead = min(len(forwards), devices - 1 - device)
        order = forwards[:ahead]
        for i, backward in enumerate(backwards):
            order += forwards[ahead + i : ahead + i + 1]
            order.append(backward)
        return [action for action in order if action.micro_batch < micro_batches]


class ZeroBubble:
    """1F1B with the gradients of parameters made later."""

    def actions(self, stages: int, micro_batches: int) -> Sequence[Sequence[Action]]:
        """For each stage, its actions of one step in order."""
        return tuple(self._stage(order) for order in OneForwardOneBackward().actions(stages, micro_batches))

    def _stage(self, plain: Sequence[Action]) -> tuple[Action, ...]:
        order: list[Action] = []
        for action in plain:
            order.append(action)
            late = action.micro_batch - action.stage
            if action.kind is ActionKind.BACKWARD and late >= 0:
                order.append(Action(action.stage, ActionKind.WEIGHT, late))
        made = sum(action.kind is ActionKind.WEIGHT for action in order)
        count = sum(action.kind is ActionKind.BACKWARD for action in order)
        stage = plain[0].stage
        return (*order, *(Action(stage, ActionKind.WEIGHT, m) for m in range(made, count)))


_SCHEDULES: Registry[PipelineSchedule] = Registry("schedule", "schedules")
_SCHEDULES.add("gpipe", GPipe)
_SCHEDULES.add("1f1b", OneForwardOneBackward)
#: Eager schedules by growing memory.
EAGER = ("eager-2", "eager-3", "eager-4")
for _name in EAGER:
    _SCHEDULES.add(_name, partial(OneForwardOneBackward, int(_name[-1]), as_ready=True))
for _chunks in (2, 3, 4):
    _SCHEDULES.add(f"interleaved-{_chunks}", partial(Interleaved, _chunks))
_SCHEDULES.add("zb-h1", ZeroBubble)


def get_schedule(name: str) -> PipelineSchedule:
    """The schedule called ``name``, or a group of it (``schedules.micro_batch_groups``).

    Raises:
        InputError: nothing has that name; the text lists the known ones.
    """
    base, count = read_group(name)
    return _SCHEDULES.get(base) if count == 1 else Grouped(_SCHEDULES.get(base), count)


def schedule_names() -> tuple[str, ...]:
    """The names that ``get_schedule`` takes."""
    return tuple(_SCHEDULES)
