"""Sending of small pieces: those for one device travel together, and only so many bytes are under way.

A piece counts as under way from its posting until its mean comes back. A member has at most ``limit`` bytes under way, and always
one piece for each server of an exchange; otherwise two members that begin exchanges in another order would wait for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.messages.data import MeanPieces, PieceItem
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.transports.base import Urgency

__all__ = ["PieceSender", "SentPiece", "Window"]

#: Bytes that a member may have under way: at least, and as a share of its parameters.
_WINDOW, _SHARE = 1 << 20, 0.01


class Window:
    """Bytes under way; used under the averager's lock."""

    def __init__(self, nbytes: int) -> None:
        """``nbytes``: of the parameters here."""
        self.limit = max(_WINDOW, int(_SHARE * nbytes))
        self._under_way = 0

    def has_room(self, nbytes: int) -> bool:
        """Whether ``nbytes`` more may be under way."""
        return self._under_way + nbytes <= self.limit

    def add(self, nbytes: int) -> None:
        """``nbytes`` were posted (negative: their mean has come back)."""
        self._under_way += nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPiece:
    """A piece on its way: description, memory, bytes."""

    item: PieceItem
    sections: tuple[memoryview, ...]
    nbytes: int


class PieceSender:
    """The outgoing pieces of one worker. ``post`` is called by any thread, frames are made by sender threads."""

    def __init__(self, run: str, links: Outbox) -> None:
        self._run, self._links = run, links
        #: The step that the bytes count for; the compute thread sets it, other threads read it (an int: no lock).
        self._step = 0
        self._lock = threading.Lock()
        #: (device, stage) -> pieces that wait for a frame; guarded by ``_lock``.
        self._waiting: dict[tuple[str, int], deque[SentPiece]] = {}

    def begin_step(self, step: int) -> None:
        """Bytes that are posted from here on count for ``step``."""
        self._step = step

    def post(self, device: str, stage: int, piece: SentPiece) -> None:
        """Send ``piece`` with the next frame for ``device``; never blocks."""
        with self._lock:  # before the message is posted: the sender thread makes it of the pieces that wait then
            self._waiting.setdefault((device, stage), deque()).append(piece)
        parcel = OutgoingMessage(
            make=lambda: self._message(device, stage),
            urgency=Urgency.BULK,
            step=self._step,
            pair=(stage, stage),
            dense=piece.nbytes,
            waits=False,
        )
        self._links.post(device, parcel)

    def _message(self, device: str, stage: int) -> MeanPieces | None:
        """What has gathered for ``device`` while earlier messages were under way (sender thread); ``None``: they took it all."""
        most = self._links.together(device)
        with self._lock:
            waiting, sent = self._waiting[device, stage], list[SentPiece]()
            while waiting and (not sent or sum(piece.nbytes for piece in (*sent, waiting[0])) <= most):
                sent.append(waiting.popleft())
        return None if not sent else self._packed(stage, sent)

    def _packed(self, stage: int, sent: Sequence[SentPiece]) -> MeanPieces:
        sections = tuple(section for piece in sent for section in piece.sections)
        return MeanPieces(run=self._run, stage=stage, pieces=tuple(piece.item for piece in sent), sections=sections)
