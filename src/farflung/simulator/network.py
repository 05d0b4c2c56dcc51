# ruff: noqa: PLR1730 - max() would cost a call for each frame; the loop is hot
"""What becomes of a frame: queue, encoding, window, wire, latency, decoding, acknowledgement.

``Serial``: no two links share anything, so all of that follows when the frame is posted. ``Shared``: links that leave or enter
one device (or region) share a capacity; frames under way share it max-min fairly (Bertsekas and Gallager, Data Networks,
section 6.5.2: raise all rates together, freeze those that meet a full capacity), computed anew at each beginning and end.
"""

from __future__ import annotations

import math
import random
from collections import deque
from heapq import heappush

from farflung.simulator.program import Message, Program
from farflung.simulator.settings import SimulationSettings

__all__ = ["ARRIVAL", "END", "FREE", "HOST", "NETWORK", "Event", "FrameSpan", "Serial", "Shared"]

#: Kinds of events: a value for action ``number`` of the step that begins at ``base`` arrives, that action ends, device
#: ``number`` may go on, the network's own matter ``number``, an action ends on the shared host ``number`` of version ``base``.
ARRIVAL, END, FREE, NETWORK, HOST = 0, 1, 2, 3, 4
#: (time, order among equals, kind, number, base). Arrivals come before ends of the same moment.
Event = tuple[float, int, int, int, int]
#: (link, step base, target action, bytes, posted, wire start, wire end, delivered)
FrameSpan = tuple[int, int, int, float, float, float, float, float]


class Serial:
    """Links that share nothing."""

    def __init__(self, program: Program, settings: SimulationSettings, heap: list[Event], draws: random.Random) -> None:
        count = len(program.links)
        self.heap, self.random = heap, draws
        self.rate = [link.bandwidth for link in program.links]
        self.latency = [(link.latency, link.latency_back) for link in program.links]
        self.spread, self.noted = settings.jitter.link, settings.spans
        self.busy, self.bytes = [0.0] * count, [0.0] * count
        self.frames: list[FrameSpan] = []
        self.sender_free, self.link_free, self.decoder_free = [0.0] * count, [0.0] * count, [0.0] * count
        #: when the last ``queue`` frames left the queue, and when the last ``window`` frames were acknowledged
        self.popped = [deque([0.0] * settings.queue, maxlen=settings.queue) for _ in range(count)]
        self.acknowledged = [deque([0.0] * settings.window, maxlen=settings.window) for _ in range(count)]
        self.number = 0

    def post(self, now: float, base: int, message: Message) -> float:
        """Take a frame at ``now``; the moment at which the poster may go on."""
        link, target, size, encode, decode = message
        popped, acknowledged = self.popped[link], self.acknowledged[link]
        posted = popped[0]
        if posted < now:
            posted = now
        begin = self.sender_free[link]
        if begin < posted:
            begin = posted
        popped.append(begin)
        ready = begin + encode
        if ready < acknowledged[0]:
            ready = acknowledged[0]
        self.sender_free[link] = ready
        wire = size / self.rate[link]
        if self.spread:
            wire *= math.exp(self.random.gauss(0.0, self.spread))
        start = self.link_free[link]
        if start < ready:
            start = ready
        self.link_free[link] = end = start + wire
        self.busy[link] += wire
        self.bytes[link] += size
        latency, back = self.latency[link]
        delivered = end + latency
        if delivered < self.decoder_free[link]:
            delivered = self.decoder_free[link]
        self.decoder_free[link] = delivered = delivered + decode
        acknowledged.append(delivered + back)
        if self.noted:
            self.frames.append((link, base, target, size, begin, start, end, delivered))
        self.number -= 1
        heappush(self.heap, (delivered, self.number, ARRIVAL, target, base))
        return posted

    def happen(self, now: float, number: int) -> None:
        """A serial network schedules nothing for itself."""
        raise AssertionError(f"event {number} at {now} belongs to no one")


class _Flow:
    """A frame under way."""

    __slots__ = ("base", "begin", "left", "message", "rate", "start")

    def __init__(self, message: Message, base: int, begin: float, start: float) -> None:
        self.message, self.base, self.begin, self.start = message, base, begin, start
        self.left, self.rate = message[2], 0.0


