"""Where to cut a chain for devices in a given order: a dynamic program over cut positions.

Stage j holds the positions between two candidates a < b and takes t_j(a, b) = max(compute, wire time of what enters at a,
forward and backward), infinite where memory does not suffice. First the smallest possible pace B = max_j t_j is found, then,
for a few limits from B upwards, the smallest total time (compute, transfers, latencies) of plans whose pace stays under the
limit; the best of ``total + (micro_batches - 1) * pace`` wins, where the pace counts the stalls that the schedule's limit on
micro-batches in flight causes on long ways. Values that skip stages count at every cut they cross.
Stages that do not fit as they are may recompute (at the price of one more forward). Cost: O(devices * candidates^2) per limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from farflung.cluster.device import DeviceKind
from farflung.cost import ALLOCATOR, MemorySettings, OpCost, cast_factor, stage_memory
from farflung.optim import state_factor, update_bytes
from farflung.plan import CostTables, codec_of, wire_factor_of
from farflung.planners.chain_cuts import SlotParts, best_pace, best_total
from farflung.planners.chain_exact import exact_cuts
from farflung.planners.finish import Problem
from farflung.planners.pieces import Pieces, in_pieces, piece_bytes
from farflung.schedules import part_of

__all__ = ["Chain", "ChainPlan", "Slot"]

Vector = npt.NDArray[np.float64]


#: Entries at which a cache of arrays, and the cache of cuts, is emptied.
_MOST_ARRAYS, _MOST_CUTS = 256, 4096
#: The pace may exceed the best one by these factors if the total time gains from it.
_SLACK = (1.0, 1.1, 1.5, np.inf)
#: More candidates than this are thinned: of neighbours the one where least crosses stays.
_MAX_CANDIDATES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """Cuts for one order of devices; ``seconds`` is what the dynamic program predicts for a step."""

    order: tuple[int, ...]
    placed: tuple[tuple[int, int, str], ...]
    pace: float
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Matrices:
    """Square arrays over candidates (row: start, column: stop): FLOPs, operators that run, and bytes by how they grow."""

    work: Vector
    forward: Vector
    calls: Vector
    forward_calls: Vector
    convolution: Vector
    forward_convolution: Vector
    always: Vector
    saved: Vector
    extra: Vector
    update: Vector
    exchanged: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place in a chain: one device, or several that share the micro-batches (speeds added, the least memory).

    ``into``, ``back``: (latency, bandwidth) from the slot before and to it. ``most``: micro-batches that one device of it has at
    most (None: all). ``copies``: bytes kept for the exchange between its devices, per byte of gradients. ``taken``, ``work``:
    bytes and FLOPs that are there already.
    """

    kind: DeviceKind
    speed: float
    overhead: float
    memory: float
    convolution: float = 1.0
    into: tuple[float, float] = (0.0, float("inf"))
    back: tuple[float, float] = (0.0, float("inf"))
    most: int | None = None
    copies: float = 0.0
    taken: float = 0.0
    work: float = 0.0


#: Matrices by what they depend on, for all chains of the same cost tables: every planner and schedule uses them.
_SHARED: WeakKeyDictionary[CostTables, dict[tuple[object, ...], _Matrices]] = WeakKeyDictionary()


