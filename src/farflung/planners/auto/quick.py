"""What a layout costs, roughly and in about a millisecond: what the search looks at before it asks the judge.

The same timed dry-run as in the estimate (``schedules.time_schedule``), on numbers that come from prefix sums instead of a cut
graph. What differs from the estimate: values that skip stages travel along the chain, a message takes its codec's typical
factor, and of a stage's exchange of gradients only the slowest way into each replica counts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from farflung.cost import ALLOCATOR, MemorySettings, cast_factor, serving_bytes, stage_memory
from farflung.errors import InputError, PlanError
from farflung.job.spec import JobSpec
from farflung.optim import state_factor, update_flops
from farflung.plan import codec_of, wire_factor_of
from farflung.plan.buckets import BUCKET_BYTES
from farflung.plan.codec_choice.exchange_codec import job_strategy
from farflung.plan.estimation.stage_memory import sync_copies
from farflung.plan.traffic import sync_bytes
from farflung.planners.auto.bounds import Bounds, Copy
from farflung.planners.auto.layout import Context, Layout
from farflung.planners.finish import Problem
from farflung.schedules import (
    Exchange,
    Part,
    PipelineTimes,
    TimedEdge,
    Transfer,
    part_of,
    time_schedule,
)

__all__ = ["Quick"]

_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class _Span:
    """A run of operators on one kind of device, for one micro-batch size: FLOPs, operators that run, bytes by how they grow.

    ``convolutions``: the part of convolutions in ``forward``, ``backward`` and ``weight``.
    """

    forward: float
    backward: float
    weight: float
    forward_calls: float
    backward_calls: float
    convolutions: tuple[float, float, float]
    always: float
    saved: float
    received: float
    sent: float
    extra: float
    update: float
    states: float
    gradients: float

    def memory(self, flying: int, recompute: bool) -> float:
        """Bytes with ``flying`` micro-batches in flight."""
        if recompute:
            passing = self.saved + flying * self.received + self.sent
        else:
            passing = flying * (self.saved + self.received + self.sent)
        return self.always + ALLOCATOR * max(passing + self.extra, self.update)


@dataclass(slots=True)
class _Unit:
    """A copy of a stage on a device, with the micro-batches that it computes."""

    stage: int
    device: int
    first: int
    end: int
    part: Part
    span: _Span
    memory: tuple[float, float]
    recompute: bool = False


class Quick:
    """Prices layouts of one context. What repeats between layouts is kept."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.topology = context.topology
        self.devices = context.topology.devices
        self._spans: dict[tuple[str, int, int, float], _Span] = {}
        graph = context.problem.graph
        self._updates = sorted(graph.position[value.op] for _, value in graph.state_updates)
        #: what was found for layouts of interchangeable devices, and the limit above which it is only a lower bound
        self._prices: dict[tuple[object, ...], tuple[float, float]] = {}
        self._factors: dict[tuple[float, tuple[int, ...]], float] = {}

    def seconds(self, layout: Layout, limit: float = _INFINITE) -> float:
        """Seconds of a step (infinite: it does not fit, or there is none such); a lower bound where that is above ``limit``."""
        key = (self.context.like(layout.groups), layout.cuts, layout.schedule, layout.sizes, layout.ratio, layout.sync)
        known = self._prices.get(key)
        if known is not None and (known[0] <= known[1] or known[0] > limit):
            return known[0]
        price = self._seconds(layout, limit)
        self._prices[key] = price, limit
        return price

    def _seconds(self, layout: Layout, limit: float) -> float:
        try:
            problem = self.context.problem_of(layout)
            units = self.units(layout, problem)
        except (PlanError, InputError):
            return _INFINITE
        if not self._fits(units, problem.job):
            return _INFINITE
        times = self._times(layout, problem, units)
        bounds = Bounds(times, [Copy(unit.stage, unit.part.in_flight, unit.part.prepared.splits) for unit in units])
        least = bounds.seconds()
        if least > limit:
            return least
        try:
            return time_schedule([unit.part.prepared for unit in units], times, limit=limit, after=bounds.after()).seconds
        except PlanError:
            return _INFINITE

    # -- stages -------------------------------------------------------------------------------------------------------

    def units(self, layout: Layout, problem: Problem) -> list[_Unit]:
        """Return the stages of each copy with their devices and memory."""
        count, job = len(layout.sizes), problem.job
        exact = self.context.exact(layout)
        if not exact and len({len(group) for group in layout.groups}) > 1:
            raise PlanError("replicas that train alone are whole pipelines")
        found = []
        for stage, (group, (start, stop)) in enumerate(zip(layout.groups, pairwise(layout.cuts), strict=True)):
            wide = len(group) > 1
            if wide and bisect_right(self._updates, stop - 1) > bisect_right(self._updates, start - 1):
                raise PlanError("a stage that updates a state in its forward can't have replicas")
            shares = self.context.shares(layout, group)
            most = max(end - first for first, end in shares) if job.plan.helpers else 0
            for device, (first, end) in zip(group, shares, strict=True):
                part = part_of(layout.schedule, len(layout.groups), count, stage, (first, end))
                span = self._span(problem, self.devices[device].kind, start, stop)
                extra = self._exchange_bytes(span, job, len(group), first, end) if wide else 0.0
                if most:
                    states = span.states * (1 + job.optimizer.delayed)
                    extra += serving_bytes(most, states, span.gradients, span.received, span.sent)
                memory = (span.memory(part.in_flight, False) + extra, span.memory(part.in_flight, True) + extra)
                found.append(_Unit(stage, device, first, end, part, span, memory))
        return found

    def _span(self, problem: Problem, kind: str, start: int, stop: int) -> _Span:
        part = problem.tables.part
        key = (kind, start, stop, part)
        if key not in self._spans:
            cost, job = problem.tables.table(kind), problem.job
            dense = cost.crossing_forward
            received, sent = dense[[start]], dense[[stop]]
            settings = MemorySettings(
                optimizer=state_factor(job.optimizer, problem.graph),
                casts=cast_factor(job.precision),
                offload=job.plan.offload == "optimizer",
            )
            memory = stage_memory(cost, start, [stop], settings, received, sent)
            self._spans[key] = _Span(
                forward=float(cost.forward_sum[stop] - cost.forward_sum[start]),
                backward=float(cost.backward_sum[stop] - cost.backward_sum[start]),
                weight=float(cost.weight[start:stop].sum()),
                forward_calls=float(cost.forward_calls_sum[stop] - cost.forward_calls_sum[start]),
                backward_calls=float(cost.backward_calls_sum[stop] - cost.backward_calls_sum[start]),
                convolutions=(
                    float(cost.forward_convolution_sum[stop] - cost.forward_convolution_sum[start]),
                    float(cost.backward_convolution_sum[stop] - cost.backward_convolution_sum[start]),
                    float((cost.weight * cost.convolution)[start:stop].sum()),
                ),
                always=float(memory.parameters[0] + memory.gradients[0] + memory.optimizer[0]),
                saved=float(memory.activations[0] - received[0] - sent[0]),
                received=float(received[0]),
                sent=float(sent[0]),
                extra=float(memory.workspace[0] + memory.messages[0]),
                update=float(memory.update[0]),
                states=float(memory.parameters[0]),
                gradients=float(memory.gradients[0]),
            )
        return self._spans[key]

    def _exchange_bytes(self, span: _Span, job: JobSpec, count: int, first: int, end: int) -> float:
        """Bytes that exchanging gradients takes (see ``plan.estimation.estimate.exchange_memory``)."""
        if job.sync.strategy != "exact":
            return span.gradients * sync_copies(job_strategy(job).traits, count)
        home_end = end if first == 0 else first
        others = sum(virtual > home_end for virtual in job.virtual_ends)
        return span.gradients * (1.0 + others * max(_served(span.gradients, count)))

    def _fits(self, units: Sequence[_Unit], job: JobSpec) -> bool:
        """Whether all devices hold what is on them; decides which stages recompute, as ``finish`` does."""
        wish = job.plan.recompute
        held: dict[int, list[_Unit]] = {}
        for unit in units:
            unit.recompute = wish == "always"
            held.setdefault(unit.device, []).append(unit)
        chosen: set[int] = set()
        for device, own in held.items():
            limit = float(self.devices[device].memory)
            if wish == "auto":
                for unit in sorted(own, key=lambda unit: unit.memory[1] - unit.memory[0]):
                    saves = unit.memory[0] > unit.memory[1] or len(own) > 1
                    if saves and unit.stage not in chosen and _held(own, chosen) > limit:
                        chosen.add(unit.stage)
            if _held(own, chosen) > limit:
                return False
        for unit in units:
            unit.recompute = unit.recompute or unit.stage in chosen
        return True

    # -- time ---------------------------------------------------------------------------------------------------------

    def _times(self, layout: Layout, problem: Problem, units: Sequence[_Unit]) -> PipelineTimes:
        forward, backward, weight, update = [], [], [], []
        rate = update_flops(problem.job.optimizer, problem.graph) / 4.0
        factor = state_factor(problem.job.optimizer, problem.graph)
        for unit in units:
            span, device = unit.span, self.devices[unit.device]
            speed, overhead = float(device.achieved), float(device.overhead)
            parts = zip((span.forward, span.backward, span.weight), span.convolutions, strict=True)
            ahead, back, late = (device.work(*part) / speed for part in parts)
            ahead += span.forward_calls * overhead
            forward.append(ahead)
            backward.append(back + span.backward_calls * overhead + (ahead if unit.recompute else 0.0))
            weight.append(late)
            on_disk = 0.0
            if device.offload_rate and problem.job.plan.offload == "optimizer":
                on_disk = 2.0 * factor * span.gradients / device.offload_rate
            update.append(max(span.gradients * rate / speed, on_disk))
        largest = max(layout.sizes)
        return PipelineTimes(
            forward=forward,
            backward=backward,
            device=[unit.device for unit in units],
            edges=self.edges(layout, problem, units),
            exchanges=self._exchanges(layout, problem.job, units),
            update=update,
            weight=weight,
            scale=[size / largest for size in layout.sizes],
            share=[range(unit.first, unit.end) for unit in units],
            hosts=self.topology.hosts,
        )

    def edges(self, layout: Layout, problem: Problem, units: Sequence[_Unit]) -> list[TimedEdge]:
        """Return the transfers between stages, each over the link of the devices that it joins."""
        cost, codec = problem.cost, problem.job.codec
        factor = 1.0 if codec.name == "adatopk" else self._factor(problem.job)
        slowest = 0.0
        found: list[tuple[int, int, float, float, float, float]] = []
        by_stage: list[list[int]] = [[] for _ in layout.groups]
        for number, unit in enumerate(units):
            by_stage[unit.stage].append(number)
        alpha, beta = self.topology.alpha, self.topology.beta
        for stage, cut in enumerate(layout.cuts[1:-1]):
            ahead, back = float(cost.crossing_forward[cut]) * factor, float(cost.crossing_backward[cut]) * factor
            for a in by_stage[stage]:
                for b in by_stage[stage + 1]:
                    i, j = units[a].device, units[b].device
                    if i != j and units[a].first < units[b].end and units[b].first < units[a].end:
                        forth, home = ahead / float(beta[i, j]), back / float(beta[j, i])
                        slowest = max(slowest, float(alpha[i, j]) + forth + float(alpha[j, i]) + home)
                        found.append((a, b, float(alpha[i, j]), forth, float(alpha[j, i]), home if back else -1.0))
                    elif i == j:
                        found.append((a, b, 0.0, 0.0, 0.0, 0.0 if back else -1.0))
        limit = slowest / codec.ratio if codec.name == "adatopk" else _INFINITE
        edges = []
        for a, b, late, forth, late_back, home in found:
            # equation (7): links that take longer send in as long as the slowest
            near = min(1.0, limit / (forth + max(home, 0.0) + 1e-30))
            i, j = units[a].device, units[b].device
            size, size_back = (
                (0.0, 0.0) if i == j else (forth * near * float(beta[i, j]), max(home, 0.0) * near * float(beta[j, i]))
            )
            backward = None if home < 0 else Transfer(late_back, home * near, size_back)
            edges.append(TimedEdge(source=a, target=b, forward=Transfer(late, forth * near, size), backward=backward))
        return edges

    def _factor(self, job: JobSpec) -> float:
        key = (job.codec.ratio, job.micro_batch_sizes)
        if key not in self._factors:
            self._factors[key] = wire_factor_of(codec_of(job))
        return self._factors[key]

    def _exchanges(self, layout: Layout, job: JobSpec, units: Sequence[_Unit]) -> list[Exchange]:
        copies: dict[int, list[int]] = {}
        for number, unit in enumerate(units):
            copies.setdefault(unit.stage, []).append(number)
        found = []
        rounds = (0, 1) if self.context.exact(layout) else (0,)
        for held in copies.values():
            if len(held) < 2:
                continue
            each = units[held[0]].span.gradients
            if job.sync.strategy == "exact" and job.sync.order == "job":
                found += self._parts(held, units, job.virtual_ends, each)
                continue
            if len(rounds) == 2:
                each /= len(held)
            else:
                each = sync_bytes(job_strategy(job).traits, ((round(each / 4),),), len(held))
            for target in held:
                source, transfer = max(
                    ((other, self._way(units[other].device, units[target].device, each)) for other in held if other != target),
                    key=lambda item: item[1].latency + item[1].wire,
                )
                found += [Exchange(source=source, target=target, transfer=transfer, round=turn) for turn in rounds]
        return found + self._tied_exchanges(layout, units, copies)

    def _parts(self, held: Sequence[int], units: Sequence[_Unit], virtual_ends: Sequence[int], each: float) -> list[Exchange]:
        """The exact exchange: of the parts that come to a server those count that are slowest together, and its slowest total."""
        parts = {number: [end for end in virtual_ends if units[number].first < end <= units[number].end] for number in held}
        parts[held[0]] = [units[held[0]].end]
        found = []
        for server, share in zip(held, _served(each, len(held)), strict=True):
            if not share:
                continue
            here = units[server].device
            ways = {other: self._way(units[other].device, here, each * share) for other in held if other != server}
            source = max(ways, key=lambda other: ways[other].latency + ways[other].wire * len(parts[other]))
            after = [end - 1 for end in parts[source]]
            found.append(Exchange(source=source, target=server, transfer=ways[source], round=0, after=after))
            back = {other: self._way(here, units[other].device, each * share) for other in ways}
            target = max(back, key=lambda other: back[other].latency + back[other].wire)
            found.append(Exchange(source=server, target=target, transfer=back[target], round=1))
        return found

    def _tied_exchanges(self, layout: Layout, units: Sequence[_Unit], copies: dict[int, list[int]]) -> list[Exchange]:
        sizes: dict[tuple[int, int], int] = {}
        for nbytes, uses in self.context.problem.graph.tied:
            stages = [(bisect_right(layout.cuts, position) - 1, grad) for position, grad in uses]
            readers = {stage for stage, _ in stages}
            for home in (stage for stage, grad in stages if grad):
                for other in readers - {home}:
                    sizes[home, other] = sizes.get((home, other), 0) + nbytes
        found = []
        for (home, other), nbytes in sorted(sizes.items()):
            source = copies[home][0]
            for target in copies[other]:
                transfer = self._way(units[source].device, units[target].device, nbytes)
                found.append(Exchange(source=source, target=target, transfer=transfer, round=2))
        return found

    def _way(self, source: int, target: int, nbytes: float) -> Transfer:
        if source == target:
            return Transfer(0.0, 0.0)
        return Transfer(float(self.topology.alpha[source, target]), nbytes / float(self.topology.beta[source, target]))


def _served(gradients: float, count: int) -> list[float]:
    """The part of a stage's gradients that each of ``count`` replicas serves: whole buckets (``plan.buckets``), dealt out."""
    buckets = max(1, math.ceil(gradients / BUCKET_BYTES))
    if buckets > 8 * count:
        return [1.0 / count] * count
    return [(buckets // count + (number < buckets % count)) / buckets for number in range(count)]


def _held(units: Sequence[_Unit], chosen: set[int]) -> float:
    """Bytes of one device's units, of which those of ``chosen`` stages recompute: one at a time (see ``plan.estimation``)."""
    again = [unit for unit in units if unit.recompute or unit.stage in chosen]
    held = sum(unit.memory[unit.recompute or unit.stage in chosen] for unit in units)
    if len(again) < 2:
        return held
    parts = [ALLOCATOR * (unit.span.saved + unit.span.sent) for unit in again]
    return held - sum(parts) + max(parts)
