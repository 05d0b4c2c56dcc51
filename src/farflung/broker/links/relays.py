"""Which members relay for which runs, and what they carried."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.cluster import Topology, pair_of
from farflung.messages.commands import Relay
from farflung.messages.reports import Relayed
from farflung.messages.schema import Message
from farflung.telemetry.records import RelayedRecord

__all__ = ["Relays"]


class Relays:
    """The relays of all runs. Any thread may call."""

    def __init__(self, send: Callable[[str, Message], None]) -> None:
        self._send = send
        #: Guards the next two.
        self._lock = threading.Lock()
        #: run -> relay -> pairs
        self._runs: dict[str, dict[str, list[tuple[str, str]]]] = {}
        #: (run, relay): relays that were told to stop, and have not reported yet what they carried
        self._ended: set[tuple[str, str]] = set()

    def assign(
        self, run: str, topology: Topology | None, devices: Sequence[str], more: Sequence[tuple[str, str, str]] = ()
    ) -> None:
        """Let the relays of ``topology`` carry the traffic between ``devices`` (None: the run needs no relays any more).

        ``more``: further relays, each with the two members that it serves.
        """
        wanted: dict[str, list[tuple[str, str]]] = {}
        if topology is not None:
            for pair, relays in topology.via.items():
                if set(pair) <= set(devices):
                    for relay in relays:
                        wanted.setdefault(relay, []).append(pair)
        for relay, one, other in more:
            wanted.setdefault(relay, []).append(pair_of(one, other))
        with self._lock:
            before = self._runs.pop(run, {})
            if wanted:
                self._runs[run] = wanted
            over = [relay for relay in before if relay not in wanted]
            self._ended |= {(run, relay) for relay in over}
        for relay in over:
            self._send(relay, Relay(run=run, pairs=()))
        for relay, pairs in wanted.items():
            self._send(relay, Relay(run=run, pairs=tuple(pairs)))

    def lost(self, name: str) -> None:
        """``name`` relays nothing any more, and sends no report."""
        with self._lock:
            for relays in self._runs.values():
                relays.pop(name, None)
            self._ended = {one for one in self._ended if one[1] != name}

    def report(self, name: str, message: Relayed) -> list[RelayedRecord]:
        """Return what the relay ``name`` reports to have carried for a run, once after its end."""
        run = message.run
        with self._lock:
            if (run, name) not in self._ended:
                return []
            self._ended.discard((run, name))
        carried = message.carried
        return [RelayedRecord(relay=name, source=source, target=target, nbytes=count) for source, target, count in carried]
