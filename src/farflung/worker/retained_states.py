"""What a worker still holds of a run when its part in an attempt has ended, and how others get it.

The states are those of the stages' runners, where they are: nothing is copied when a worker dies. They stay until training goes
on under a later plan, so a loss while that one is prepared loses nothing either.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.array_stream import write_arrays
from farflung.messages.fields import table, text, texts, whole
from farflung.messages.holdings import read_decision
from farflung.protocol.holdings import Decision, Holding
from farflung.transports.base import Endpoint, Urgency
from farflung.wire.frames import Frame

__all__ = ["Held", "Live", "Shelf"]


class Held(Protocol):
    """States of one step in this worker's memory."""

    @property
    def holding(self) -> Holding:
        """What they are."""

    def advance(self, decision: Decision) -> None:
        """Apply the step that it is ready with; ``holding`` is of the next step then."""

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """Of ``states`` those that are held, with their optimizer slots, under the names of ``checkpoint.pack``."""


class Live:
    """From where an attempt goes on, as the broker tells it: ``moves``: holder -> states that this worker needs from there."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        """Raises:
        WireError: the header is malformed.
        """
        self.step, self.committed = whole(header, "step"), whole(header, "committed")
        self.decision = read_decision(header.get("decision"))
        self.moves = {holder: frozenset(texts(table(header, "moves"), holder)) for holder in table(header, "moves")}


class Shelf:
    """The states that a worker holds of one run, the oldest first. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run = ""
        self._held: list[Held] = []
        #: The run that is over for this worker: what still ends here of it is not kept.
        self._forgotten = ""
        #: Attempt whose workers may fetch, who they are, and the step that they need.
        self._open: tuple[int, frozenset[str], int] = (0, frozenset(), 0)
        #: Requests that came before this worker was told whom to lend.
        self._parked: dict[str, tuple[Endpoint, str, Frame]] = {}

    @property
    def run(self) -> str:
        """Of which run something is held (empty: of none)."""
        with self._lock:
            return self._run if self._held else ""

    def holdings(self, run: str) -> list[Holding]:
        """What is held of ``run``."""
        with self._lock:
            return [held.holding for held in self._held] if self._run == run else []

    def put(self, run: str, *held: Held) -> None:
        """Keep ``held`` of ``run``, unless that was forgotten; what there is of another run goes.

        So does what ``held`` has all states of, after as many steps: attempts that end before they train hold the same again.
        """
        with self._lock:
            if run == self._forgotten:
                return
            if self._run != run:
                self._run, self._held = run, []
                self._parked.clear()
            fresh = [one.holding for one in held]
            self._held = [one for one in self._held if not any(_covers(new, one.holding) for new in fresh)]
            self._held += held

    def keep_only(self, run: str) -> None:
        """This worker works for ``run`` now: what it held of others is forgotten."""
        with self._lock:
            self._forgotten = ""
            if self._run != run:
                self._drop()

    def begins(self, run: str) -> None:
        """Training of ``run`` goes on here: what was held of it before is not needed any more."""
        with self._lock:
            if self._run == run:
                self._drop()

    def clear(self, run: str) -> None:
        """Forget ``run``, until this worker works for it again: a part of it that is still under way leaves nothing, either."""
        with self._lock:
            self._forgotten = run
            if self._run == run:
                self._drop()

    def _drop(self) -> None:
        self._held = []
        self._parked.clear()
        self._open = (0, frozenset(), 0)

    def settle(self, run: str, attempt: int, live: Live, peers: Iterable[str]) -> None:
        """Plan number ``attempt`` goes on from ``live``: apply what is ready for it, and let ``peers`` fetch."""
        with self._lock:
            if self._run != run:
                return
            for held in self._held:
                holding = held.holding
                if holding.ready and holding.step == live.step - 1 and live.decision is not None:
                    held.advance(live.decision)
            self._open = (attempt, frozenset(peers), live.step)
            parked, self._parked = self._parked, {}
        for peer, (endpoint, _, frame) in parked.items():
            self.lend(endpoint, peer, frame)

    def read(self, run: str, step: int, states: Collection[str]) -> dict[str, Array]:
        """Of ``states`` after ``step`` steps what is held here, packed."""
        found: dict[str, Array] = {}
        with self._lock:
            for held in self._held if self._run == run else ():
                if held.holding.step == step:
                    found = {**held.read([name for name in states if name in held.holding.states]), **found}
        return found

    def lend(self, endpoint: Endpoint, peer: str, frame: Frame) -> None:
        """``peer`` asks for states: send them on a thread of its own, now or when the broker has named ``peer``.

        Raises:
            WireError: the request is malformed.
        """
        header = frame.header
        run, attempt, names = text(header, "base", limit=200), whole(header, "attempt", low=1), texts(header, "names")
        with self._lock:
            opened, peers, step = self._open
            if run == self._run and self._held and (attempt > opened or (attempt == opened and peer not in peers)):
                self._parked[peer] = (endpoint, run, frame)
                return
        good = attempt == opened and peer in peers
        args = (endpoint, peer, str(header.get("run")), self.read(run, step, names) if good else {})
        threading.Thread(target=_send, args=args, name=f"lend-{peer}", daemon=True).start()


def _covers(new: Holding, old: Holding) -> bool:
    """Whether ``old`` is of no use beside ``new``."""
    return new.step == old.step and old.states <= new.states


def _send(endpoint: Endpoint, peer: str, run: str, arrays: Mapping[str, Array]) -> None:
    try:
        for frame in write_arrays(arrays.items()):
            endpoint.post(peer, Frame("lent", {**frame.header, "run": run}, frame.sections), Urgency.BULK)
        endpoint.post(peer, Frame("lent", {"run": run, "end": True}), Urgency.BULK)
    except (ConnectionLost, FarflungError):
        return  # who asked hears of it, and so does the broker
