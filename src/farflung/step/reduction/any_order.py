"""The exchange in any order (``sync.order = "any"``): replicas sum their gradients by servers, a ring or a tree, as plans say.

Source: ``farflung.sync.reductions``, which has the ways and their costs. The uses of a stage's parameters, laid end to end, are
cut into pieces; of each a replica adds what its neighbours have added up to its own sum, in the order of ranks, and passes it
on; the root's total goes to all. So every replica ends with the same bits, and a run under one plan with the same result;
another plan adds in another order and differs by rounding. Totals are written over the own sums.

Cost per step and replica: what ``reductions.transfers`` counts; additions are vectorized and done by the thread that computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from farflung.engines.base import Array, StageRunner
from farflung.errors import WireError
from farflung.graph.ir import TensorSpec, Use
from farflung.messages.arrays import pack_arrays
from farflung.messages.fields import whole
from farflung.plan.buckets import trained_uses
from farflung.step.inbox import Inbox
from farflung.step.outbox import Outbox, OutgoingFrame
from farflung.step.reduction.ordered import Sums, plus, unpack_sums
from farflung.step.run_setup import RunSetup
from farflung.sync.reductions import Run, Way, runs_of
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

__all__ = ["Part", "Reducing", "parts_of"]

Key = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a stage's gradients: ``runs`` of numbers of ``uses``, summed by ``way``."""

    way: Way
    runs: tuple[Run, ...]
    uses: tuple[Use, ...]
    specs: tuple[TensorSpec, ...]


def parts_of(setup: RunSetup, stage: int) -> tuple[Part, ...]:
    """The pieces of ``stage``, the same on every replica."""
    reduction, members = setup.plan.stages[stage].adds, len(setup.plan.stages[stage].devices)
    assert reduction is not None
    uses = trained_uses(setup.graph, setup.subgraphs[stage], setup.job.optimizer)
    specs = [setup.graph.state[use.state].spec for use in uses]
    count = reduction.count(members, sum(spec.nbytes for spec in specs))
    found = []
    for number, runs in enumerate(runs_of([spec.numel for spec in specs], count)):
        found.append(
            Part(
                way=reduction.way(number, members),
                runs=runs,
                uses=tuple(uses[index] for index, _, _ in runs),
                specs=tuple(TensorSpec(dtype=specs[index].dtype, shape=(stop - start,)) for index, start, stop in runs),
            )
        )
    return tuple(found)


@dataclass(slots=True)
class _Open:
    """A piece that is not summed yet: what it waits for. ``up`` until the own part of the sum is passed on."""

    step: int
    stage: int
    number: int
    part: Part
    needs: list[Key]
    up: bool = True


