"""The event loop: a program run in virtual time, under the rules of the runtime.

Source of the rules: ``step.pipeline`` (one computing thread per device takes, among its stages' next actions, one whose
inputs are here, backwards first, then early stages) and ``step.transfer.outbox`` (one sending thread per peer encodes; a
full queue holds the computing thread, a full window the sending thread; one thread per peer decodes). A directed link carries
one frame at a time; latency delays a frame without occupying the link. What a frame will meet on its own link is known
when it is posted, so a frame is one event, its arrival; where links share a capacity, ``network.Shared`` adds more.
Cost: O(log n) per event, a few microseconds (``benchmarks simulator``); n = actions + frames. Columns instead of objects,
and calls left out where the loop is hot, are for that.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from heapq import heappop, heappush

from farflung.errors import PlanError
from farflung.schedules import SharedHost
from farflung.simulator.network import ARRIVAL, END, FREE, HOST, NETWORK, Event, FrameSpan, Serial, Shared
from farflung.simulator.program import Program
from farflung.simulator.settings import SimulationSettings

__all__ = ["Machine", "Outcome"]

#: (device, action, step, start, seconds)
Span = tuple[int, int, int, float, float]


@dataclass(kw_only=True)
class Outcome:
    """What happened: busy seconds by device and link, ends of the steps, events handled, spans, peaks of memory."""

    ends: list[float]
    busy: list[float]
    link_busy: list[float]
    link_bytes: list[float]
    events: int
    spans: list[Span] = field(default_factory=list)
    frames: list[FrameSpan] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    memory: list[tuple[float, int, float]] = field(default_factory=list)


class Machine:
    """One run of a program."""

    def __init__(self, program: Program, settings: SimulationSettings) -> None:
        devices = range(len(program.devices))
        self.program, self.settings, self.steps = program, settings, settings.steps
        self.heap: list[Event] = []
        self.random = random.Random(settings.seed)
        self.network: Serial | Shared = (Shared if program.caps else Serial)(program, settings, self.heap, self.random)
        # of each action of a step, by its number
        self.device = [action.device for action in program.actions]
        self.seconds = [action.seconds for action in program.actions]
        self.rank = [action.rank for action in program.actions]
        self.local = [tuple(action.local) for action in program.actions]
        self.sends = [tuple(action.sends) for action in program.actions]
        self.takes = [action.takes for action in program.actions]
        self.gives = [action.gives for action in program.actions]
        self.count = len(program.actions)
        #: Values that an action still waits for, by step base + number of the action: the base of step s is s * ``count``.
        self.missing = [action.needed for action in program.actions] * settings.steps
        #: of the step that each device is in: its number, the number of its first action, how far each stage and the tail are
        self.step = [0] * len(program.devices)
        self.base = [0] * len(program.devices)
        self.at = [[0] * len(tracks) for tracks in program.tracks]
        self.tail_at = [0] * len(program.devices)
        #: of each device: the actions of its stages that have not begun in this step (then its tail follows), whether it waits
        self.left = [self._work(device) for device in devices]
        self.idle = [True] * len(program.devices)
        self.last = [tail[-1] for tail in program.tail]
        #: seconds: when each step ended, and how long each device has computed
        self.ends = [0.0] * settings.steps
        self.busy = [0.0] * len(program.devices)
        self.spans: list[Span] = []
        #: bytes of values that each device has now, the most that it had, and (time, device, bytes) of each change
        self.now_bytes = [0.0] * len(program.devices)
        self.peak = [0.0] * len(program.devices)
        self.memory: list[tuple[float, int, float]] = []
        #: orders events of the same time: the one that was posted first comes first
        self.number = 0
        self.noted = settings.spans
        self.spread = settings.jitter.compute
        self.hosts = [SharedHost(capacity) for capacity, _ in program.hosts]
        #: the shared host of a device
        self.host_of = {device: index for index, (_, own) in enumerate(program.hosts) for device in own}
        #: what a device on a shared host computes: action, step base, and when it began
        self.running: dict[int, tuple[int, int, float]] = {}

    def _work(self, device: int) -> int:
        return sum(len(track) for track in self.program.tracks[device])

    def run(self) -> Outcome:
        """Run all steps.

        Raises:
            PlanError: devices wait for each other forever.
        """
        for device in range(len(self.program.devices)):
            self._start(device, 0.0)
        events = self._loop()
        stuck = [self.program.devices[d] for d, step in enumerate(self.step) if step < self.steps]
        if stuck:
            names = ", ".join(stuck[:8])
            raise PlanError(f"the plan can't finish: {names} wait for values that never come; use the schedule gpipe or 1f1b")
        network = self.network
        return Outcome(
            ends=self.ends,
            busy=self.busy,
            link_busy=network.busy,
            link_bytes=network.bytes,
            events=events,
            spans=self.spans,
            frames=network.frames,
            peak=self.peak,
            memory=self.memory,
        )

    def _loop(self) -> int:
        heap, missing, idle, base_of = self.heap, self.missing, self.idle, self.base
        device_of, start, end, happen = self.device, self._start, self._end, self.network.happen
        events = 0
        while heap:
            now, _, kind, number, base = heappop(heap)
            events += 1
            if kind == ARRIVAL:
                left = missing[base + number] - 1
                missing[base + number] = left
                if not left:
                    device = device_of[number]
                    if idle[device] and base_of[device] == base:
                        start(device, now)
            elif kind == END:
                end(number, base, now)
            elif kind == FREE:
                idle[number] = True
                start(number, now)
            elif kind == NETWORK:
                happen(now, number)
            else:
                self._end_on_host(number, base, now)
        return events

    def _start(self, device: int, now: float) -> None:
        """Start the best action whose inputs are here, if there is one."""
        base = self.base[device]
        number = self._next_of_stages(device, base) if self.left[device] else self._next_of_tail(device, base)
        if number < 0:
            return
        seconds = self.seconds[number]
        if self.spread:
            seconds *= math.exp(self.random.gauss(0.0, self.spread))
        self.idle[device] = False
        host = self.host_of.get(device, -1) if self.host_of else -1
        if host < 0:
            self.busy[device] += seconds
        taken = self.takes[number]
        if taken:
            now_bytes = self.now_bytes[device] + taken
            self.now_bytes[device] = now_bytes
            if now_bytes > self.peak[device]:  # noqa: PLR1730 - max() would cost a call per event
                self.peak[device] = now_bytes
        if self.noted:
            self.memory.append((now, device, self.now_bytes[device]))
            if host < 0:
                self.spans.append((device, number, self.step[device], now, seconds))
        if host >= 0:
            self.running[device] = number, base, now
            self.hosts[host].start(now, device, seconds)
            self._next_on_host(host)
            return
        self.number += 1
        heappush(self.heap, (now + seconds, self.number, END, number, base))

    def _next_on_host(self, host: int) -> None:
        """Schedule the end of the action that ends first on a shared host; who begins or ends before makes it void."""
        end = self.hosts[host].next_end()
        if end < math.inf:
            self.number += 1
            heappush(self.heap, (end, self.number, HOST, host, self.hosts[host].version))

    def _end_on_host(self, host: int, version: int, now: float) -> None:
        """Actions end on a shared host, unless others have begun or ended there since."""
        if version != self.hosts[host].version:
            return
        ended = [(device, *self.running.pop(device)) for device in self.hosts[host].end(now)]
        for device, number, base, began in ended:
            self.busy[device] += now - began
            if self.noted:
                self.spans.append((device, number, self.step[device], began, now - began))
            self._end(number, base, now)
        self._next_on_host(host)

    def _next_of_stages(self, device: int, base: int) -> int:
        missing, at, tracks, gates = self.missing, self.at[device], self.program.tracks[device], self.program.gates[device]
        if len(tracks) == 1:
            number = tracks[0][at[0]]
            if missing[base + number]:
                return -1
            at[0] += 1
            self.left[device] -= 1
            return number
        best, chosen, least = -1, 0, 1 << 62
        rank = self.rank
        for index, track in enumerate(tracks):
            place = at[index]
            if place < len(track):
                number = track[place]
                gate = gates[index]
                shut = gate is not None and at[gate[0]] - place < gate[1]
                if not shut and rank[number] < least and not missing[base + number]:
                    best, least, chosen = number, rank[number], index
        if best >= 0:
            at[chosen] += 1
            self.left[device] -= 1
        return best

    def _next_of_tail(self, device: int, base: int) -> int:
        tail, place = self.program.tail[device], self.tail_at[device]
        if self.step[device] == self.steps or place == len(tail) or self.missing[base + tail[place]]:
            return -1
        self.tail_at[device] += 1
        return tail[place]

    def _end(self, number: int, base: int, now: float) -> None:
        """Results go to their readers; then the device goes on, once its frames have found room in the queues."""
        device = self.device[number]
        given = self.gives[number]
        if given:
            self.now_bytes[device] -= given
            if self.noted:
                self.memory.append((now, device, self.now_bytes[device]))
        for target in self.local[number]:
            self.missing[base + target] -= 1
        free = now
        for message in self.sends[number]:
            free = self.network.post(free, base, message)
        if number == self.last[device]:
            self._next_step(device, now)
        if free > now:
            self.number += 1
            heappush(self.heap, (free, self.number, FREE, device, 0))
            return
        self.idle[device] = True
        self._start(device, now)

    def _next_step(self, device: int, now: float) -> None:
        step = self.step[device]
        self.ends[step] = max(self.ends[step], now)
        self.step[device] = step + 1
        self.base[device] = (step + 1) * self.count
        self.tail_at[device] = 0
        if step + 1 < self.steps:
            self.at[device] = [0] * len(self.program.tracks[device])
            self.left[device] = self._work(device)
