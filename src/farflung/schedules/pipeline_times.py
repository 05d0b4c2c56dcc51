"""What the clock of a schedule reads and gives: orders of stages, seconds of actions and messages, the timeline of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.schedules.base import Action, ActionKind
from farflung.schedules.dry_run import splits
from farflung.schedules.progress import tracks_of

__all__ = ["RANK", "Exchange", "Link", "PipelineTimes", "PreparedOrder", "StepTimeline", "TimedEdge", "Transfer", "prepare_order"]

#: The devices at its two ends.
Link = tuple[int, int]
#: Of two actions that could start, the lower goes first: gradients that others wait for before values, parameters' last.
RANK = {ActionKind.BACKWARD: 0, ActionKind.FORWARD: 1, ActionKind.WEIGHT: 2}


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message of ``nbytes`` (0: not known): ``latency`` seconds on the way, ``wire`` seconds during which the link is taken."""

    latency: float
    wire: float
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEdge:
    """What stage ``source`` sends to stage ``target`` per micro-batch, and the gradients that come back (None: none do)."""

    source: int
    target: int
    forward: Transfer
    backward: Transfer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """After its last backward stage ``source`` sends gradients to stage ``target``: those of tied parameters or of replicas.

    An exchange of a later ``round`` begins when all of the rounds before have arrived at its source. ``after``: micro-batches
    after whose backwards such a message leaves each time, whatever else has come (empty: one after the last).
    """

    source: int
    target: int
    transfer: Transfer
    round: int = 0
    after: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Seconds per micro-batch of each stage, where stages run, and what moves between them.

    A replica counts as a stage of its own that does the micro-batches of its ``share`` (empty: each does all). ``weight``: the
    part of ``backward`` that makes gradients of parameters, for schedules that have them as actions of their own.
    ``scale``: size of each micro-batch relative to the one that the seconds are for. ``update``: seconds of each stage's
    optimizer step. ``hosts``: (capacity, devices) of devices that slow each other down (``schedules.shared_host``).
    """

    forward: Sequence[float]
    backward: Sequence[float]
    device: Sequence[int]
    edges: Sequence[TimedEdge] = ()
    exchanges: Sequence[Exchange] = ()
    update: Sequence[float] = ()
    weight: Sequence[float] = ()
    scale: Sequence[float] = ()
    share: Sequence[range] = ()
    hosts: Sequence[tuple[float, Sequence[int]]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """``seconds``: the whole step. ``device_busy``, ``link_busy``: seconds during which each computed or carried bytes.

    ``critical_device``, ``critical_link``: the one that was busy longest (the link is None where nothing moved).
    """

    seconds: float
    device_busy: Mapping[int, float]
    link_busy: Mapping[Link, float]

    @property
    def critical_device(self) -> int:
        """The device that computes longest."""
        return max(self.device_busy, key=lambda device: (self.device_busy[device], -device))

    @property
    def critical_link(self) -> Link | None:
        """The directed link (device, device) that is taken longest."""
        return max(self.link_busy, key=lambda link: (self.link_busy[link], link), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOrder:
    """A stage's order as ``time_schedule`` reads it, for those who time one order often (``prepare_order``).

    ``tracks``: (rank of the kind, micro-batch) of the actions of each track; ``leads``: of each track over the other one.
    """

    tracks: tuple[tuple[tuple[int, int], ...], ...]
    leads: tuple[int, ...]
    splits: bool
    width: int


def prepare_order(order: Sequence[Action], *, free: bool = False) -> PreparedOrder:
    """``order`` for ``time_schedule``, which then takes ``free`` from it."""
    tracks = tracks_of(order, free=free)
    return PreparedOrder(
        tracks=tuple(tuple((RANK[action.kind], action.micro_batch) for action in track.actions) for track in tracks),
        leads=tuple(track.lead for track in tracks),
        splits=splits(order),
        width=1 + max((action.micro_batch for action in order), default=0),
    )
