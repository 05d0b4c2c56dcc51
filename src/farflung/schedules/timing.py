"""Running a schedule against a clock that is only computed: when does the step end, and what is busy how long.

A device runs one action at a time, taking among its stages' next actions one whose inputs have arrived (backwards first, then
the lower micro-batch). A directed link carries one message at a time, in the order in which they were made; its latency
delays a message but does not occupy the link. Computing and sending overlap. Cost: O(actions log actions), without the logarithm
where each device has one fixed order and each link one sender.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.errors import PlanError
from farflung.schedules.base import Action, ActionKind
from farflung.schedules.dry_run import splits
from farflung.schedules.progress import tracks_of

__all__ = [
    "Exchange",
    "PipelineTimes",
    "PreparedOrder",
    "StepTimeline",
    "TimedEdge",
    "Transfer",
    "prepare_order",
    "time_schedule",
]

Link = tuple[int, int]
#: Of two actions that could start, the lower goes first: gradients that others wait for before values, parameters' last.
_RANK = {ActionKind.BACKWARD: 0, ActionKind.FORWARD: 1, ActionKind.WEIGHT: 2}


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message: ``latency`` seconds on the way, ``wire`` seconds during which the link is taken."""

    latency: float
    wire: float


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

    An exchange of a later ``round`` begins when all of the rounds before have arrived at its source.
    """

    source: int
    target: int
    transfer: Transfer
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Seconds per micro-batch of each stage, where stages run, and what moves between them.

    A replica counts as a stage of its own that does the micro-batches of its ``share`` (empty: each does all). ``weight``: the
    part of ``backward`` that makes gradients of parameters, for schedules that have them as actions of their own.
    ``scale``: size of each micro-batch relative to the one that the seconds are for. ``update``: seconds of each stage's
    optimizer step.
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
        tracks=tuple(tuple((_RANK[action.kind], action.micro_batch) for action in track.actions) for track in tracks),
        leads=tuple(track.lead for track in tracks),
        splits=splits(order),
        width=1 + max((action.micro_batch for action in order), default=0),
    )


def time_schedule(
    orders: Sequence[Sequence[Action] | PreparedOrder], times: PipelineTimes, *, free: bool = False
) -> StepTimeline:
    """The timeline of one step; ``free``: stages take what has arrived (``schedules.as_ready``).

    Raises:
        PlanError: the actions wait for each other forever.
    """
    return _Clock(
        [order if isinstance(order, PreparedOrder) else prepare_order(order, free=free) for order in orders], times
    ).run()


#: (target action, seconds on the wire, latency, link)
_Message = tuple[int, float, float, Link]


class _Clock:
    """Actions are numbers: ``(stage * 3 + rank of the kind) * micro-batches + micro-batch``; the loops are hot.

    ``queues``: the tracks of all stages (``progress.Track``); ``queues_of``: which are a device's; ``leads`` over the queue
    ``partner`` (-1: none).
    """

    def __init__(self, orders: Sequence[PreparedOrder], times: PipelineTimes) -> None:
        self.orders, self.times = orders, times
        self.split = any(order.splits for order in orders)
        self.width = width = max((order.width for order in orders), default=1)
        self.queues: list[list[int]] = []
        self.leads: list[int] = []
        self.partner: list[int] = []
        self.queues_of: dict[int, list[int]] = {device: [] for device in times.device}
        for stage, order in enumerate(orders):
            first, base = len(self.queues), stage * 3 * width
            for index, track in enumerate(order.tracks):
                self.queues_of[times.device[stage]].append(len(self.queues))
                self.queues.append([base + rank * width + m for rank, m in track])
                self.leads.append(order.leads[index])
                self.partner.append(first + 1 - index if len(order.tracks) == 2 else -1)
        self.at = [0] * len(self.queues)
        self.busy = dict.fromkeys(times.device, 0.0)
        self.link_busy: dict[Link, float] = {}
        self.link_free: dict[Link, float] = {}
        self.idle = set(times.device)
        self.stages: dict[int, list[int]] = {}
        for stage, device in enumerate(times.device):
            self.stages.setdefault(device, []).append(stage)
        self.missing = [0] * (len(orders) * 3 * width)
        self.messages: dict[int, list[_Message]] = {}
        #: How many edges use a link.
        self.shared: dict[Link, int] = {}
        self.seconds = self._seconds()
        for edge in times.edges:
            self._edge(edge)
        #: (time, order among equals, action that ends, or -1 - the action at which a value arrives)
        self.events: list[tuple[float, int, int]] = []
        self.count = 0
        self.ends = [0.0] * len(orders)

    def _scale(self) -> Sequence[float]:
        return self.times.scale or [1.0] * self.width

    def _seconds(self) -> list[float]:
        """Seconds of every action, by number."""
        times, scale = self.times, self._scale()[: self.width]
        found: list[float] = []
        for stage in range(len(self.orders)):
            weight = times.weight[stage] if self.split else 0.0
            for base in (times.backward[stage] - weight, times.forward[stage], weight):
                found += [base * factor for factor in scale]
        return found

    def _edge(self, edge: TimedEdge) -> None:
        """The messages of an edge: those of the micro-batches that both ends have (of replicas only one has each)."""
        times, scale, width = self.times, self._scale(), self.width
        both: Sequence[int] = range(width)
        if times.share:
            here, there = times.share[edge.source], times.share[edge.target]
            both = range(max(here.start, there.start), min(here.stop, there.stop))
        ways = [(edge.source, edge.target, edge.forward, _RANK[ActionKind.FORWARD])]
        if edge.backward is not None:
            ways.append((edge.target, edge.source, edge.backward, _RANK[ActionKind.BACKWARD]))
        messages, missing = self.messages, self.missing
        for source, target, transfer, rank in ways:
            link = (times.device[source], times.device[target])
            self.shared[link] = self.shared.get(link, 0) + 1
            latency, wire = transfer.latency, transfer.wire
            begin, end = (source * 3 + rank) * width, (target * 3 + rank) * width
            for m in both:
                missing[end + m] += 1
                messages.setdefault(begin + m, []).append((end + m, wire * scale[m], latency, link))

    def run(self) -> StepTimeline:
        alone = len(self.queues) == len(self.stages) and all(count == 1 for count in self.shared.values())
        if alone:
            self._in_order()
        else:
            self._by_events()
        if any(at < len(queue) for queue, at in zip(self.queues, self.at, strict=True)):
            self._stuck()
        return StepTimeline(seconds=self._finish(), device_busy=self.busy, link_busy=self.link_busy)

    def _stuck(self) -> None:
        per_stage, kinds = 3 * self.width, {rank: kind for kind, rank in _RANK.items()}
        heads = {queue[at] for queue, at in zip(self.queues, self.at, strict=True) if at < len(queue)}
        left = [number for queue in self.queues for number in queue if number in heads]
        stuck = [
            str(Action(number // per_stage, kinds[number % per_stage // self.width], number % self.width)) for number in left
        ]
        raise PlanError(f"the schedule can't finish: {', '.join(stuck)} wait for each other; use the schedule gpipe or 1f1b")

    def _in_order(self) -> None:
        """One fixed order on each device and one sender on each link: what comes first is known, so no events are needed."""
        missing, seconds, messages, queues, at = self.missing, self.seconds, self.messages, self.queues, self.at
        arrived, now = [0.0] * len(missing), self.ends
        per_stage, waiting = 3 * self.width, list(range(len(queues)))
        while waiting:
            stage = waiting.pop()
            queue, place, time = queues[stage], at[stage], now[stage]
            while place < len(queue) and not missing[number := queue[place]]:
                time = max(time, arrived[number])
                time += seconds[number]
                place += 1
                for target, wire, latency, link in messages.get(number, ()):
                    when = self._carry(link, latency, wire, time)
                    arrived[target] = max(arrived[target], when)
                    missing[target] -= 1
                    other = target // per_stage
                    if not missing[target] and at[other] < len(queues[other]) and queues[other][at[other]] == target:
                        waiting.append(other)
            at[stage], now[stage] = place, time
        for stage, device in enumerate(self.times.device):
            self.busy[device] += sum(seconds[number] for number in queues[stage][: at[stage]])

    def _by_events(self) -> None:
        for device in sorted(self.stages):
            self._start(device, 0.0)
        events, missing, idle, device_of, per_stage = self.events, self.missing, self.idle, self.times.device, 3 * self.width
        while events:
            now, _, number = heapq.heappop(events)
            if number >= 0:
                stage = number // per_stage
                idle.add(device_of[stage])
                self.ends[stage] = now
                self._send(number, now)
            else:
                number = -1 - number
                missing[number] -= 1
                stage = number // per_stage
            if device_of[stage] in idle:
                self._start(device_of[stage], now)

    def _start(self, device: int, now: float) -> None:
        """Of the next actions whose inputs have arrived the one that goes first."""
        best, chosen = -1, -1
        for index in self.queues_of[device]:
            queue, at = self.queues[index], self.at[index]
            if at < len(queue) and not self.missing[queue[at]]:
                partner = self.partner[index]
                if partner >= 0 and self.at[partner] - at < self.leads[index]:
                    continue
                number = queue[at] % (3 * self.width)
                if chosen < 0 or number < best:  # by kind, then micro-batch, then stage
                    best, chosen = number, index
        if chosen < 0:
            return
        number = self.queues[chosen][self.at[chosen]]
        self.at[chosen] += 1
        seconds = self.seconds[number]
        self.idle.discard(device)
        self.busy[device] += seconds
        self.count += 1
        heapq.heappush(self.events, (now + seconds, self.count, number))

    def _send(self, number: int, now: float) -> None:
        for target, wire, latency, link in self.messages.get(number, ()):
            self.count += 1
            heapq.heappush(self.events, (self._carry(link, latency, wire, now), self.count, -1 - target))

    def _carry(self, link: Link, latency: float, wire: float, now: float) -> float:
        if link[0] == link[1]:
            return now
        start = max(now, self.link_free.get(link, 0.0))
        self.link_free[link] = start + wire
        self.link_busy[link] = self.link_busy.get(link, 0.0) + wire
        return start + wire + latency

    def _finish(self) -> float:
        """Exchanges of gradients, then the updates of each device's stages."""
        begin = list(self.ends)
        rounds: dict[int, list[Exchange]] = {}
        for exchange in self.times.exchanges:
            rounds.setdefault(exchange.round, []).append(exchange)
        for turn in sorted(rounds):
            made = list(begin)
            for exchange in sorted(rounds[turn], key=lambda e: (made[e.source], e.source, e.target)):
                link = (self.times.device[exchange.source], self.times.device[exchange.target])
                when = self._carry(link, exchange.transfer.latency, exchange.transfer.wire, made[exchange.source])
                begin[exchange.target] = max(begin[exchange.target], when)
        last = max(begin, default=0.0)
        for device, stages in self.stages.items():
            update = sum(self.times.update[stage] for stage in stages) if self.times.update else 0.0
            self.busy[device] += update
            last = max(last, max(begin[stage] for stage in stages) + update)
        return last
