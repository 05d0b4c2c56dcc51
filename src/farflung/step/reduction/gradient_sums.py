"""Sums of gradients over the replicas of a stage, added piece by piece in the order of a policy (``orders``).

The compute thread adds, so no other thread touches tensors. It takes the parts of a piece one after the other in the policy's
order, each as soon as it is there. Transport threads only store parts in the inbox. Parts travel without a codec.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from farflung.engines.base import Array
from farflung.graph.ir import Use
from farflung.messages.arrays import pack_arrays
from farflung.messages.data import PartialSum, Total
from farflung.messages.router import PeerRouter
from farflung.step.inbox import Inbox
from farflung.step.reduction.base import GradientPart
from farflung.step.reduction.orders import AddOrder, Role
from farflung.step.reduction.pieces import GradientPiece, Sums, plus, unpack_sums
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.step.transfer.spoilt_values import SpoiltValues
from farflung.transports.base import Urgency

__all__ = ["GradientSums"]

SumMessage = type[PartialSum] | type[Total]
#: message, step, stage, piece, part (0 for totals)
Key = tuple[SumMessage, int, int, int, int]


@dataclass(slots=True)
class _OpenPiece:
    """A piece without a total. ``needs``: keys of the parts that are added here, in order, or of the total."""

    step: int
    stage: int
    number: int
    piece: GradientPiece
    role: Role
    needs: deque[Key]
    sums: Sums | None = None


class GradientSums:
    """One worker's part in the sums of gradients of a run; a ``Reduction``. Tags of sums are step numbers."""

    def __init__(self, run: str, order: AddOrder, inbox: Inbox, links: Outbox, spoilt: SpoiltValues | None = None) -> None:
        """``spoilt`` notes who sent what is not finite."""
        self._run, self._order, self._inbox, self._links = run, order, inbox, links
        self._spoilt = spoilt or SpoiltValues()
        self._roles = {stage: [order.role(stage, n) for n in range(len(pieces))] for stage, pieces in order.pieces.items()}
        self._open: list[_OpenPiece] = []
        #: stage -> arrays by use: own sums where they stay here, and totals
        self._arrays: dict[int, list[Array | None]] = {}

    def contribute(self, contribution: GradientPart) -> None:
        """Send a part of the own gradients to those who add it; with the first part of a step its sums are open."""
        step, stage, order = contribution.step, contribution.stage, self._order
        arrays = [contribution.gradients.get(use) for use in order.stages[stage].uses]
        if order.in_place:  # totals are written over flat memory
            arrays = [None if array is None else np.ascontiguousarray(array) for array in arrays]
        self._open_stage(step, stage, arrays)
        slot = order.slot(stage, contribution.end)
        for number, (piece, role) in enumerate(zip(order.pieces[stage], self._roles[stage], strict=True)):
            if piece.runs:
                self._send(PartialSum, role.collector, (step, stage, number, slot), piece.cut(arrays))
        # Only pieces that wait for nobody: other additions would hold up the next forward or backward.
        self._advance([item for item in self._open if item.stage == stage and self._inbox.seen(item.needs) is not None])

    def wait(self, stage: int, tag: str) -> dict[Use, Array]:
        """Add and pass on what arrives, of all stages, until every total of ``stage`` is here; return the totals by use."""
        while any(item.stage == stage for item in self._open):
            # The condition runs under the inbox's lock: it only looks up one key of each piece.
            self._inbox.wait_until(lambda: any(self._inbox.holds((item.needs[0],)) for item in self._open))
            self._advance(self._open)
        arrays = self._arrays.pop(stage)
        return {use: array for use, array in zip(self._order.stages[stage].uses, arrays, strict=True) if array is not None}

    def register(self, router: PeerRouter) -> None:
        """Parts to add, and totals."""
        router.register(PartialSum, self._receive_part)
        router.register(Total, self._receive_total)

    def _receive_part(self, peer: str, part: PartialSum) -> None:
        """Store a part that is added here (transport thread); errors as in ``Reduction.register``."""
        self._order.check_part(peer, part)
        self._receive(peer, part, part.part)

    def _receive_total(self, peer: str, total: Total) -> None:
        """Store a total (transport thread); errors as in ``Reduction.register``."""
        self._order.check_total(peer, total)
        self._receive(peer, total, 0)

    def _receive(self, peer: str, message: PartialSum | Total, slot: int) -> None:
        sums = unpack_sums(self._order.pieces[message.stage][message.bucket], message)
        for array in sums:
            if array is not None:
                self._spoilt.check(message.step, peer, array, passed_on=isinstance(message, Total))
        self._inbox.put((type(message), message.step, message.stage, message.bucket, slot), sums)

    def _open_stage(self, step: int, stage: int, arrays: list[Array | None]) -> None:
        if stage in self._arrays:
            return
        self._arrays[stage] = arrays if self._order.in_place else [None] * len(arrays)
        for number, (piece, role) in enumerate(zip(self._order.pieces[stage], self._roles[stage], strict=True)):
            if piece.runs:
                keys: list[Key] = [(PartialSum, step, stage, number, slot) for slot in role.adds]
                needs = deque(keys or [(Total, step, stage, number, 0)])
                self._open.append(_OpenPiece(step, stage, number, piece, role, needs))

    def _advance(self, items: Sequence[_OpenPiece]) -> None:
        """Do for ``items`` what can be done with what is here."""
        for item in list(items):
            while item.needs and self._inbox.seen((item.needs[0],)) is not None:
                self._take(item)

    def _take(self, item: _OpenPiece) -> None:
        """The next part of ``item``, or its total, is here."""
        key = item.needs.popleft()
        came: Sums = self._inbox.take(key)
        if key[0] is Total:
            self._end(item, came)
            return
        # Bit-exactness: parts are added one after the other in the order of ``role.adds``, never pairwise.
        item.sums = came if item.sums is None else [plus(one, two) for one, two in zip(item.sums, came, strict=True)]
        if item.needs:
            return
        if item.role.up is None:
            self._end(item, item.sums)
            return
        slot = self._order.slot(item.stage, 0)
        self._send(PartialSum, item.role.up, (item.step, item.stage, item.number, slot), item.sums)
        item.needs.append((Total, item.step, item.stage, item.number, 0))

    def _end(self, item: _OpenPiece, total: Sums) -> None:
        for device in item.role.down:
            self._send(Total, device, (item.step, item.stage, item.number, 0), total)
        item.piece.write(total, self._arrays[item.stage], self._order.stages[item.stage].specs)
        self._open.remove(item)

    def _send(self, kind: SumMessage, device: str, place: tuple[int, int, int, int], sums: Sums) -> None:
        step, stage, number, slot = place
        if device == self._order.device:
            self._inbox.put((kind, *place), sums)
            return
        head = partial(kind, run=self._run, step=step, stage=stage, bucket=number, part=slot)
        dense = sum(array.nbytes for array in sums if array is not None)
        parcel = OutgoingMessage(
            make=lambda: pack_arrays(head, sums, None),
            urgency=Urgency.BULK,
            step=step,
            pair=(stage, stage),
            dense=dense,
            waits=self._order.waits,
        )
        self._links.post(device, parcel)
