"""The exact exchange: the replicas of a stage add up their gradients in the job's order (DESIGN invariant 1).

Source: a colocated sharded parameter server (DT-FM, equation (2)), with the order of addition made part of the job. The uses of a
stage's parameters are packed into buckets; each bucket has a server among the replicas, balanced by bytes. A replica sends a
bucket's sum over each of its virtual replicas; the first replica, whose micro-batches come first anyway, sends one sum over
all of its own. The server adds what comes in the job's order and sends the total to all. So the result does not depend on the
number of replicas, nor on who arrives first.

Cost per step and replica: its gradients once (or once per virtual replica) up, and the totals down. They travel without a codec;
``farflung.sync`` has strategies that take one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from farflung.engines.base import Array, StageRunner
from farflung.errors import WireError
from farflung.graph.ir import TensorSpec, Use
from farflung.messages.arrays import decode_array, pack_arrays, packed_arrays
from farflung.messages.fields import whole
from farflung.plan.buckets import Bucket, buckets_of, parts_of
from farflung.plan.model import Replica
from farflung.step.inbox import Inbox
from farflung.step.outbox import Outbox, OutgoingFrame
from farflung.step.run_setup import RunSetup
from farflung.transports.base import Urgency
from farflung.wire.arrays import ArrayMeta
from farflung.wire.frames import Frame

__all__ = ["Exchange", "Sums", "buckets", "plus", "unpack_sums"]

#: The sums of a bucket's uses, in its order; None where no gradient flowed.
Sums = list[Array | None]


def buckets(setup: RunSetup, stage: int) -> tuple[Bucket, ...]:
    """The buckets of ``stage``, the same on every replica."""
    return buckets_of(setup.graph, setup.subgraphs[stage], setup.job.optimizer, setup.plan.stages[stage].devices)


class Exchange:
    """One worker's part in the exchanges of a run."""

    def __init__(self, setup: RunSetup, mailbox: Inbox, links: Outbox) -> None:
        self._setup, self._mailbox, self._links = setup, mailbox, links
        self._ends = frozenset(setup.job.virtual_ends)
        #: Every micro-batch is a virtual replica of its own: accumulating one after the other is the order already.
        self._plain = len(self._ends) == setup.job.micro_batches

    @cached_property
    def buckets(self) -> Mapping[int, tuple[Bucket, ...]]:
        """Of the own stages that have replicas."""
        stages = self._setup.plan.stages
        return {index: buckets(self._setup, index) for index in self._setup.own_stages if len(stages[index].devices) > 1}

    def after_backward(self, step: int, stage: int, micro_batch: int, runner: StageRunner) -> None:
        """A backward is done: end the part of the sum that ends here, and send it to the buckets' servers."""
        if micro_batch + 1 not in self._ends:
            return
        number, replica = self._mine(stage)
        last = micro_batch + 1 == replica.end
        if number == 0 and not last:
            if not self._plain:
                runner.close_part()
        elif stage not in self.buckets:
            if not self._plain:
                runner.close_part(last=True)
        else:
            self._share(step, stage, micro_batch + 1, runner.take_gradients())

    def finish(self, step: int, runners: Mapping[int, StageRunner]) -> None:
        """Add up what this worker serves, tell the totals, and give the runners of replicated stages theirs."""
        totals: dict[tuple[int, int], Sums] = {}
        for stage, held in self.buckets.items():
            for number, bucket in enumerate(held):
                if bucket.server == self._setup.device:
                    totals[stage, number] = self._serve(step, stage, number)
        for stage, held in self.buckets.items():
            gradients: dict[Use, Array] = {}
            for number, bucket in enumerate(held):
                total = totals.get((stage, number)) or self._mailbox.take(("total", step, stage, number, 0))
                gradients |= {use: array for use, array in zip(bucket.uses, total, strict=True) if array is not None}
            runners[stage].put_gradients(gradients)

    def receive(self, peer: str, frame: Frame) -> None:
        """A part or a total came from ``peer`` (transport thread).

        Raises:
            WireError: it does not belong here, or its arrays are not those of the bucket.
            CodecError: a payload is malformed.
        """
        header = frame.header
        step, stage, number = whole(header, "step"), whole(header, "stage"), whole(header, "bucket")
        part = whole(header, "part", high=self._setup.job.micro_batches)
        held = self.buckets.get(stage, ())
        if number >= len(held):
            raise WireError(f"stage {stage} has {len(held)} buckets to exchange here, not number {number}")
        bucket = held[number]
        server = self._setup.device if frame.kind == "part" else peer
        if bucket.server != server or (frame.kind == "part" and part not in self._parts_of(stage, peer)):
            raise WireError(f"{peer} has no {frame.kind} {part} of bucket {number} of stage {stage} to send here")
        self._mailbox.put((frame.kind, step, stage, number, part), unpack_sums(bucket.uses, bucket.specs, frame))

    def _mine(self, stage: int) -> tuple[int, Replica]:
        replicas = self._setup.plan.replicas_of(stage)
        return next((n, replica) for n, replica in enumerate(replicas) if replica.device == self._setup.device)

    def _parts(self, stage: int) -> list[tuple[str, int]]:
        """(device, part) in the order of addition; a part has the number of the micro-batch before which it ends."""
        replicas = self._setup.plan.replicas_of(stage)
        held = parts_of(replicas, self._setup.job.virtual_ends)
        return [(replica.device, end) for replica, ends in zip(replicas, held, strict=True) for end in ends]

    def _parts_of(self, stage: int, device: str) -> set[int]:
        return {part for held, part in self._parts(stage) if held == device}

    def _share(self, step: int, stage: int, part: int, gradients: Mapping[Use, Array]) -> None:
        for number, bucket in enumerate(self.buckets[stage]):
            sums = [gradients.get(use) for use in bucket.uses]
            self._send(bucket.server, ("part", step, stage, number, part), sums)

    def _serve(self, step: int, stage: int, number: int) -> Sums:
        """Add the parts of a bucket in order, and send the total to the other replicas."""
        total: Sums = [None] * len(self.buckets[stage][number].uses)
        for _, part in self._parts(stage):
            for index, array in enumerate(self._mailbox.take(("part", step, stage, number, part))):
                total[index] = plus(total[index], array)
        for device in self._setup.plan.stages[stage].devices:
            if device != self._setup.device:
                self._send(device, ("total", step, stage, number, 0), total)
        return total

    def _send(self, device: str, key: tuple[str, int, int, int, int], sums: Sequence[Array | None]) -> None:
        kind, step, stage, number, part = key
        if device == self._setup.device:
            self._mailbox.put(key, sums)
            return
        head = {"run": self._setup.run, "step": step, "stage": stage, "bucket": number, "part": part}
        dense = sum(array.nbytes for array in sums if array is not None)
        parcel = OutgoingFrame(
            make=lambda: pack_arrays(kind, head, sums, None), urgency=Urgency.BULK, step=step, pair=(stage, stage), dense=dense
        )
        self._links.post(device, parcel)


