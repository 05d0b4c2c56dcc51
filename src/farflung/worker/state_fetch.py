"""How a worker comes by the states that its part in a new plan begins with, when they are still in workers' memory.

What it holds itself stays where it is; the rest comes from the holders that the broker names, over the links that the run uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.checkpoint.manifest import OPTIMIZER
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, WireError
from farflung.graph.ir import StateKind
from farflung.messages.array_stream import read_arrays
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.transports.base import Endpoint, Urgency
from farflung.wire.frames import Frame
from farflung.worker.retained_states import Live, Shelf

__all__ = ["Borrowing"]

#: A state with its optimizer slots takes at most so many times its bytes, and some more.
_SLOTS, _MORE = 5, 1 << 20


class Borrowing:
    """The beginning of one worker's part: ``states`` and ``optimizer`` may wait; ``receive`` is called on transport threads."""

    def __init__(self, live: Live, run: str, attempt: int, shelf: Shelf) -> None:
        self.live, self._run, self._attempt, self._shelf = live, run, attempt, shelf
        self._frames: dict[str, list[Frame]] = {}
        self._bytes: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._found: dict[str, Array] = {}

    def fetch(self, setup: RunSetup, endpoint: Endpoint, mailbox: Inbox) -> None:
        """Have everything that the own stages need.

        Raises:
            ConnectionLost: a holder is gone, or holds it no more.
            WireError: what came is malformed.
        """
        live, graph = self.live, setup.graph
        self._shelf.settle(self._run, self._attempt, live, setup.peers)
        ask = {"run": setup.run, "base": self._run, "attempt": self._attempt}
        for holder, names in live.moves.items():
            self._limits[holder] = _MORE + _SLOTS * sum(graph.state[name].spec.nbytes for name in names if name in graph.state)
            endpoint.post(holder, Frame("want", {**ask, "names": sorted(names)}), Urgency.CONTROL)
        wanted = {name for index in setup.own_stages for name in setup.subgraphs[index].states}
        self._found = self._shelf.read(self._run, live.step, wanted)
        for holder in live.moves:
            self._found |= read_arrays(mailbox.take(("lent", holder)))
        constant = {name for name in wanted if graph.state[name].kind is StateKind.CONSTANT}
        missing = sorted(wanted - set(self._found) - constant)
        if missing:
            raise ConnectionLost(f"nobody holds {missing[0]!r} after {live.step} steps any more")

    def receive(self, peer: str, frame: Frame, mailbox: Inbox) -> None:
        """A piece of what ``peer`` lends.

        Raises:
            WireError: it was not asked, or sends too much.
        """
        if peer not in self._limits:
            raise WireError(f"{peer} was not asked for states of run {self._run}; its {frame.kind!r:.40} is refused")
        if frame.header.get("end") is True:
            mailbox.put(("lent", peer), self._frames.pop(peer, []))
            return
        self._bytes[peer] = self._bytes.get(peer, 0) + sum(memoryview(section).nbytes for section in frame.sections)
        if self._bytes[peer] > self._limits[peer]:
            raise WireError(f"{peer} sends more than {self._limits[peer]} bytes of states, which is more than those have")
        self._frames.setdefault(peer, []).append(Frame("tensor", frame.header, frame.sections))

    def states(self, names: Sequence[str]) -> dict[str, Array]:
        """Of the states ``names`` what was found."""
        return {name: self._found[name] for name in names if name in self._found}

    def optimizer(self, parameters: Sequence[str]) -> dict[str, Array]:
        """The optimizer slots of ``parameters``."""
        slots = {key.removeprefix(OPTIMIZER): value for key, value in self._found.items() if key.startswith(OPTIMIZER)}
        mine = frozenset(parameters)
        return {key: value for key, value in slots.items() if key.split("/", 1)[1] in mine}