class Chain:
    """The dynamic program for one problem; tables are made once and serve every order of devices."""

    def __init__(self, problem: Problem, stop: int | None = None, pieces: int = 1) -> None:
        """``stop``: plan only the positions before it (what follows is placed otherwise). ``pieces``: 1, 2 or 4; a device that
        is too small may have its share as so many stages, of which one at a time holds what its second forward makes.
        """
        self.problem, self.pieces = problem, pieces
        self.stop = len(problem.graph.ops) if stop is None else stop
        self.cost = problem.cost
        #: Positions in the graph at which a stage may begin or end. All arrays below are indexed by candidate, not by position.
        self.positions = _candidates(problem, self.cost, self.stop)
        factor = wire_factor_of(codec_of(problem.job))
        #: Bytes on the wire that cross a cut with each micro-batch, and those of the gradients that come back.
        self.ahead = self.cost.crossing_forward[self.positions] * factor
        self.back = self.cost.crossing_backward[self.positions] * factor
        #: Bytes in memory of the values that cross a cut.
        self.dense = self.cost.crossing_forward[self.positions]
        # caches: a search asks for thousands of orders of the same few kinds of devices
        #: kind of device -> matrices
        self._matrices: dict[str, _Matrices] = {}
        #: number of stages -> micro-batches in flight in each
        self._flying: dict[int, tuple[int, ...]] = {}
        #: (kind of device, micro-batches in flight) -> bytes of a stage in pieces
        self._divided: dict[tuple[str, int], Pieces] = {}
        #: the same key -> bytes of a stage as it is, and recomputing
        self._stage_bytes: dict[tuple[str, int], tuple[Vector, Vector]] = {}
        #: figures of a slot -> seconds of each stage, and the least seconds of those that begin there and end no earlier
        self._computed: dict[tuple[object, ...], tuple[Vector, Vector]] = {}
        #: latencies and rates of a link -> seconds of the busier wire, and of the way there and back
        self._wires: dict[tuple[float, ...], tuple[Vector, Vector]] = {}
        #: slots and slacks -> cuts, pace and seconds of a step
        self._cuts: dict[tuple[object, ...], tuple[tuple[int, ...], float, float] | None] = {}

    def solve(self, order: Sequence[int], first_work: float = 0.0, first_memory: float = 0.0) -> ChainPlan | None:
        """The best cuts for devices (indices) in this order, one non-empty stage each; None: they cannot hold the model.

        ``first_work`` FLOPs and ``first_memory`` bytes on the first device are taken already.
        """
        found = self.divide(self.slots(order, first_work, first_memory))
        if found is None:
            return None
        cuts, pace, seconds = found
        return ChainPlan(order=tuple(order), placed=self._placed(cuts, order), pace=pace, seconds=seconds)

    def _placed(self, cuts: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, int, str], ...]:
        """The runs between ``cuts`` on devices in ``order``; those that fit in pieces only are cut again."""
        topology, wish = self.problem.topology, self.problem.job.plan.recompute
        placed = list[tuple[int, int, str]]()
        for (a, b), device, flying in zip(pairwise(cuts), order, self._in_flight(len(order)), strict=True):
            ends = [a, b]
            if self.pieces > 1 and wish != "never":
                kind, limit = topology.devices[device].kind, float(topology.devices[device].memory)
                here = tuple(int(np.searchsorted(self.positions, end)) for end in ends)
                if min(float(nbytes[here]) for nbytes in self._whole_bytes(kind, flying)) > limit:
                    ends = [int(self.positions[i]) for i in in_pieces(self._again(kind, flying), here, self.pieces)]
            placed += [(start, stop, topology.names[device]) for start, stop in pairwise(ends)]
        return tuple(placed)

    def divide(self, slots: Sequence[Slot], slacks: Sequence[float] = _SLACK) -> tuple[tuple[int, ...], float, float] | None:
        """The best cuts (positions, both ends included) for slots in this order, their pace and their seconds.

        None: they cannot hold the model.
        """
        if not 0 < len(slots) < len(self.positions):
            return None
        key = (tuple(slots), tuple(slacks))
        if key not in self._cuts:
            if len(self._cuts) >= _MOST_CUTS:
                self._cuts.clear()
            self._cuts[key] = self._cut(slots, slacks)
        return self._cuts[key]

    def _cut(self, slots: Sequence[Slot], slacks: Sequence[float]) -> tuple[tuple[int, ...], float, float] | None:
        tables = [self.parts(j, slots) for j in range(len(slots))]
        pace = best_pace(tables)
        if not np.isfinite(pace):
            return None
        best: tuple[tuple[int, ...], float, float] | None = None
        cuts, found = list[int](), (float("inf"), float("inf"))
        for slack in sorted(slacks, reverse=True):
            limit = pace * slack * (1 + 1e-12)
            if not cuts or found[0] > limit:  # else what is best under a looser limit keeps to this one, too
                cuts = best_total(tables, limit)
                found = self.step_seconds(tables, cuts)
            if best is None or found[1] <= best[2]:
                best = (tuple(int(self.positions[cut]) for cut in cuts), *found)
        return best

    def optimum(self, order: Sequence[int]) -> ChainPlan | None:
        """The exact optimum for devices (indices) in this order (``chain_exact``); ``solve`` is quicker and may miss it."""
        slots = self.slots(order)
        known = self.divide(slots)
        if known is None:
            return None
        parts = [self.parts(j, slots) for j in range(len(slots))]
        tables = [(np.maximum(compute, wire[:, None]), compute + way[:, None]) for compute, wire, way, _ in parts]
        exact = exact_cuts(tables, self._in_flight(len(slots)), self.problem.job.micro_batches, known[2])
        cuts, pace, seconds = known
        if exact is not None and exact[1] < seconds:
            pace, seconds = self.step_seconds(parts, exact[0])
            cuts = tuple(int(self.positions[cut]) for cut in exact[0])
        return ChainPlan(order=tuple(order), placed=self._placed(cuts, order), pace=pace, seconds=seconds)

    def slots(self, order: Sequence[int], work: float = 0.0, memory: float = 0.0) -> list[Slot]:
        """Return the places of ``order``; the first also does ``work`` and stores ``memory`` bytes for others."""
        topology = self.problem.topology
        slots = []
        for j, here in enumerate(order):
            device = topology.devices[here]
            into = back = (0.0, float("inf"))
            if j:
                before = order[j - 1]
                into = float(topology.alpha[before, here]), float(topology.beta[before, here])
                back = float(topology.alpha[here, before]), float(topology.beta[here, before])
            slots.append(
                Slot(
                    kind=device.kind,
                    speed=float(topology.speeds[here]),
                    overhead=float(device.overhead) / topology.host_shares[here],
                    convolution=device.convolution,
                    memory=float(device.memory),
                    into=into,
                    back=back,
                    taken=0.0 if j else memory,
                    work=0.0 if j else work,
                )
            )
        return slots

    def hindrance(self, order: Sequence[int], first_work: float = 0.0) -> int | None:
        """The place in an order without a plan of a device to leave out: no stage that others leave to it fits its memory.

        None: there is no such device, or it is the only one.
        """
        if len(order) < 2 or len(order) > len(self.positions) - 1:
            return None
        slots = self.slots(order, first_work)
        tables = [np.isfinite(self.parts(j, slots).compute) for j in range(len(order))]
        reach = np.arange(len(self.positions)) == 0
        for j, fits in enumerate(tables):
            reach = fits[reach].any(axis=0)
            if not reach.any():
                return j
        reach = np.arange(len(self.positions)) == len(self.positions) - 1
        for j, fits in reversed(list(enumerate(tables))):
            reach = fits[:, reach].any(axis=1)
            if not reach.any():
                return j
        return None

    def ends(self, stages: int) -> tuple[frozenset[int], frozenset[int]]:
        """The devices (indices) with memory for some first of ``stages`` stages, and those with memory for some last."""
        flying = self._in_flight(stages)
        devices = self.problem.topology.devices
        least = {
            kind: (self.least_memory(kind, flying[0])[0].min(), self.least_memory(kind, flying[-1])[:, -1].min())
            for kind in {device.kind for device in devices}
        }
        first, last = (
            frozenset(i for i, device in enumerate(devices) if least[device.kind][end] <= float(device.memory)) for end in (0, 1)
        )
        return first, last

    def possible(self) -> bool:
        """Whether all devices together have the bytes of parameters, gradients and optimizer at least."""
        devices = self.problem.topology.devices
        least = min(float(self._table(kind).always[0, -1]) for kind in {device.kind for device in devices})
        return sum(float(device.memory) for device in devices) >= least

    def fits(self, kind: DeviceKind, memory: float, stages: int, at: int) -> npt.NDArray[np.bool_]:
        """Whether ``memory`` bytes hold stage ``at`` of ``stages`` between each two candidates (row: start, column: stop)."""
        found: npt.NDArray[np.bool_] = self.least_memory(kind, self._in_flight(stages)[at]) <= memory
        return found

    def least_memory(self, kind: str, flying: int) -> Vector:
        """Memory of the stage between each two candidates, recomputing if the job lets it and it helps."""
        full, less = self._bytes(kind, flying)
        return {"never": full, "always": less}.get(self.problem.job.plan.recompute, np.minimum(full, less))

    def step_seconds(self, tables: Sequence[SlotParts], cuts: Sequence[int]) -> tuple[float, float]:
        """(pace, seconds of a step) of the cuts."""
        pairs = list(pairwise(cuts))
        pace = max(float(max(compute[a, b], wire[a])) for (compute, wire, *_), (a, b) in zip(tables, pairs, strict=True))
        spent = [float(compute[a, b] + way[a]) for (compute, _, way, _), (a, b) in zip(tables, pairs, strict=True)]
        # a stage with k micro-batches in flight takes a new one only when one of k has been to the end and back
        windows = zip(accumulate(reversed(spent)), reversed(self._in_flight(len(tables))), strict=True)
        stall = max(round_trip / flying for round_trip, flying in windows)
        return pace, sum(spent) + (self.problem.job.micro_batches - 1) * max(pace, stall)

    def parts(self, j: int, slots: Sequence[Slot]) -> SlotParts:
        """Seconds of stage j: computing, for all pairs of candidates; of the busier wire and of the whole way, by its start."""
        slot = slots[j]
        flying = self._in_flight(len(slots))[j]
        flying = min(flying, slot.most or flying)
        key = (slot.kind, slot.speed, slot.overhead, slot.convolution, slot.memory - slot.taken, slot.work, slot.copies, flying)
        found = self._computed.get(key)
        if found is None:
            if len(self._computed) >= _MOST_ARRAYS:
                self._computed.clear()
            compute = self._compute(slot, flying)
            found = self._computed[key] = compute, np.minimum.accumulate(compute[:, ::-1], axis=1)[:, ::-1]
        compute, reach = found
        if not j:
            return SlotParts(compute, np.zeros(len(compute)), np.zeros(len(compute)), reach)
        return SlotParts(compute, *self._wire((*slot.into, *slot.back)), reach)

    def _wire(self, links: tuple[float, float, float, float]) -> tuple[Vector, Vector]:
        """Seconds of the busier wire and of the whole way there and back, by candidate; ``links``: both latencies and rates."""
        if links not in self._wires:
            if len(self._wires) >= _MOST_ARRAYS:
                self._wires.clear()
            late, rate, late_back, rate_back = links
            ahead, back = self.ahead / rate, self.back / rate_back
            waits = np.where(ahead > 0, late, 0.0) + np.where(back > 0, late_back, 0.0)
            self._wires[links] = np.maximum(ahead, back), ahead + back + waits
        return self._wires[links]

    def _compute(self, slot: Slot, flying: int) -> Vector:
        """Seconds that each stage computes for a micro-batch, infinite where it does not fit."""
        table = self._table(slot.kind)
        limit = slot.memory - slot.taken - slot.copies * table.exchanged
        saved = 1.0 / slot.convolution - 1.0
        compute = (table.work + saved * table.convolution + slot.work) / slot.speed + table.calls * slot.overhead
        full, less = self._bytes(slot.kind, flying)
        wish = self.problem.job.plan.recompute
        if wish == "never":
            return np.where(full <= limit, compute, np.inf)
        again = compute + (table.forward + saved * table.forward_convolution) / slot.speed + table.forward_calls * slot.overhead
        again = np.where(less <= limit, again, np.inf)
        return again if wish == "always" else np.where(full <= limit, compute, again)

    def _bytes(self, kind: str, flying: int) -> tuple[Vector, Vector]:
        """Memory of the stage between each two candidates with ``flying`` micro-batches in flight: as it is, and recomputing."""
        key = (kind, flying)
        if key not in self._stage_bytes:
            if len(self._stage_bytes) >= _MOST_ARRAYS // 4:
                self._stage_bytes.clear()
            self._stage_bytes[key] = self._count_bytes(kind, flying)
        return self._stage_bytes[key]

    def _count_bytes(self, kind: str, flying: int) -> tuple[Vector, Vector]:
        full, less = self._whole_bytes(kind, flying)
        if self.pieces == 1:
            return full, less
        return full, np.minimum(less, piece_bytes(self._again(kind, flying), self.pieces))

    def _again(self, kind: str, flying: int) -> Pieces:
        """What one stage that recomputes takes, as ``in_pieces`` wants it."""
        key = (kind, flying)
        if key not in self._divided:
            table, through = self._table(kind), self.dense
            always = table.always + ALLOCATOR * (flying * through[:, None] + table.extra)
            self._divided[key] = Pieces(always, ALLOCATOR * (table.saved + through[None, :]), ALLOCATOR * table.update)
        return self._divided[key]

    def _whole_bytes(self, kind: str, flying: int) -> tuple[Vector, Vector]:
        table, through = self._table(kind), self.dense
        passing = flying * (through[:, None] + through[None, :]) + table.extra
        full = table.always + ALLOCATOR * np.maximum(flying * table.saved + passing, table.update)
        passing = flying * through[:, None] + through[None, :] + table.extra
        less = table.always + ALLOCATOR * np.maximum(table.saved + passing, table.update)
        return full, less

    def _in_flight(self, stages: int) -> tuple[int, ...]:
        if stages not in self._flying:
            count = stages * self.pieces
            job = self.problem.job
            places, whole = range(0, count, self.pieces), (0, job.micro_batches)
            parts = (part_of(job.plan.base_schedule, count, job.micro_batches, place, whole) for place in places)
            self._flying[stages] = tuple(part.in_flight for part in parts)
        return self._flying[stages]

    def _table(self, kind: str) -> _Matrices:
        if kind not in self._matrices:
            optimizer, precision = self.problem.job.optimizer, self.problem.job.precision
            key = (
                kind,
                self.positions.tobytes(),
                (state_factor(optimizer, self.problem.graph), optimizer.state, optimizer.update),
                precision,
                _slices(self.problem),
                optimizer.delayed,
                self.problem.job.plan.offload == "optimizer",
            )
            shared = _SHARED.setdefault(self.problem.tables, {})
            if key not in shared:
                shared[key] = _matrices(self.problem, self.problem.tables.table(kind), self.positions, self.dense)
            self._matrices[kind] = shared[key]
        return self._matrices[kind]