def plus(before: Array | None, array: Array | None) -> Array | None:
    """The sum, in the memory of ``before`` where that may be written."""
    if before is None or array is None:
        return array if before is None else before
    return np.add(before, array, out=before if before.flags.writeable else None)


def unpack_sums(uses: Sequence[Use], specs: Sequence[TensorSpec], frame: Frame) -> Sums:
    """The sums of ``uses`` in ``frame``; shapes and element types are checked against ``specs`` before memory is taken.

    Raises:
        WireError: they are others.
        CodecError: a payload is malformed.
    """
    arrays = packed_arrays(frame, len(uses))
    if len(arrays) != len(uses):
        raise WireError(f"a bucket of {len(uses)} gradients came with {len(arrays)}")
    sums: Sums = []
    for array, spec, use in zip(arrays, specs, uses, strict=True):
        if array is None:
            sums.append(None)
            continue
        header, sections = array
        meta = ArrayMeta.from_header(header.get("array"))
        if meta.shape != spec.shape or meta.dtype != spec.dtype:
            raise WireError(
                f"the gradient of {use.state!r} is {spec.dtype}{list(spec.shape)}, {meta.dtype}{list(meta.shape)} came"
            )
        sums.append(decode_array(header, sections, max(spec.nbytes, 1)))
    return sums
