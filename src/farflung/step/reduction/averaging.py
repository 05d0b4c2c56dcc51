"""Weighted means over a group, added up on the way: exchanges are cut into pieces, and each has a server among the members.

Source: a colocated sharded parameter server (DT-FM, equation (2)). Members send a piece to its server. The server adds in the
order of ranks, writes the mean over its own values and sends it to the others, which write it over theirs. So a link carries
``2 / members`` of an exchange instead of all of it, and every member ends with the same bits, whoever came first. What differs
from the paper: means are written in place, and a window bounds what is under way, so a member holds about three windows beside
its parameters.

An exchange with a ``patience`` ends without members that do not come: when so many seconds have passed since the server began,
the server adds what is there and divides the weights by their sum. A late member takes the mean of the others over its own
values.

Threads: the compute thread begins exchanges and waits for them; transport threads add pieces as they arrive, under one lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.messages.data import MeanPieces, PieceItem
from farflung.messages.router import PeerRouter
from farflung.messages.schema import UNSET, Sections
from farflung.step.inbox import Inbox
from farflung.step.reduction.piece_sender import PieceSender, SentPiece, Window
from farflung.step.reduction.pieces import Piece, pieces_of
from farflung.sync import SyncRound
from farflung.units import Seconds

__all__ = ["Averager", "Averaging", "Outcome"]

#: Exchanges that have ended and are remembered, for members that are late.
_REMEMBERED = 64

Key = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an exchange ended. ``gap``: the square of the distance of the own values from the mean; ``norm``: that of the mean.
    ``missing``: ranks that did not come. ``begin``, ``end``: here, seconds of the averager's clock."""

    gap: float
    norm: float
    missing: frozenset[int] = frozenset()
    begin: float = 0.0
    end: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """A contribution to a mean: flat ``arrays``, which hold the own values and get the means.

    ``rank``: the own one. ``devices``, ``weights``: of the members by rank. ``first``: the server of the first piece.
    ``patience``: seconds, see the module (``None``: every member is awaited); ``quorum``: how many must have come even then.
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


@dataclass(slots=True)
class _ServedPiece:
    """A piece that is served here: what has arrived and waits for its turn, and the sum of the ranks before."""

    round: SyncRound
    arrived: dict[int, list[Array]] = field(default_factory=dict)
    added: int = 0
    sums: list[Array] | None = None


@dataclass(slots=True)
class _Exchange:
    """An exchange that is under way here. ``waiting``: pieces that have not been sent; ``served``: by number, those that are
    added here; ``left``: pieces without a mean; ``out``: pieces under way by server."""

    spec: Averaging
    pieces: tuple[Piece, ...]
    waiting: list[int]
    served: dict[int, _ServedPiece]
    left: set[int]
    begin: float = 0.0
    out: dict[int, int] = field(default_factory=dict)
    gap: float = 0.0
    norm: float = 0.0
    missing: set[int] = field(default_factory=set)


class Averager:
    """All means of one worker; a ``Reduction``. The compute thread calls ``contribute`` and ``wait``, any thread ``receive``."""

    def __init__(
        self, groups: Mapping[int, Sequence[str]], nbytes: int, inbox: Inbox, sender: PieceSender, clock: Clock | None = None
    ) -> None:
        """``groups``: the devices of each own stage, by rank. ``nbytes``: of the parameters here."""
        self._groups, self._inbox, self._sender = groups, inbox, sender
        self._clock = clock or MonotonicClock()
        self.window = Window(nbytes)
        #: Guards all that follows and the window. Reentrant: pieces that came early are taken inside ``contribute``.
        self._lock = threading.RLock()
        self._exchanges: dict[Key, _Exchange] = {}
        #: Pieces of exchanges that have begun elsewhere and not here, with the ranks that sent them.
        self._early: dict[Key, list[tuple[int, Callable[[], None]]]] = {}
        self._over: dict[Key, None] = {}

    def begin_step(self, step: int) -> None:
        """Bytes that are sent from here on count for ``step`` (compute thread)."""
        self._sender.begin_step(step)

    def contribute(self, contribution: Averaging) -> None:
        """Begin an exchange; ``wait`` for its end before its arrays are read or written.

        Raises:
            WireError: a member that began earlier sent pieces that this exchange does not have.
        """
        spec = contribution
        pieces = pieces_of(spec.arrays, len(spec.devices), spec.first)
        deadline = Seconds(math.inf if spec.patience is None else self._clock.now() + spec.patience)
        group = tuple(range(len(spec.devices)))
        fresh = SyncRound(group=group, weights=spec.weights, deadline=deadline, quorum=spec.quorum)
        going = _Exchange(
            spec=spec,
            pieces=pieces,
            waiting=[number for number, piece in enumerate(pieces) if piece.server != spec.rank],
            served={number: _ServedPiece(fresh) for number, piece in enumerate(pieces) if piece.server == spec.rank},
            left=set(range(len(pieces))),
            begin=self._clock.now(),
        )
        key = (spec.stage, spec.tag)
        with self._lock:
            self._exchanges[key] = going
            for number in going.served:
                self._arrive(going, number, spec.rank, None)
            for rank, take in self._early.pop(key, ()):
                try:
                    take()
                except WireError as error:  # found only here, on the compute thread
                    raise WireError(f"{spec.devices[rank]}: {error}").blaming(spec.devices[rank]) from error
            self._end_if_done(going)
            self._pump()

    def wait(self, stage: int, tag: str) -> Outcome:
        """Return how an exchange ended; its arrays hold the means.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        self._await((stage, tag))
        outcome: Outcome = self._inbox.take(("averaged", stage, tag))
        return outcome

    def _await(self, key: Key) -> None:
        """Wait until an exchange has ended; its outcome stays in the inbox. Members that do not come are not awaited forever."""
        with self._lock:
            going = self._exchanges.get(key)
        patience = None if going is None else going.spec.patience
        while not self._inbox.wait_for(("averaged", *key), patience):
            self.expire()
            patience = None if patience is None else max(patience / 4, 0.01)

    def expire(self) -> None:
        """End the pieces served here whose deadline has passed."""
        with self._lock:
            for going in list(self._exchanges.values()):
                for number in list(going.served):
                    served = going.served[number]
                    served.round = served.round.tick(self._clock.now())
                    self._add(going, number)
                self._end_if_done(going)

    def settle(self) -> None:
        """Wait until what was begun has ended, as a checkpoint needs it; outcomes stay where ``wait`` finds them."""
        with self._lock:
            keys = list(self._exchanges)
        for key in keys:
            self._await(key)

    # -- messages -----------------------------------------------------------------------------------------------------

    def register(self, router: PeerRouter) -> None:
        """Pieces, and their means."""
        router.register(MeanPieces, self.receive)

    def receive(self, peer: str, message: MeanPieces) -> None:
        """Take pieces, or the means of some, from ``peer`` (transport thread); errors as in ``Reduction.register``."""
        stage, at = message.stage, 0
        if peer not in self._groups.get(stage, ()):
            raise WireError(f"{peer} is no replica of stage {stage}, of which one is here")
        rank = self._groups[stage].index(peer)
        for item in message.pieces:
            end = at + item.sections  # ``_unpack`` notices sections that are missing
            self._receive(stage, rank, item, message.sections[at:end])
            at = end

    def _receive(self, stage: int, rank: int, item: PieceItem, sections: Sections) -> None:
        key = (stage, item.tag)
        mean = item.mean is True
        absent = frozenset(() if item.missing is UNSET else item.missing)

        def take() -> None:
            self._take(key, rank, item.piece, absent if mean else None, sections)

        with self._lock:
            if key in self._over:
                return
            if key in self._exchanges:
                take()
                self._end_if_done(self._exchanges[key])
                self._pump()
                return
            if sum(map(len, self._early.values())) > _REMEMBERED * _REMEMBERED:
                raise WireError(f"{len(self._early)} exchanges have begun elsewhere and not here: {key[1]!r} is refused")
            self._early.setdefault(key, []).append((rank, take))

    def _take(self, key: Key, rank: int, number: int, absent: frozenset[int] | None, sections: Sections) -> None:
        going = self._exchanges[key]
        if number >= len(going.pieces):
            raise WireError(f"exchange {key[1]!r} has {len(going.pieces)} pieces, number {number} came")
        piece = going.pieces[number]
        arrays = _unpack(going, piece, sections)
        if absent is None:
            if piece.server != going.spec.rank:
                raise WireError(f"piece {number} of exchange {key[1]!r} is added up by another member")
            self._arrive(going, number, rank, arrays)
        elif piece.server != rank:
            raise WireError(f"piece {number} of exchange {key[1]!r} is added up by member {piece.server}, not by {rank}")
        elif number in going.left:
            self._finish(going, number, arrays, absent)
            if number in going.waiting:  # this member is late: the others went on without it
                going.waiting.remove(number)
            else:
                self.window.add(-piece.nbytes)
                going.out[rank] -= 1

    def _arrive(self, going: _Exchange, number: int, rank: int, arrays: list[Array] | None) -> None:
        """``rank``'s values of a piece that is served here are there (None: the own ones, which stay where they are)."""
        served = going.served.get(number)
        if served is None:
            return  # it ended without this member
        if arrays is not None:
            served.arrived[rank] = arrays
        served.round = served.round.arrive(rank, self._clock.now())
        self._add(going, number)

    def _add(self, going: _Exchange, number: int) -> None:
        """Add what is next in the order of ranks; when all have come, or the sync round is closed, send the mean to all."""
        served, spec = going.served[number], going.spec
        arrived, closed = served.round.arrived, served.round.closed
        while served.added < len(spec.devices) and (closed or served.added in arrived):
            rank = served.added
            served.added += 1
            if rank not in arrived:
                continue
            values = served.arrived.pop(rank, None) or self._own(going, number)
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
        del going.served[number]
        self._finish(going, number, served.sums, missing)
        for rank in range(len(spec.devices)):
            if rank != spec.rank:
                self._post(going, number, rank, served.sums, missing)

    def _own(self, going: _Exchange, number: int) -> list[Array]:
        return going.pieces[number].views(going.spec.arrays)

    def _finish(self, going: _Exchange, number: int, means: Sequence[Array], missing: frozenset[int]) -> None:
        """Write a mean over the own values."""
        for own, mean in zip(self._own(going, number), means, strict=True):
            going.gap += _square(own - mean)
            going.norm += _square(mean)
            own[...] = mean
        going.left.discard(number)
        going.missing |= missing

    def _end_if_done(self, going: _Exchange) -> None:
        key = (going.spec.stage, going.spec.tag)
        if not going.left and self._exchanges.pop(key, None) is not None:
            self._over[key] = None
            if len(self._over) > _REMEMBERED:
                del self._over[next(iter(self._over))]
            outcome = Outcome(
                gap=going.gap, norm=going.norm, missing=frozenset(going.missing), begin=going.begin, end=self._clock.now()
            )
            self._inbox.put(("averaged", *key), outcome)

    def _pump(self) -> None:
        """Send pieces in the order in which exchanges began, as far as the window allows."""
        for going in self._exchanges.values():
            for number in list(going.waiting):
                piece = going.pieces[number]
                if not self.window.has_room(piece.nbytes) and going.out.get(piece.server, 0):
                    continue
                going.waiting.remove(number)
                going.out[piece.server] = going.out.get(piece.server, 0) + 1
                self.window.add(piece.nbytes)
                self._post(going, number, piece.server, self._own(going, number), None)

    def _post(self, going: _Exchange, number: int, rank: int, arrays: Sequence[Array], missing: frozenset[int] | None) -> None:
        spec = going.spec
        item = PieceItem(
            tag=spec.tag,
            piece=number,
            sections=len(arrays),
            mean=UNSET if missing is None else True,
            missing=UNSET if missing is None else tuple(sorted(missing)),
        )
        sections = tuple(array.view(np.uint8).data for array in arrays)
        nbytes = going.pieces[number].nbytes
        self._sender.post(spec.devices[rank], spec.stage, SentPiece(item=item, sections=sections, nbytes=nbytes))


def _unpack(going: _Exchange, piece: Piece, sections: Sections) -> list[Array]:
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