def _candidates(problem: Problem, cost: OpCost, stop: int) -> npt.NDArray[np.int64]:
    """Starts of the module runs and both ends; of many only the narrowest of each piece of the model."""
    starts = np.array([run.start for run in problem.runs if 0 < run.start < stop], dtype=np.int64)
    if len(starts) > _MAX_CANDIDATES:
        width = cost.crossing_forward[starts] + cost.crossing_backward[starts]
        work = cost.forward_sum + cost.backward_sum
        place = work[starts] / max(float(work[stop]), 1.0) + np.arange(len(starts)) / len(starts)
        piece = np.minimum((place / 2 * _MAX_CANDIDATES).astype(np.int64), _MAX_CANDIDATES - 1)
        order = np.lexsort((np.arange(len(starts)), width, piece))
        first = np.concatenate(([True], np.diff(piece[order]) > 0))
        starts = np.sort(starts[order[first]])
    return np.array([0, *starts, stop], dtype=np.int64)


def _slices(problem: Problem) -> int:
    """Micro-batches of a step with which others may help."""
    return problem.job.micro_batches if problem.job.plan.helpers else 0


def _updating(problem: Problem, positions: npt.NDArray[np.int64]) -> Vector:
    """Bytes that the update of the largest parameter takes beside its state, by the first and the last candidate of a stage."""
    graph, optimizer = problem.graph, problem.job.optimizer
    taken = np.zeros((len(graph.ops), 2))
    for position, op in enumerate(graph.ops):
        for name in op.states():
            if name in graph.trained:
                taken[position] = np.maximum(taken[position], update_bytes(optimizer, graph, name))
    found = np.zeros((len(positions), len(positions)))
    if taken.any():
        for row, start in enumerate(positions[:-1]):
            most = np.maximum.accumulate(taken[start : positions[-1]]).sum(axis=1)
            found[row, row + 1 :] = most[positions[row + 1 :] - start - 1]
    return found


