"""States that outlive an ended attempt of a run, and how peers fetch them.

The states are those of the stages' runners, where they are: nothing is copied when a worker dies. They stay until training
continues under a later plan, so a loss while that plan is prepared loses nothing either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from farflung.engines.base import Array
from farflung.errors import EngineCrashed, FarflungError
from farflung.messages.array_stream import tensor_pieces
from farflung.messages.commands import LiveStart
from farflung.messages.conversions.retained_states import decision_of
from farflung.messages.data import LentEnd, LentPiece, StatesWanted
from farflung.messages.wire_form import encode
from farflung.protocol.retained_states import Decision, RetainedState
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Endpoint, Urgency

__all__ = ["Continuation", "RetainedStates", "StoredStates"]


Used = TypeVar("Used")


class StoredStates(Protocol):
    """States of one step in this worker's memory. The lock of ``RetainedStates`` guards the calls."""

    @property
    def retained_state(self) -> RetainedState:
        """Which states they are."""

    def advance(self, decision: Decision) -> None:
        """Apply the prepared step; ``retained_state`` is of the next step then."""

    def release(self) -> None:
        """These states are not needed any more: whatever holds them may end."""

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """Those of ``states`` that are retained, with their optimizer slots, under the names of ``checkpoint.pack``."""


class Continuation:
    """The states that an attempt continues from: those after ``step`` steps. ``moves``: peer -> states to fetch from it.

    ``hashes``: of states that are copies, by the workers that computed them.
    """

    def __init__(self, start: LiveStart) -> None:
        self.step, self.committed = start.step, start.committed
        self.decision, self.hashes = decision_of(start.decision), start.hashes or {}
        self.moves = {holder: frozenset(names) for holder, names in start.moves.items()}


class RetainedStates:
    """The states that a worker retains of one run, the oldest first. Outlives sessions. Any thread may call."""

    def __init__(self) -> None:
        #: Guards all fields below; it is released before frames are sent.
        self._lock = threading.Lock()
        self._run = ""
        self._stored: list[StoredStates] = []
        #: The run that is over for this worker: states that a part of it leaves later are dropped.
        self._forgotten = ""
        #: Attempt whose workers may fetch, their names, and the step that they need.
        self._open: tuple[int, frozenset[str], int] = (0, frozenset(), 0)
        #: The peers that have been sent states for that attempt: each one asks once, and each answer is a copy in memory.
        self._served: set[str] = set()
        #: Requests that came before the broker named the peers that may fetch.
        self._parked: dict[str, tuple[Endpoint, str, StatesWanted]] = {}
        self._threads = ThreadGroup()

    @property
    def run(self) -> str:
        """The run whose states are retained (empty: none)."""
        with self._lock:
            return self._run if self._stored else ""

    def retained_states(self, run: str) -> list[RetainedState]:
        """What is retained of ``run``."""
        with self._lock:
            return [held.retained_state for held in self._stored] if self._run == run else []

    def store(self, run: str, *held: StoredStates) -> None:
        """Retain ``held`` of ``run``, unless ``run`` was forgotten; drop the states of another run.

        Older states are dropped if ``held`` has all of them after as many steps: an attempt that ends before it trains retains
        the same states again.
        """
        with self._lock:
            if run == self._forgotten:
                for one in held:
                    one.release()
                return
            if self._run != run:
                self._drop()
                self._run = run
            fresh = [one.retained_state for one in held]
            covered = [one for one in self._stored if any(_covers(new, one.retained_state) for new in fresh)]
            self._stored = [one for one in self._stored if one not in covered]
            self._stored += held
            for one in covered:
                one.release()

    def keep_only(self, run: str) -> None:
        """This worker works for ``run`` now: drop the states of other runs."""
        with self._lock:
            self._forgotten = ""
            if self._run != run:
                self._drop()

    def training_begins(self, run: str) -> None:
        """Training of ``run`` continues here: its older states are not needed any more."""
        with self._lock:
            if self._run == run:
                self._drop()

    def forget(self, run: str) -> None:
        """Drop ``run`` until this worker works for it again, including states that a part of it leaves later."""
        with self._lock:
            self._forgotten = run
            if self._run == run:
                self._drop()

    def _drop(self) -> None:
        """Drop all states; the lock is held."""
        for held in self._stored:
            held.release()
        self._stored = []
        self._parked.clear()
        self._served.clear()
        self._open = (0, frozenset(), 0)

    def settle(self, run: str, attempt: int, continuation: Continuation, peers: Iterable[str]) -> None:
        """Attempt number ``attempt`` continues: apply the step that is prepared for it, and let ``peers`` fetch."""
        with self._lock:
            if self._run != run:
                return
            for held in list(self._stored):
                retained_state = held.retained_state
                if retained_state.ready and retained_state.step == continuation.step - 1 and continuation.decision is not None:
                    self._alive(held, partial(held.advance, continuation.decision))
            self._open = (attempt, frozenset(peers), continuation.step)
            self._served.clear()
            parked, self._parked = self._parked, {}
        for peer, (endpoint, _, wanted) in parked.items():
            self.lend(endpoint, peer, wanted)

    def read(self, run: str, step: int, states: Collection[str]) -> dict[str, Array]:
        """Those of ``states`` after ``step`` steps that are retained here, packed."""
        found: dict[str, Array] = {}
        with self._lock:
            for held in list(self._stored) if self._run == run else ():
                if held.retained_state.step == step:
                    wanted = [name for name in states if name in held.retained_state.states]
                    found = {**(self._alive(held, partial(held.read, wanted)) or {}), **found}
        return found

    def _alive(self, held: StoredStates, use: Callable[[], Used]) -> Used | None:
        """What ``use`` of ``held`` returns; states whose process has died are not retained any more. The lock is held."""
        try:
            return use()
        except EngineCrashed:
            self._stored.remove(held)
            return None

    def lend(self, endpoint: Endpoint, peer: str, wanted: StatesWanted) -> None:
        """Send ``peer`` the states that it requests, on a thread, as soon as the broker has named ``peer``."""
        run, attempt = wanted.base, wanted.attempt
        with self._lock:
            opened, peers, step = self._open
            if run == self._run and self._stored and (attempt > opened or (attempt == opened and peer not in peers)):
                self._parked[peer] = (endpoint, run, wanted)
                return
            good = attempt == opened and peer in peers
            if good and peer in self._served:
                return
            self._served |= {peer} if good else set()
        arrays = self.read(run, step, tuple(dict.fromkeys(wanted.names))) if good else {}
        # on a thread: the caller serves the peer's other messages, and sending takes as long as the link needs
        self._threads.spawn(f"lend-{peer}", _send, endpoint, peer, wanted.run, arrays)

    def join(self) -> None:
        """Wait for the threads that send states; their endpoint must be closed."""
        self._threads.join()


def _covers(new: RetainedState, old: RetainedState) -> bool:
    """Whether ``old`` is of no use beside ``new``."""
    return new.step == old.step and old.states <= new.states


def _send(endpoint: Endpoint, peer: str, run: str, arrays: Mapping[str, Array]) -> None:
    try:
        for piece in tensor_pieces(arrays.items()):
            lent = LentPiece(run=run, name=piece.name, array=piece.array, last=piece.last, sections=piece.sections)
            endpoint.post(peer, encode(lent), Urgency.BULK)
        endpoint.post(peer, encode(LentEnd(run=run)), Urgency.BULK)
    except FarflungError:
        return  # the connection is lost: the peer notices, and reports to the broker
