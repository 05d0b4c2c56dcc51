"""Seconds that a step takes at least, whatever waits for what: what the search asks before it runs a layout against the clock.

A micro-batch passes through all stages and comes back; then gradients are exchanged. So what is busy longest (a device, a link)
is busy that long between the first micro-batch's way to it and what follows the last one; a stage that keeps k micro-batches at
once takes the next one only when one of them has been to the end and back; parts of a stage's gradients leave one after the
other. All ways are the fastest of the smallest micro-batch. Cost: linear in the copies of stages, the edges and the exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farflung.schedules import PipelineTimes

__all__ = ["Bounds", "Copy"]

_LONG = 1e30
#: What rounding may add to a sum.
_ROUNDING = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of ``stage``: micro-batches that it keeps at once, and whether its order has W actions."""

    stage: int
    flying: int
    splits: bool


class Bounds:
    """Of a chain of stages whose copies are ``times``' stages; edges join neighbours.

    By stage: ``first`` seconds from the beginning until a micro-batch is there; ``trip`` from there to the end and back, its own
    passes included; ``rest``: what follows its last backward. By copy: ``end``, what follows all that it computes; ``back``, what
    follows its last backward.
    """

    def __init__(self, times: PipelineTimes, copies: Sequence[Copy]) -> None:
        self.times, self.copies = times, copies
        self.scale = min(times.scale)
        self.even = self.scale == max(times.scale)
        self.passes = [
            (self.scale * forward, self.scale * (backward - weight))
            for forward, backward, weight in zip(times.forward, times.backward, times.weight, strict=True)
        ]
        self.later: dict[int, list[float]] = {}
        self.end = self._ends()
        self._ways()
        self.units: dict[int, int] = {}
        for device in times.device:
            self.units[device] = self.units.get(device, 0) + 1

    def seconds(self) -> float:
        """No step is shorter."""
        return _ROUNDING * max((*self._devices(), *self._links(), *self._turns(), *self._parts()))

    def after(self) -> dict[int, float]:
        """Seconds that follow all that a device computes (``schedules.time_schedule``)."""
        found = dict.fromkeys(self.units, 0.0)
        for number, device in enumerate(self.times.device):
            alone = self.units[device] == 1
            found[device] += self._follow(number) if alone else self.times.update[number]
        return found

    def _follow(self, number: int) -> float:
        return self.end[number] if self.copies[number].splits else self.back[number]

    def _ends(self) -> list[float]:
        """A copy updates, or tells others its gradients, who tell others and update; the last part leaves at its end."""
        times = self.times
        follow = list(times.update)
        for turn in sorted({exchange.round for exchange in times.exchanges}, reverse=True):
            self.later[turn] = after = list(follow)
            for exchange in times.exchanges:
                last = times.share[exchange.source].stop - 1
                if exchange.round == turn and (not exchange.after or exchange.after[-1] == last):
                    transfer = exchange.transfer
                    seconds = transfer.latency + transfer.wire + after[exchange.target]
                    follow[exchange.source] = max(follow[exchange.source], seconds)
        return follow

    def _ways(self) -> None:
        times, copies = self.times, self.copies
        count = max(copy.stage for copy in copies) + 1
        ahead, back, into, out, rest = ([_LONG] * count for _ in range(5))
        for copy, (forward, backward), end in zip(copies, self.passes, self.end, strict=True):
            stage = copy.stage
            ahead[stage], back[stage] = min(ahead[stage], forward), min(back[stage], backward)
            rest[stage] = min(rest[stage], end)
        for edge in times.edges:
            target = copies[edge.target].stage
            into[target] = min(into[target], edge.forward.latency + self.scale * edge.forward.wire)
            if edge.backward is not None:
                out[target] = min(out[target], edge.backward.latency + self.scale * edge.backward.wire)
        first, trip, home = [0.0] * count, [a + b for a, b in zip(ahead, back, strict=True)], [0.0] * count
        for stage in range(1, count):
            if into[stage] < _LONG:
                first[stage] = first[stage - 1] + ahead[stage - 1] + into[stage]
            if out[stage] < _LONG:
                home[stage] = out[stage] + back[stage - 1] + rest[stage - 1]
                rest[stage] = max(rest[stage], home[stage])
        for stage in reversed(range(1, count)):
            if into[stage] < _LONG and out[stage] < _LONG:
                trip[stage - 1] += into[stage] + trip[stage] + out[stage]
        self.ahead, self.pass_back, self.first, self.trip, self.rest = ahead, back, first, trip, rest
        self.back = [max(end, home[copy.stage]) for copy, end in zip(copies, self.end, strict=True)]

    def _load(self, start: int, stop: int) -> float:
        """Micro-batches, in sizes of that which the seconds are for."""
        return (stop - start) * self.scale if self.even else sum(self.times.scale[start:stop])

    def _devices(self) -> Iterator[float]:
        """A device with one copy waits for its first micro-batch, and something follows its last action."""
        times = self.times
        busy = dict.fromkeys(self.units, 0.0)
        for number, device in enumerate(times.device):
            share = times.share[number]
            seconds = self._load(share.start, share.stop) * (times.forward[number] + times.backward[number])
            alone = self.units[device] == 1
            more = self.first[self.copies[number].stage] + self._follow(number) if alone else times.update[number]
            busy[device] += seconds + more
        yield from busy.values()

    def _links(self) -> Iterator[float]:
        """A link carries what both ends share, after the first micro-batch has come to it; the last one goes on from there."""
        times, copies = self.times, self.copies
        for edge in times.edges:
            here, there = times.share[edge.source], times.share[edge.target]
            load = self._load(max(here.start, there.start), min(here.stop, there.stop))
            a, b = copies[edge.source].stage, copies[edge.target].stage
            begin = self.first[a] + self.ahead[a] + edge.forward.latency
            yield begin + load * edge.forward.wire + self.trip[b] + self.rest[b]
            if edge.backward is not None:
                begin = self.first[b] + self.trip[b] + edge.backward.latency
                yield begin + load * edge.backward.wire + self.pass_back[a] + self.rest[a]

    def _turns(self) -> Iterator[float]:
        """Of k micro-batches in flight the first is back before number k comes; backwards after the last turn add up."""
        for number, copy in enumerate(self.copies):
            stage, (ahead, back) = copy.stage, self.passes[number]
            count = len(self.times.share[number])
            turns = -(-count // copy.flying)
            trip = self.trip[stage] - self.ahead[stage] - self.pass_back[stage] + ahead + back
            yield self.first[stage] + turns * trip + (count - 1 - (turns - 1) * copy.flying) * back + self.back[number]

    def _parts(self) -> Iterator[float]:
        """Parts of gradients leave after the micro-batches whose sums they are, the first one after that has been to the end."""
        for exchange in self.times.exchanges:
            if exchange.after:
                stage, transfer = self.copies[exchange.source].stage, exchange.transfer
                before = exchange.after[0] - self.times.share[exchange.source].start
                begin = self.first[stage] + self.trip[stage] + before * self.passes[exchange.source][1]
                follow = self.later[exchange.round][exchange.target]
                yield begin + len(exchange.after) * transfer.wire + transfer.latency + follow
