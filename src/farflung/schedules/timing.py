# ruff: noqa: PLR1730 - max() would cost a call for each message; the loop is hot
"""Running a schedule against a clock that is only computed: when does the step end, and what is busy how long.

A device runs one action at a time, taking among its stages' next actions one whose inputs have arrived (backwards first, then
the lower micro-batch). A directed link carries one message at a time, in the order in which they were made; its latency
delays a message but does not occupy the link. Computing and sending overlap. Cost: O(actions log actions), without the logarithm
where each device has one fixed order and each link one sender. Devices that share the cores of a host slow each other down
(``schedules.shared_host``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from farflung.errors import PlanError
from farflung.schedules.base import Action, ActionKind
from farflung.schedules.pipeline_times import (
    RANK,
    Exchange,
    Link,
    PipelineTimes,
    PreparedOrder,
    StepTimeline,
    TimedEdge,
    Transfer,
    prepare_order,
)
from farflung.schedules.shared_host import ACTION_SECONDS, SharedHost, shared_ends, transfer_work

__all__ = ["time_schedule"]

#: A step counts as longer than a limit only beyond what rounding may do.
_SLACK = 1 + 1e-9


def time_schedule(
    orders: Sequence[Sequence[Action] | PreparedOrder],
    times: PipelineTimes,
    *,
    free: bool = False,
    limit: float = math.inf,
    after: Mapping[int, float] | None = None,
) -> StepTimeline:
    """The timeline of one step; ``free``: stages take what has arrived (``schedules.as_ready``).

    Where it becomes clear that the step takes longer than ``limit`` the clock stops: ``seconds`` is then a lower bound above
    ``limit``, and links have carried what they had so far. ``after``: seconds that a step takes at least after all that a device
    computes.

    Raises:
        PlanError: the actions wait for each other forever.
    """
    clock = _Clock([order if isinstance(order, PreparedOrder) else prepare_order(order, free=free) for order in orders], times)
    return clock.run(limit, after or {})


#: Messages of one kind of action of one stage: what its numbers are shifted by at the reader, for which micro-batches, seconds
#: on the wire, latency, link (-1: both ends are on one device).
_Out = tuple[int, range, float, float, int]


class _Clock:
    """Actions are numbers: ``(stage * 3 + rank of the kind) * micro-batches + micro-batch``; the loops are hot.

    All times are seconds from the begin of the step.
    """

    def __init__(self, orders: Sequence[PreparedOrder], times: PipelineTimes) -> None:
        self.orders, self.times = orders, times
        self.split = any(order.splits for order in orders)
        self.width = width = max((order.width for order in orders), default=1)
        self.devices = {device: index for index, device in enumerate(sorted(set(times.device)))}
        self.device_of = [self.devices[device] for device in times.device]
        #: The tracks of all stages (``progress.Track``), as numbers of actions. A queue stays at least ``leads`` actions
        #: behind the queue ``partner`` (-1: it has none).
        self.queues: list[list[int]] = []
        self.leads: list[int] = []
        self.partner: list[int] = []
        #: The queues of each device.
        self.queues_of: list[list[int]] = [[] for _ in self.devices]
        for stage, order in enumerate(orders):
            first, base = len(self.queues), stage * 3 * width
            for index, track in enumerate(order.tracks):
                self.queues_of[self.device_of[stage]].append(len(self.queues))
                self.queues.append([base + rank * width + m for rank, m in track])
                self.leads.append(order.leads[index])
                self.partner.append(first + 1 - index if len(order.tracks) == 2 else -1)
        #: How many actions of each queue have begun.
        self.at = [0] * len(self.queues)
        #: devices on hosts whose cores they share
        self.sharing = {
            member
            for capacity, devices in times.hosts
            for member in self._members(devices)
            if len(self._members(devices)) > capacity
        }
        self.scale = self._scale()
        self.seconds = self._seconds()
        #: of each device: what its actions take that have not begun
        self.left = [sum(self.seconds[n] for q in queues for n in self.queues[q]) for queues in self.queues_of]
        self.busy = list(self.left)
        #: Of each action: how many of its values have not been sent, and when the last one of those sent arrives.
        self.missing = [0] * (len(orders) * 3 * width)
        self.arrived = [0.0] * len(self.missing)
        self.links: dict[Link, int] = {}
        self.outs: list[list[_Out]] = [[] for _ in range(len(orders) * 3)]
        #: by number of an action: the exchanges of which a part leaves after it; by stage: when the last part for it comes
        self.parts: dict[int, list[tuple[int, Transfer, int]]] = {}
        self.came: dict[int, float] = {}
        for edge in times.edges:
            self._edge(edge)
        for exchange in times.exchanges:
            self._parts(exchange)
        #: Of each link: when it has carried all that it was given, and how long it has carried.
        self.link_free = [0.0] * len(self.links)
        self.link_busy = [0.0] * len(self.links)
        #: When the last action of each stage ended.
        self.ends = [0.0] * len(orders)
        self.count = 0

    def _scale(self) -> Sequence[float]:
        return self.times.scale or [1.0] * self.width

    def _seconds(self) -> list[float]:
        """Seconds of every action, by number."""
        times, scale = self.times, self.scale[: self.width]
        found: list[float] = []
        for stage in range(len(self.orders)):
            weight = times.weight[stage] if self.split else 0.0
            more = ACTION_SECONDS if self.device_of[stage] in self.sharing else 0.0
            for base in (times.backward[stage] - weight, times.forward[stage], weight):
                found += [base * factor + more for factor in scale]
        return found

    def _edge(self, edge: TimedEdge) -> None:
        """The messages of an edge: those of the micro-batches that both ends have (of replicas only one has each)."""
        times, width = self.times, self.width
        both = range(width)
        if times.share:
            here, there = times.share[edge.source], times.share[edge.target]
            both = range(max(here.start, there.start), min(here.stop, there.stop))
        if not both:
            return
        ways = [(edge.source, edge.target, edge.forward, RANK[ActionKind.FORWARD])]
        if edge.backward is not None:
            ways.append((edge.target, edge.source, edge.backward, RANK[ActionKind.BACKWARD]))
        for source, target, transfer, rank in ways:
            link = self._link(self.device_of[source], self.device_of[target])
            base = (target * 3 + rank) * width
            for number in range(base + both.start, base + both.stop):
                self.missing[number] += 1
            if link >= 0 and transfer.nbytes:
                self._transfer_work((source, target), rank, both, transfer.nbytes)
            shift = (target - source) * 3 * width
            self.outs[source * 3 + rank].append((shift, both, transfer.wire, transfer.latency, link))

    def _transfer_work(self, ends: tuple[int, int], rank: int, both: range, nbytes: float) -> None:
        """On shared cores, sending and receiving count as work of the actions at both ends."""
        for stage in ends:
            if self.device_of[stage] in self.sharing:
                device = self.device_of[stage]
                for micro_batch in both:
                    work = transfer_work(nbytes * self.scale[micro_batch])
                    self.seconds[(stage * 3 + rank) * self.width + micro_batch] += work
                    self.left[device] += work
                    self.busy[device] += work

    def _parts(self, exchange: Exchange) -> None:
        """The parts of an exchange leave after the actions that make gradients of parameters."""
        kind = ActionKind.WEIGHT if self.orders[exchange.source].splits else ActionKind.BACKWARD
        base = (exchange.source * 3 + RANK[kind]) * self.width
        link = self._link(self.device_of[exchange.source], self.device_of[exchange.target])
        for m in exchange.after:
            self.parts.setdefault(base + m, []).append((exchange.target, exchange.transfer, link))

    def _link(self, source: int, target: int) -> int:
        return -1 if source == target else self.links.setdefault((source, target), len(self.links))

    def run(self, limit: float = math.inf, after: Mapping[int, float] | None = None, *, events: bool = False) -> StepTimeline:
        """``events``: as if a device had several queues."""
        alone = len(self.queues) == len(self.devices) and not events
        shared = any(len(self._members(devices)) > capacity for capacity, devices in self.times.hosts)
        bounds = [limit * _SLACK - (after or {}).get(device, 0.0) for device in self.devices]
        over = None
        if shared:
            self._sharing()
        elif alone:
            over = self._in_order(bounds)
        else:
            over = self._by_events(bounds)
        if over is None and any(at < len(queue) for queue, at in zip(self.queues, self.at, strict=True)):
            self._stuck()
        seconds = self._finish() if over is None else limit * _SLACK + over
        names = list(self.devices)
        return StepTimeline(
            seconds=seconds,
            device_busy=dict(zip(names, self.busy, strict=True)),
            link_busy={(names[a], names[b]): self.link_busy[link] for (a, b), link in self.links.items()},
        )

    def _stuck(self) -> None:
        per_stage, kinds = 3 * self.width, {rank: kind for kind, rank in RANK.items()}
        heads = {queue[at] for queue, at in zip(self.queues, self.at, strict=True) if at < len(queue)}
        left = [number for queue in self.queues for number in queue if number in heads]
        stuck = [
            str(Action(number // per_stage, kinds[number % per_stage // self.width], number % self.width)) for number in left
        ]
        raise PlanError(f"the schedule can't finish: {', '.join(stuck)} wait for each other; use the schedule gpipe or 1f1b")

    def _in_order(self, bounds: Sequence[float]) -> float | None:
        """One fixed order on each device: what comes first is known, so no events are needed."""
        missing, seconds, queues, at = self.missing, self.seconds, self.queues, self.at
        arrived, now, left = self.arrived, [0.0] * len(queues), self.left
        per_stage, waiting = 3 * self.width, list(range(len(queues)))
        while waiting:
            stage = waiting.pop()
            device = self.device_of[stage]
            queue, place, time = queues[stage], at[stage], now[stage]
            while place < len(queue) and not missing[number := queue[place]]:
                if arrived[number] > time:
                    time = arrived[number]
                    if time + left[device] > bounds[device]:
                        return time + left[device] - bounds[device]
                time += seconds[number]
                left[device] -= seconds[number]
                place += 1
                for target in self._send(number, time):
                    other = target // per_stage
                    if at[other] < len(queues[other]) and queues[other][at[other]] == target:
                        waiting.append(other)
            at[stage], now[stage] = place, time
        self.ends = now
        return None

    def _by_events(self, bounds: Sequence[float]) -> float | None:  # noqa: C901 - the hot loop; calls would cost half of it
        """One event for each action: the moment at which its device looks for the next one. What has arrived by then is known,
        since whatever arrives was sent by an action that began no later.
        """
        missing, arrived, queues, at, seconds = self.missing, self.arrived, self.queues, self.at, self.seconds
        leads, partners, per_stage, left = self.leads, self.partner, 3 * self.width, self.left
        free, idle = [0.0] * len(self.devices), [True] * len(self.devices)
        heap = [(0.0, device) for device in range(len(self.devices))]
        while heap:
            now, device = heapq.heappop(heap)
            if free[device] > now:
                continue
            best, chosen, soonest = -1, -1, math.inf
            for index in self.queues_of[device]:
                queue, place = queues[index], at[index]
                if place == len(queue) or missing[number := queue[place]]:
                    continue
                partner = partners[index]
                if partner >= 0 and at[partner] - place < leads[index]:
                    continue
                if arrived[number] > now:
                    if arrived[number] < soonest:
                        soonest = arrived[number]
                elif chosen < 0 or number % per_stage < best:  # by kind, then micro-batch, then stage
                    best, chosen = number % per_stage, index
            if chosen < 0:
                idle[device] = True
                if soonest < math.inf:
                    heapq.heappush(heap, (soonest, device))
                continue
            if now + left[device] > bounds[device]:
                return now + left[device] - bounds[device]
            number = queues[chosen][at[chosen]]
            at[chosen] += 1
            self.count += 1
            idle[device] = False
            left[device] -= seconds[number]
            free[device] = self.ends[number // per_stage] = end = now + seconds[number]
            heapq.heappush(heap, (end, device))
            for target in self._send(number, end):
                other = self.device_of[target // per_stage]
                if idle[other]:
                    heapq.heappush(heap, (arrived[target], other))
        return None

    def _members(self, devices: Sequence[int]) -> list[int]:
        """Those of ``devices`` that compute, as they are numbered here."""
        return [self.devices[device] for device in devices if device in self.devices]

    def _hosts(self) -> tuple[list[SharedHost], list[int]]:
        """The hosts, and by device the index of its own; who shares with nobody has one to itself."""
        hosts, host_of = [SharedHost() for _ in self.devices], list(range(len(self.devices)))
        for capacity, devices in self.times.hosts:
            for device in self._members(devices):
                host_of[device] = len(hosts)
            hosts.append(SharedHost(capacity))
        return hosts, host_of

    def _sharing(self) -> None:
        """As ``_by_events``, with ends that are known only when they come, since other devices of the host may begin before."""
        seconds, per_stage = self.seconds, 3 * self.width
        hosts, host_of = self._hosts()
        running, began = [-1] * len(self.devices), [0.0] * len(self.devices)
        self.busy = [0.0] * len(self.devices)
        #: (time, 0 for an end on a host and 1 for a device that looks for its next action, which one, version of the host)
        heap = [(0.0, 1, device, 0) for device in range(len(self.devices))]
        while heap:
            now, looks, which, version = heapq.heappop(heap)
            if looks and running[which] >= 0:
                continue
            if not looks and version != hosts[which].version:
                continue
            changed = which
            if looks:
                number, soonest = self._choose(which, now)
                if number < 0:
                    if soonest < math.inf:
                        heapq.heappush(heap, (soonest, 1, which, 0))
                    continue
                changed = host_of[which]
                hosts[changed].start(now, which, seconds[number])
                running[which], began[which] = number, now
            else:
                for device in hosts[which].end(now):
                    number, running[device] = running[device], -1
                    self.busy[device] += now - began[device]
                    self.ends[number // per_stage] = now
                    for target in self._send(number, now):
                        heapq.heappush(heap, (self.arrived[target], 1, self.device_of[target // per_stage], 0))
                    heapq.heappush(heap, (now, 1, device, 0))
            end = hosts[changed].next_end()
            if end < math.inf:
                heapq.heappush(heap, (end, 0, changed, hosts[changed].version))

    def _choose(self, device: int, now: float) -> tuple[int, float]:
        """The action that ``device`` begins at ``now`` (-1: none), and when the next value arrives that it knows of."""
        best, chosen, soonest = -1, -1, math.inf
        for index in self.queues_of[device]:
            queue, place, partner = self.queues[index], self.at[index], self.partner[index]
            if place == len(queue) or self.missing[queue[place]]:
                continue
            if partner >= 0 and self.at[partner] - place < self.leads[index]:
                continue
            rank = queue[place] % (3 * self.width)
            if self.arrived[queue[place]] > now:
                soonest = min(soonest, self.arrived[queue[place]])
            elif chosen < 0 or rank < best:
                best, chosen = rank, index
        if chosen < 0:
            return -1, soonest
        self.at[chosen] += 1
        return self.queues[chosen][self.at[chosen] - 1], now

    def _send(self, number: int, now: float) -> list[int]:
        """Messages leave at ``now``; the actions whose last value is under way with them."""
        kind, m = divmod(number, self.width)
        missing, arrived, complete = self.missing, self.arrived, []
        for shift, both, wire, latency, link in self.outs[kind]:
            if m in both:
                target = number + shift
                when = now if link < 0 else self._carry(link, latency, wire * self.scale[m], now)
                if when > arrived[target]:
                    arrived[target] = when
                missing[target] -= 1
                if not missing[target]:
                    complete.append(target)
        if number in self.parts:
            for stage, transfer, link in self.parts[number]:
                when = now if link < 0 else self._carry(link, transfer.latency, transfer.wire, now)
                self.came[stage] = max(when, self.came.get(stage, 0.0))
        return complete

    def _carry(self, link: int, latency: float, wire: float, now: float) -> float:
        start = self.link_free[link]
        if start < now:
            start = now
        self.link_free[link] = end = start + wire
        self.link_busy[link] += wire
        return end + latency

    def _finish(self) -> float:
        """Exchanges of gradients, then the updates of each device's stages."""
        begin = list(self.ends)
        rounds: dict[int, list[Exchange]] = {}
        for exchange in self.times.exchanges:
            rounds.setdefault(exchange.round, []).append(exchange)
        for turn in sorted(rounds):
            made = list(begin)
            for stage in {exchange.target for exchange in rounds[turn] if exchange.after}:
                begin[stage] = max(begin[stage], self.came[stage])
            for exchange in sorted(rounds[turn], key=lambda e: (made[e.source], e.source, e.target)):
                if exchange.after:
                    continue
                link, when = self._link(self.device_of[exchange.source], self.device_of[exchange.target]), made[exchange.source]
                if link >= 0:
                    if link == len(self.link_free):
                        self.link_free.append(0.0)
                        self.link_busy.append(0.0)
                    when = self._carry(link, exchange.transfer.latency, exchange.transfer.wire, when)
                begin[exchange.target] = max(begin[exchange.target], when)
        last = max(begin, default=0.0)
        update = self.times.update or [0.0] * len(begin)
        spent = [0.0] * len(self.devices)
        ready = [0.0] * len(self.devices)
        for stage, device in enumerate(self.device_of):
            spent[device] += update[stage]
            ready[device] = max(ready[device], begin[stage])
        self.busy = [busy + more for busy, more in zip(self.busy, spent, strict=True)]
        ends = [when + more for when, more in zip(ready, spent, strict=True)]
        for capacity, devices in self.times.hosts:
            members = self._members(devices)
            ends += shared_ends(capacity, [ready[i] for i in members], [spent[i] for i in members])
        return max([last, *ends])
