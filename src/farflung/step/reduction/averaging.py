"""Weighted means over a group, added up on the way: exchanges are cut into pieces, and each has a server among the members.

Source: a colocated sharded parameter server (DT-FM, equation (2)). Members send a piece to its server; this one adds in the
order of ranks, writes the mean over its own values and tells it; the others write it over theirs. So a link carries
``2 / members`` of an exchange instead of all of it, and every member ends with the same bits, whoever came first. What differs
from the paper: what is averaged is written in place, and what is under way is bounded. A member has at most ``window`` bytes
sent that the mean has not come back for (and always one piece for each server of an exchange, or two members that begin
exchanges in another order would wait for each other), so a member holds about three windows beside its parameters.

A round that has a ``patience`` ends without those who do not come: when so many seconds have passed since the server began, it
adds up what is there, weights divided by their sum. Who comes later takes the mean of the others over its own values.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.messages.fields import text, whole
from farflung.step.inbox import Inbox
from farflung.step.outbox import Outbox, OutgoingFrame
from farflung.sync import Round
from farflung.sync.reductions import runs_of
from farflung.transports.base import Urgency
from farflung.units import Seconds
from farflung.wire.frames import Frame

__all__ = ["Averager", "Averaging", "Outcome", "Piece", "first_servers", "pieces_of"]

#: Bytes of a piece: at most, and at least where an exchange is large enough.
_LARGEST, _SMALLEST = 256 << 10, 8 << 10
#: Pieces for each member, where that makes none too small.
_TURNS = 16
#: Bytes that a member may have on their way: at least, and as a share of its parameters.
_WINDOW, _SHARE = 1 << 20, 0.01
_REMEMBERED = 64

Key = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of an exchange: ``runs`` of numbers as (array, start, stop), and the rank that adds it up."""

    server: int
    runs: tuple[tuple[int, int, int], ...]
    nbytes: int


def pieces_of(arrays: Sequence[Array], members: int, first: int = 0) -> tuple[Piece, ...]:
    """How flat ``arrays`` are cut; the server of the first piece is ``first``, the others follow in turn.

    Large exchanges give every member as many pieces.
    """
    count = _count(sum(array.nbytes for array in arrays), members)
    found = []
    for number, runs in enumerate(runs_of([array.size for array in arrays], count)):
        nbytes = sum((stop - start) * arrays[index].itemsize for index, start, stop in runs)
        found.append(Piece(server=(first + number) % members, runs=runs, nbytes=nbytes))
    return tuple(found)


def first_servers(sizes: Sequence[int], members: int) -> tuple[int, ...]:
    """The rank that serves the first piece of each layer (``sizes``: their bytes), so that all serve about as many."""
    counts = [_count(size, members) for size in sizes]
    return tuple(before % members for before in accumulate(counts, initial=0))[: len(sizes)]