def _matrices(problem: Problem, cost: OpCost, positions: npt.NDArray[np.int64], dense: Vector) -> _Matrices:
    n = len(positions)
    optimizer = problem.job.optimizer
    settings = MemorySettings(
        optimizer=state_factor(optimizer, problem.graph),
        casts=cast_factor(problem.job.precision),
        slices=_slices(problem),
        delayed=optimizer.delayed,
        offload=problem.job.plan.offload == "optimizer",
    )
    always, saved, extra, update = (np.full((n, n), np.inf) for _ in range(4))
    updating = np.zeros((n, n)) if settings.offload else _updating(problem, positions)
    exchanged = np.zeros((n, n))
    for row in range(n - 1):
        columns = slice(row + 1, n)
        received = np.full(n - row - 1, dense[row])
        memory = stage_memory(cost, int(positions[row]), positions[columns].tolist(), settings, received, dense[columns])
        always[row, columns] = memory.always + updating[row, columns]
        saved[row, columns] = memory.activations - received - dense[columns]
        extra[row, columns] = memory.workspace + memory.messages
        update[row, columns] = memory.update
        exchanged[row, columns] = memory.gradients
    forward = cost.forward_sum[positions]
    both = forward + cost.backward_sum[positions]
    forward_calls = cost.forward_calls_sum[positions]
    forward_convolution = cost.forward_convolution_sum[positions]
    convolution = forward_convolution + cost.backward_convolution_sum[positions]
    calls = forward_calls + cost.backward_calls_sum[positions]
    return _Matrices(
        work=both[None, :] - both[:, None],
        forward=forward[None, :] - forward[:, None],
        calls=calls[None, :] - calls[:, None],
        forward_calls=forward_calls[None, :] - forward_calls[:, None],
        convolution=convolution[None, :] - convolution[:, None],
        forward_convolution=forward_convolution[None, :] - forward_convolution[:, None],
        always=always,
        saved=saved,
        extra=extra,
        update=update,
        exchanged=exchanged,
    )