class Shared:
    """Links under common capacities. The queue's bound is not modelled here: a poster never waits."""

    def __init__(self, program: Program, settings: SimulationSettings, heap: list[Event], draws: random.Random) -> None:
        count = len(program.links)
        self.heap, self.links, self.settings, self.random = heap, program.links, settings, draws
        self.number = 0
        self.busy, self.bytes = [0.0] * count, [0.0] * count
        self.frames: list[FrameSpan] = []
        self.capacity = [rate for rate, _ in program.caps]
        self.caps_of: list[list[int]] = [[] for _ in range(count)]
        for index, (_, members) in enumerate(program.caps):
            for link in members:
                self.caps_of[link].append(index)
        self.waiting: list[deque[tuple[Message, int, float]]] = [deque() for _ in range(count)]
        self.flows: dict[int, _Flow] = {}
        self.encoder_free, self.decoder_free = [0.0] * count, [0.0] * count
        self.last, self.version = 0.0, 0
        #: what the events of kind NETWORK are about, by number
        self.later: list[tuple[str, int, tuple[Message, int, float] | None]] = []

    def post(self, now: float, base: int, message: Message) -> float:
        """Take a frame at ``now``; the moment at which the poster may go on."""
        number = message[0]
        begin = max(now, self.encoder_free[number])
        self.encoder_free[number] = ready = begin + message[3]
        self._later(ready, ("ready", number, (message, base, begin)))
        return now

    def happen(self, now: float, number: int) -> None:
        """A frame is encoded, or one has left."""
        what, number, item = self.later[number]
        if what == "ready":
            assert item is not None
            self.waiting[number].append(item)
            if number in self.flows:
                return
            self._advance(now)
            self._begin(number, now)
        elif number != self.version:
            return  # rates have changed since
        else:
            self._advance(now)
            self._finish(now)
        self._share()
        self._next(now)

    def _later(self, when: float, item: tuple[str, int, tuple[Message, int, float] | None]) -> None:
        self.number -= 1
        heappush(self.heap, (when, self.number, NETWORK, len(self.later), 0))
        self.later.append(item)

    def _begin(self, number: int, now: float) -> None:
        message, base, begin = self.waiting[number].popleft()
        flow = _Flow(message, base, begin, now)
        if self.settings.jitter.link:
            flow.left *= math.exp(self.random.gauss(0.0, self.settings.jitter.link))
        self.flows[number] = flow

    def _advance(self, now: float) -> None:
        for number, flow in self.flows.items():
            flow.left -= flow.rate * (now - self.last)
            self.busy[number] += now - self.last
        self.last = now

    def _finish(self, now: float) -> None:
        """Every flow that is (all but) through leaves; its link takes the next frame."""
        done = [n for n, flow in self.flows.items() if flow.left <= 1e-9 * flow.message[2] or flow.left <= flow.rate * 1e-12]
        for number in done:
            flow = self.flows.pop(number)
            _, target, size, _, decode = flow.message
            self.bytes[number] += size
            delivered = max(now + self.links[number].latency, self.decoder_free[number]) + decode
            self.decoder_free[number] = delivered
            if self.settings.spans:
                self.frames.append((number, flow.base, target, size, flow.begin, flow.start, now, delivered))
            self.number -= 1
            heappush(self.heap, (delivered, self.number, ARRIVAL, target, flow.base))
            if self.waiting[number]:
                self._begin(number, now)

    def _share(self) -> None:
        """Max-min fair rates of all flows, each at most its own link's."""
        room = self.capacity[:]
        load = [0] * len(room)
        open_flows = dict(self.flows)
        for number in open_flows:
            for cap in self.caps_of[number]:
                load[cap] += 1
        while open_flows:
            fair = {
                number: min([self.links[number].bandwidth, *(room[cap] / load[cap] for cap in self.caps_of[number])])
                for number in open_flows
            }
            least = min(fair.values())
            for number in [n for n, rate in fair.items() if rate <= least * (1 + 1e-12)]:
                open_flows.pop(number).rate = least
                for cap in self.caps_of[number]:
                    room[cap] = max(0.0, room[cap] - least)
                    load[cap] -= 1

    def _next(self, now: float) -> None:
        self.version += 1
        if self.flows:
            when = min(flow.left / max(flow.rate, 1e-9) for flow in self.flows.values())
            self._later(now + max(0.0, when), ("left", self.version, None))