def _count(nbytes: int, members: int) -> int:
    """Few pieces of a small exchange; of a large one several for each member: means come back while pieces still leave."""
    if nbytes < members * _SMALLEST:
        return max(1, nbytes // _SMALLEST)
    return members * max(math.ceil(nbytes / (members * _LARGEST)), min(_TURNS, nbytes // (members * _SMALLEST)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round left: squares of the distance of the own values from the mean, and of the mean; ranks that were missing;
    when it began and ended here, seconds of the averager's clock."""

    gap: float
    norm: float
    missing: frozenset[int] = frozenset()
    begin: float = 0.0
    end: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """An exchange that begins: flat ``arrays``, which hold the own values and get the means.

    ``devices``: of the members by rank. ``first``: the server of the first piece. ``patience``: see the module (None: all
    are waited for); ``quorum``: how many must have come even then.
    """

    stage: int
    tag: str
    rank: int
    devices: tuple[str, ...]
    weights: tuple[float, ...]
    arrays: tuple[Array, ...]
    first: int = 0
    patience: float | None = None
    quorum: int = 1


@dataclass(frozen=True, slots=True)
class _Sent:
    header: dict[str, Any]
    sections: tuple[memoryview, ...]
    nbytes: int


@dataclass(slots=True)
class _Sum:
    """A piece that is served here: what has come and waits for its turn, and the sum of those before."""

    round: Round
    held: dict[int, list[Array]] = field(default_factory=dict)
    added: int = 0
    sums: list[Array] | None = None


@dataclass(slots=True)
class _Going:
    """A round that is under way here."""

    spec: Averaging
    pieces: tuple[Piece, ...]
    waiting: list[int]
    sums: dict[int, _Sum]
    left: set[int]
    begin: float = 0.0
    out: dict[int, int] = field(default_factory=dict)
    gap: float = 0.0
    norm: float = 0.0
    missing: set[int] = field(default_factory=set)


class Averager:
    """All rounds of one worker. The compute thread calls ``begin`` and ``wait``, any thread ``receive``."""

    def __init__(self, run: str, nbytes: int, mailbox: Inbox, links: Outbox, clock: Clock | None = None) -> None:
        """``nbytes``: of the parameters here."""
        self._run, self._mailbox, self._links = run, mailbox, links
        self.window = max(_WINDOW, int(_SHARE * nbytes))
        self._clock = clock or MonotonicClock()
        #: What links count is counted for this step.
        self.step = 0
        self._lock = threading.RLock()
        self._rounds: dict[Key, _Going] = {}
        self._early: dict[Key, list[Callable[[], None]]] = {}
        self._over: dict[Key, None] = {}
        self._out = 0
        #: Pieces that wait for a frame, by device and stage.
        self._outgoing: dict[tuple[str, int], deque[_Sent]] = {}

    def begin(self, spec: Averaging) -> None:
        """Begin a round; ``wait`` for its end before ``spec.arrays`` are read or written."""
        pieces = pieces_of(spec.arrays, len(spec.devices), spec.first)
        deadline = Seconds(math.inf if spec.patience is None else self._clock.now() + spec.patience)
        group = tuple(range(len(spec.devices)))
        fresh = Round(group=group, weights=spec.weights, deadline=deadline, quorum=spec.quorum)
        going = _Going(
            spec=spec,
            pieces=pieces,
            waiting=[number for number, piece in enumerate(pieces) if piece.server != spec.rank],
            sums={number: _Sum(fresh) for number, piece in enumerate(pieces) if piece.server == spec.rank},
            left=set(range(len(pieces))),
            begin=self._clock.now(),
        )
        key = (spec.stage, spec.tag)
        with self._lock:
            self._rounds[key] = going
            for number in going.sums:
                self._arrive(going, number, spec.rank, None)
            for late in self._early.pop(key, ()):
                late()
            self._end_if_done(going)
            self._pump()

    def wait(self, stage: int, tag: str) -> Outcome:
        """The end of a round.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        key = ("averaged", stage, tag)
        with self._lock:
            going = self._rounds.get((stage, tag))
        patience = None if going is None else going.spec.patience
        while patience is not None and not self._mailbox.wait_for(key, patience):
            self.expire()
            patience = max(patience / 4, 0.01)
        outcome: Outcome = self._mailbox.take(key)
        return outcome

    def expire(self) -> None:
        """End the pieces served here whose deadline has passed."""
        with self._lock:
            for going in list(self._rounds.values()):
                for number in list(going.sums):
                    served = going.sums[number]
                    served.round = served.round.tick(self._clock.now())
                    self._add(going, number)
                self._end_if_done(going)

    def settle(self) -> None:
        """Wait until what was begun has ended, as a checkpoint needs it; outcomes stay where ``wait`` finds them."""
        with self._lock:
            keys = [("averaged", *key) for key in self._rounds]
        for key in keys:
            self._mailbox.wait_for(key, None)

    # -- frames -------------------------------------------------------------------------------------------------------

    def receive(self, stage: int, rank: int, frame: Frame) -> None:
        """Pieces, or the means of some, came from the member ``rank`` of ``stage`` (transport thread).

        Raises:
            WireError: the round has no such piece, the member does not serve it, or its size is another.
        """
        headers, at = frame.header.get("pieces"), 0
        if not isinstance(headers, list):
            raise WireError("a frame of pieces came without a list of them")
        for header in headers:
            if not isinstance(header, dict):
                raise WireError("a piece came without a header")
            end = at + whole(header, "sections", high=len(frame.sections))
            self._receive(stage, rank, header, frame.sections[at:end])
            at = end

    def _receive(self, stage: int, rank: int, header: dict[str, Any], sections: Sequence[memoryview | bytes]) -> None:
        key = (stage, text(header, "tag", limit=60))
        number, mean = whole(header, "piece"), header.get("mean") is True
        absent = _ranks(header.get("missing", []))

        def take() -> None:
            self._take(key, rank, number, absent if mean else None, sections)

        with self._lock:
            if key in self._over:
                return
            if key in self._rounds:
                take()
                self._end_if_done(self._rounds[key])
                self._pump()
                return
            if sum(map(len, self._early.values())) > _REMEMBERED * _REMEMBERED:
                raise WireError(f"{len(self._early)} rounds have begun elsewhere and not here: {key[1]!r} is refused")
            self._early.setdefault(key, []).append(take)

    def _take(
        self, key: Key, rank: int, number: int, absent: frozenset[int] | None, sections: Sequence[memoryview | bytes]
    ) -> None:
        going = self._rounds[key]
        if number >= len(going.pieces):
            raise WireError(f"round {key[1]!r} has {len(going.pieces)} pieces, number {number} came")
        piece = going.pieces[number]
        arrays = _unpack(going, piece, sections)
        if absent is None:
            if piece.server != going.spec.rank:
                raise WireError(f"piece {number} of round {key[1]!r} is added up by another member")
            self._arrive(going, number, rank, arrays)
        elif piece.server != rank:
            raise WireError(f"piece {number} of round {key[1]!r} is added up by member {piece.server}, not by {rank}")
        elif number in going.left:
            self._finish(going, number, arrays, absent)
            if number in going.waiting:  # this member is late: the others went on without it
                going.waiting.remove(number)
            else:
                self._out -= piece.nbytes
                going.out[rank] -= 1

    def _arrive(self, going: _Going, number: int, rank: int, arrays: list[Array] | None) -> None:
        """``rank``'s values of a piece that is served here are there (None: the own ones, which stay where they are)."""
        served = going.sums.get(number)
        if served is None:
            return  # it ended without this member
        if arrays is not None:
            served.held[rank] = arrays
        served.round = served.round.arrive(rank, self._clock.now())
        self._add(going, number)

    def _add(self, going: _Going, number: int) -> None:
        """Add what is next in the order of ranks; when all have come, or the round is closed, tell the mean."""
        served, spec = going.sums[number], going.spec
        arrived, closed = served.round.arrived, served.round.closed
        while served.added < len(spec.devices) and (closed or served.added in arrived):
            rank = served.added
            served.added += 1
            if rank not in arrived:
                continue
            values = served.held.pop(rank, None) or self._own(going, number)
            parts = [array * array.dtype.type(spec.weights[rank]) for array in values]
            if served.sums is None:
                served.sums = parts
            else:
                for total, part in zip(served.sums, parts, strict=True):
                    np.add(total, part, out=total)
        if not closed:
            return
        assert served.sums is not None
        missing = frozenset(served.round.missing)
        if missing:
            scale = 1.0 / sum(spec.weights[rank] for rank in arrived)
            for total in served.sums:
                np.multiply(total, total.dtype.type(scale), out=total)
        del going.sums[number]
        self._finish(going, number, served.sums, missing)
        for rank in range(len(spec.devices)):
            if rank != spec.rank:
                self._post(going, number, rank, served.sums, missing)

    def _own(self, going: _Going, number: int) -> list[Array]:
        return [going.spec.arrays[index][start:stop] for index, start, stop in going.pieces[number].runs]

    def _finish(self, going: _Going, number: int, means: Sequence[Array], missing: frozenset[int]) -> None:
        """Write a mean over the own values."""
        for own, mean in zip(self._own(going, number), means, strict=True):
            going.gap += _square(own - mean)
            going.norm += _square(mean)
            own[...] = mean
        going.left.discard(number)
        going.missing |= missing

    def _end_if_done(self, going: _Going) -> None:
        key = (going.spec.stage, going.spec.tag)
        if not going.left and self._rounds.pop(key, None) is not None:
            self._over[key] = None
            if len(self._over) > _REMEMBERED:
                del self._over[next(iter(self._over))]
            outcome = Outcome(
                gap=going.gap, norm=going.norm, missing=frozenset(going.missing), begin=going.begin, end=self._clock.now()
            )
            self._mailbox.put(("averaged", *key), outcome)

    def _pump(self) -> None:
        """Send pieces in the order in which rounds began, as far as the window allows."""
        for going in self._rounds.values():
            for number in list(going.waiting):
                piece = going.pieces[number]
                if self._out + piece.nbytes > self.window and going.out.get(piece.server, 0):
                    continue
                going.waiting.remove(number)
                going.out[piece.server] = going.out.get(piece.server, 0) + 1
                self._out += piece.nbytes
                self._post(going, number, piece.server, self._own(going, number), None)

    def _post(self, going: _Going, number: int, rank: int, arrays: Sequence[Array], missing: frozenset[int] | None) -> None:
        spec = going.spec
        header: dict[str, Any] = {"tag": spec.tag, "piece": number, "sections": len(arrays)}
        if missing is not None:
            header |= {"mean": True, "missing": sorted(missing)}
        device, nbytes = spec.devices[rank], going.pieces[number].nbytes
        waiting = self._outgoing.setdefault((device, spec.stage), deque())
        waiting.append(_Sent(header, tuple(array.view(np.uint8).data for array in arrays), nbytes))
        parcel = OutgoingFrame(
            make=lambda: self._frame(spec.stage, device, waiting),
            urgency=Urgency.BULK,
            step=self.step,
            pair=(spec.stage, spec.stage),
            dense=nbytes,
            waits=False,
        )
        self._links.post(device, parcel)

    def _frame(self, stage: int, device: str, waiting: deque[_Sent]) -> Frame | None:
        """What has gathered for a device while earlier frames were under way (sender's thread)."""
        sent: list[_Sent] = []
        most = self._links.together(device)
        with self._lock:
            while waiting and (not sent or sum(piece.nbytes for piece in (*sent, waiting[0])) <= most):
                sent.append(waiting.popleft())
        if not sent:
            return None
        head = {"run": self._run, "stage": stage, "pieces": [piece.header for piece in sent]}
        return Frame("pieces", head, tuple(section for piece in sent for section in piece.sections))


def _unpack(going: _Going, piece: Piece, sections: Sequence[memoryview | bytes]) -> list[Array]:
    """``sections`` as arrays, without a copy; sizes are those of the piece."""
    if len(sections) != len(piece.runs):
        raise WireError(f"a piece of {len(piece.runs)} runs came as {len(sections)} sections")
    found = []
    for section, (index, start, stop) in zip(sections, piece.runs, strict=True):
        dtype = going.spec.arrays[index].dtype
        view = memoryview(section)
        if view.nbytes != (stop - start) * dtype.itemsize:
            raise WireError(f"a run of {(stop - start) * dtype.itemsize} bytes came with {view.nbytes}")
        found.append(np.frombuffer(view, np.uint8).view(dtype))
    return found


def _square(values: Array) -> float:
    return float(np.square(values, dtype=np.float32).sum(dtype=np.float64))


def _ranks(value: object) -> frozenset[int]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise WireError("the members that were missing must be a list of ranks")
    return frozenset(value)
