"""What the system counts of a link's connections, brought to ``transports.goodput``."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from farflung.clock import monotonic
from farflung.errors import WireError
from farflung.transports.tcp.connection import Connection
from farflung.transports.tcp.goodput import Curve, Goodput, Look, Point, Stretches, Trips
from farflung.transports.tcp.sockets import FlowView, bbr_view, flow_view, kernel_view
from farflung.transports.tcp.state import read_number

__all__ = ["LinkGoodput", "Measured", "Others"]

#: Looking what the system counts costs some microseconds: not more often than so.
_LOOK = 0.2e-3
#: A look that took longer was not at one moment; so many tries.
_MOMENT, _TRIES = 0.2e-3, 3
#: Bytes for other peers that are company.
_COMPANY = 16 << 10
_MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class Others:
    """Bytes of an endpoint's other links: ``received`` and ``given`` since they began, and ``waiting`` to be confirmed."""

    received: int
    given: int
    waiting: int


class LinkGoodput:
    """Both sides of a link's measuring itself. Not thread-safe."""

    def __init__(self) -> None:
        self.goodput, self._trips = Goodput(), Trips()
        self._curve, self._stretches = Curve(), Stretches()
        self._known: tuple[Connection, ...] = ()
        self._generation, self._theirs = 0, -1
        self._told_at = self._looked = 0.0
        self._given = 0

    @property
    def alpha(self) -> float:
        """Seconds one way (0: not known)."""
        return self._trips.least / 2 if self._trips.least < math.inf else 0.0

    def due(self, now: float) -> bool:
        """Whether ``comes`` would look."""
        return self._curve.due(now)

    def comes(self, connections: Sequence[Connection], received: int) -> None:
        """Bytes are coming; ``received``: from other peers, since the beginning."""
        now, view, exact = self._view(connections)
        if view is not None and exact:
            self._curve.add(now, view.received, received, view.early)

    def gives(self, connection: Connection, connections: Sequence[Connection], others: Others) -> None:
        """Bytes will be given to ``connection``."""
        if monotonic() - self._looked < _LOOK:
            return
        now, view, exact = self._view(connections)
        own = flow_view(connection.sock)
        if view is None or own is None:
            return
        self._looked = now
        company = others.waiting > _COMPANY or others.given - self._given > _COMPANY
        self._given = others.given
        dry = own.unsent == 0
        self._stretches.gives(Look(now, view.sent, view.confirmed, view.unsent, dry=dry, company=company, exact=exact))

    def looks(self, connections: Sequence[Connection]) -> bool:
        """Look what was sent of what was given; whether that is of use again soon."""
        now, view, exact = self._view(connections)
        if view is None:
            return False
        self._stretches.look(Look(now, view.sent, view.confirmed, view.unsent, exact=exact))
        return view.unsent > 0 and not self._stretches.learned(2 * self.alpha)

    def tell(self, connections: Sequence[Connection]) -> list[Any]:
        """For the peer: the number of this set of connections, what has come in all, and points (empty: unknown)."""
        view = self._view(connections)[1]
        if view is None:
            return []
        points = [[point.time, point.nbytes, point.company, point.gap] for point in self._curve.take()]
        return [self._generation, view.received, points]

    def told(self, connections: Sequence[Connection], then: float, curve: Any, *, empty: bool, round_trip: float) -> None:
        """The peer told its ``curve``, ``then`` of its clock; ``empty``: all that it was sent has come.

        Raises:
            WireError: it is malformed.
        """
        if not isinstance(curve, list) or len(curve) != 3:
            return  # its system does not count
        generation, received = (int(read_number(value, 0, 1e18)) for value in curve[:2])
        points = _read_points(curve[2])
        now, view, exact = self._view(connections)
        if then < self._told_at or view is None:
            return
        self._told_at = then
        if generation != self._theirs:
            self._theirs = generation
            self._stretches.forget()
        look = Look(now, view.sent, view.confirmed, view.unsent, exact=exact)
        self._stretches.look(look)
        if empty:
            self._stretches.align(look.given, received)
        for segment in self._stretches.told(points, look.given, 2 * self.alpha or round_trip):
            self.goodput.add(segment)

    def tripped(self, connection: Connection, seconds: float, now: float, *, direct: bool) -> None:
        """A state and its answer took ``seconds``; what the system saw of ``connection`` counts, too, if no relay is between."""
        self._trips.add(seconds, now)
        if direct:
            view = bbr_view(connection.sock) if connection.congestion == "bbr" else None
            known = view.round_trip / 1e6 if view is not None else kernel_view(connection.sock).round_trip
            if known > 0:
                self._trips.add(known, now)

    def _view(self, connections: Sequence[Connection]) -> tuple[float, FlowView | None, bool]:
        """When that was, the sum over all (None: the system does not say), and whether this was one moment (or this thread was
        held up each time)."""
        known = tuple(connections)
        if known != self._known:
            self._known = known
            self._generation += 1
            self._stretches.forget()
            self._curve = Curve()
        now, views, exact = 0.0, [], False
        for _ in range(_TRIES):
            begin = monotonic()
            views = [view for connection in known if (view := flow_view(connection.sock)) is not None]
            now = monotonic()
            exact = now - begin < _MOMENT
            if exact:
                break
        return now, _sum(views) if views and len(views) == len(known) else None, exact


class Measured:
    """What a link needs to measure itself: its connections, which tell when they read and write."""

    def __init__(self, others: Callable[[], Others]) -> None:
        self.changed = threading.Condition()
        self.connections: list[Connection] = []
        self.own = LinkGoodput()
        #: Bytes that were given to connections, and that came over those that are no more.
        self.given = self.came = 0
        self._others = others

    @property
    def received(self) -> int:
        """Bytes that came, over connections of all times."""
        return self.came + sum(connection.received for connection in self.connections)

    def comes(self, connection: Connection) -> None:
        """See ``Carried``."""
        del connection
        if self.own.due(monotonic()):
            received = self._others().received
            with self.changed:
                self.own.comes(self.connections, received)

    def gives(self, connection: Connection) -> None:
        """See ``Carried``."""
        others = self._others()
        with self.changed:
            self.own.gives(connection, self.connections, others)

    def looks(self, connection: Connection) -> bool:
        """See ``Carried``."""
        del connection
        with self.changed:
            return self.own.looks(self.connections)


def _sum(views: Sequence[FlowView]) -> FlowView:
    return views[0] if len(views) == 1 else FlowView(*(sum(column) for column in zip(*map(astuple, views), strict=True)))


def _read_points(value: Any) -> list[Point]:
    if not isinstance(value, list) or len(value) > _MOST_POINTS:
        raise WireError(f"a link's state must have at most {_MOST_POINTS} points")
    points = []
    for entry in value:
        if not (isinstance(entry, list) and len(entry) == 4 and all(isinstance(flag, bool) for flag in entry[2:])):
            raise WireError("a link's state has a malformed point")
        points.append(Point(read_number(entry[0], 0.0, 1e18), int(read_number(entry[1], 0, 1e18)), *entry[2:]))
    return points