class Reducing:
    """One worker's part in the sums of a run; the same surface as ``Exchange``."""

    def __init__(self, setup: RunSetup, mailbox: Inbox, links: Outbox) -> None:
        self._setup, self._mailbox, self._links = setup, mailbox, links
        #: stage -> use -> own sum, flat; totals are written over it
        self._sums: dict[int, dict[Use, Array]] = {}
        self._open: list[_Open] = []

    @cached_property
    def parts(self) -> Mapping[int, tuple[Part, ...]]:
        """Of the own stages that have replicas."""
        stages = self._setup.plan.stages
        return {index: parts_of(self._setup, index) for index in self._setup.own_stages if len(stages[index].devices) > 1}

    def after_backward(self, step: int, stage: int, micro_batch: int, runner: StageRunner) -> None:
        """A backward is done: with the last one the own sum is whole, and what waits for nobody's leaves."""
        if stage not in self.parts or micro_batch + 1 != self._setup.plan.replicas_of(stage)[self._rank(stage)].end:
            return
        self._sums[stage] = {use: np.ascontiguousarray(array).reshape(-1) for use, array in runner.take_gradients().items()}
        for number, part in enumerate(self.parts[stage]):
            keys: list[Key] = [("part", step, stage, number, child) for child in part.way.adds(self._rank(stage))]
            if part.runs:
                self._open.append(_Open(step, stage, number, part, keys))
        self._go_on([item for item in self._open if item.stage == stage and not item.needs])

    def finish(self, step: int, runners: Mapping[int, StageRunner]) -> None:
        """Pass on what comes until all totals are here, and give the runners of replicated stages theirs."""
        while self._open:
            self._mailbox.wait_until(lambda: any(self._mailbox.holds(item.needs) for item in self._open))
            self._go_on([item for item in self._open if self._mailbox.seen(item.needs) is not None])
        for stage in self.parts:
            specs = {use: self._setup.graph.state[use.state].spec for use in self._sums[stage]}
            runners[stage].put_gradients({use: flat.reshape(specs[use].shape) for use, flat in self._sums.pop(stage).items()})

    def receive(self, peer: str, frame: Frame) -> None:
        """A partial sum or a total came from ``peer`` (transport thread).

        Raises:
            WireError: it does not belong here, or its arrays are not those of the piece.
            CodecError: a payload is malformed.
        """
        header = frame.header
        step, stage, number = whole(header, "step"), whole(header, "stage"), whole(header, "piece")
        held = self.parts.get(stage, ())
        devices = self._setup.plan.stages[stage].devices if held else ()
        if number >= len(held) or peer not in devices:
            raise WireError(f"stage {stage} has {len(held)} pieces to sum here, number {number} of {peer} is none of them")
        way, own, other = held[number].way, self._rank(stage), devices.index(peer)
        if (way.up[other] != own) if frame.kind == "part" else (way.down[own] != other):
            raise WireError(f"{peer} has no {frame.kind} of piece {number} of stage {stage} to send here")
        key: Key = (frame.kind, step, stage, number, other if frame.kind == "part" else 0)
        self._mailbox.put(key, unpack_sums(held[number].uses, held[number].specs, frame))

    def _rank(self, stage: int) -> int:
        return self._setup.plan.stages[stage].devices.index(self._setup.device)

    def _go_on(self, items: Sequence[_Open]) -> None:
        """What ``items`` need is here."""
        for item in items:
            came = [self._mailbox.take(key) for key in item.needs]
            if not item.up:
                self._told(item, came[0])
                continue
            sums = self._own(item)
            for others in came:
                sums = [plus(mine, theirs) for mine, theirs in zip(sums, others, strict=True)]
            parent = item.part.way.up[self._rank(item.stage)]
            if parent < 0:
                self._told(item, sums)
                continue
            item.up, item.needs = False, [("total", item.step, item.stage, item.number, 0)]
            self._send(item, "part", parent, sums)

    def _own(self, item: _Open) -> Sums:
        flat = self._sums[item.stage]
        return [
            flat[use][start:stop] if use in flat else None
            for use, (_, start, stop) in zip(item.part.uses, item.part.runs, strict=True)
        ]

    def _told(self, item: _Open, total: Sums) -> None:
        """The total of a piece is here: on to others, and over the own sum."""
        for child in item.part.way.tells(self._rank(item.stage)):
            self._send(item, "total", child, total)
        flat = self._sums[item.stage]
        for use, (_, start, stop), array in zip(item.part.uses, item.part.runs, total, strict=True):
            if array is None:
                continue
            if use not in flat:  # no gradient flowed here
                flat[use] = np.zeros(self._setup.graph.state[use.state].spec.numel, array.dtype)
            if not np.may_share_memory(flat[use], array):
                flat[use][start:stop] = array
        self._open.remove(item)

    def _send(self, item: _Open, kind: str, rank: int, sums: Sums) -> None:
        """The frame holds sums that stay until the step ends, so its poster need not wait for room."""
        head = {"run": self._setup.run, "step": item.step, "stage": item.stage, "piece": item.number}
        parcel = OutgoingFrame(
            make=lambda: pack_arrays(kind, head, sums, None),
            urgency=Urgency.BULK,
            step=item.step,
            pair=(item.stage, item.stage),
            dense=sum(array.nbytes for array in sums if array is not None),
            waits=False,
        )
        self._links.post(self._setup.plan.stages[item.stage].devices[rank], parcel)
