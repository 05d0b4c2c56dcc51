"""The broker's side of relays: who carries what for which run, and the messages about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farflung.cluster import Topology, pair_of
from farflung.errors import WireError
from farflung.runtime.fields import table
from farflung.telemetry.records import RelayedRecord
from farflung.wire.frames import Frame

__all__ = ["Relays", "read_pairs", "read_relays", "write_relays"]

_MAX_PAIRS, _MAX_RELAYS, _MAX_NAME = 10_000, 8, 300


class Relays:
    """Which members relay for which runs. ``record`` keeps what a relay carried of a run. Thread-safe."""

    def __init__(self, send: Callable[[str, Frame], None], record: Callable[[str, RelayedRecord], None]) -> None:
        self._send, self._record = send, record
        self._lock = threading.Lock()
        #: run -> relay -> pairs
        self._runs: dict[str, dict[str, list[tuple[str, str]]]] = {}
        #: (run, relay): who was told that it is over, and has not yet said what it carried
        self._ended: set[tuple[str, str]] = set()

    def assign(
        self, run: str, topology: Topology | None, devices: Sequence[str], more: Sequence[tuple[str, str, str]] = ()
    ) -> None:
        """Let the relays of ``topology`` carry what ``devices`` exchange (None: the run needs none any more).

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
            self._send(relay, Frame("relay", {"run": run, "pairs": []}))
        for relay, pairs in wanted.items():
            self._send(relay, Frame("relay", {"run": run, "pairs": [list(pair) for pair in pairs]}))

    def gone(self, name: str) -> None:
        """``name`` relays nothing any more, and tells nothing."""
        with self._lock:
            for relays in self._runs.values():
                relays.pop(name, None)
            self._ended = {one for one in self._ended if one[1] != name}

    def told(self, name: str, run: str, header: Mapping[str, Any]) -> None:
        """``name`` says what it carried.

        Raises:
            WireError: it is malformed.
        """
        with self._lock:
            if (run, name) not in self._ended:
                return
            self._ended.discard((run, name))
        for source, target, count in _carried(header):
            self._record(run, RelayedRecord(relay=name, source=source, target=target, nbytes=count))


def write_relays(relays: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """Peer -> (relay, address), as a header's field."""
    return {peer: [list(entry) for entry in entries] for peer, entries in relays.items()}


def read_relays(header: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The relays of a header (it may have none): peer -> names and addresses.

    Raises:
        WireError: they are malformed.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for peer, entries in (table(header, "relays") if "relays" in header else {}).items():
        if not isinstance(entries, list) or len(entries) > _MAX_RELAYS:
            raise WireError(f"bad message: the relays to {peer!r:.60} must be a short list")
        found[peer] = [_two(entry) for entry in entries]
    return found


def read_pairs(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs that a member shall relay for.

    Raises:
        WireError: they are malformed.
    """
    pairs = header.get("pairs")
    if not isinstance(pairs, list) or len(pairs) > _MAX_PAIRS:
        raise WireError("bad message: pairs must be a list")
    return [_two(pair) for pair in pairs]


def _two(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(one, str) and len(one) <= _MAX_NAME for one in value):
        raise WireError(f"bad message: two texts belong where {value!r:.60} is")
    return value[0], value[1]


def _carried(header: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    entries = header.get("carried")
    if not isinstance(entries, list) or len(entries) > 2 * _MAX_PAIRS:
        raise WireError("bad message: what was carried must be a list")
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[2]) is not int or entry[2] < 0:
            raise WireError(f"bad message: two names and a number of bytes belong where {entry!r:.60} is")
        found.append((*_two(entry[:2]), entry[2]))
    return found
