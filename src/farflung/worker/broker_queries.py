"""What the broker asks a worker and takes time: measure the device, probe a link, dial peers. A report answers each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.messages.fields import number, table
from farflung.messages.relays import read_relays
from farflung.thread_group import ThreadGroup
from farflung.wire.frames import Frame
from farflung.worker.device_measurement import MeasuredDevice
from farflung.worker.peer_links import PeerLinks

__all__ = ["QUERIES", "BrokerQueries"]

#: Kinds of messages that are queries.
QUERIES = frozenset({"measure", "probe", "reach"})
#: The longest time for dialling, in seconds.
_REACH_SECONDS = 60.0


class BrokerQueries:
    """Answers each query on a thread of its own. ``begin`` is called on the session's thread."""

    def __init__(self, device: MeasuredDevice, links: PeerLinks, busy: Callable[[], bool], report: Callable[..., None]) -> None:
        """``busy``: whether the worker has a part in a run."""
        self._device, self._links, self._busy, self._report = device, links, busy, report
        self._threads = ThreadGroup()

    def begin(self, frame: Frame) -> None:
        """Answer the query ``frame``."""
        answer = {"measure": self._measure, "probe": self._probe, "reach": self._reach}[frame.kind]
        self._threads.spawn(f"query-{frame.kind}", self._answer, answer, frame)

    def join(self) -> None:
        """Wait for the answers; links must be closed, and the session over."""
        self._threads.join()

    def _answer(self, answer: Callable[[Frame], None], frame: Frame) -> None:
        with suppress(ConnectionLost):  # the broker is lost, and nobody waits for the answer
            answer(frame)

    def _measure(self, frame: Frame) -> None:
        """The broker plans a run for this worker.

        It has seen to it that no other worker of this machine measures now, or (``together``) that all of them do. A worker that
        has got a part meanwhile keeps the part's threads, and reports its older figures.
        """
        if self._busy():
            self._report("measured", **self._device.speed)
            return
        threads, together = int(frame.header.get("threads", 1)), frame.header.get("together") is True
        with suppress(InputError):  # the broker continues with the older figures
            self._report("measured", **self._device.measure_again(threads, together=together))

    def _probe(self, frame: Frame) -> None:
        """Measure the link to a peer."""
        peer = str(frame.header.get("peer"))
        try:
            self._links.connect({peer: str(frame.header.get("address"))}, read_relays(frame.header))
            found, relay = self._links.probe(peer)
            answer: dict[str, Any] = {"alpha": found.alpha, "beta": found.beta, "spread": found.spread, "relay": relay}
        except FarflungError as error:
            answer = {"cause": str(error)}
        self._report("probed", peer=peer, **answer)

    def _reach(self, frame: Frame) -> None:
        """Dial peers, all at once: which ones answer."""
        peers = {peer: str(address) for peer, address in table(frame.header, "peers").items()}
        found = self._links.reach(peers, min(number(frame.header, "seconds", low=0.1), _REACH_SECONDS))
        self._report("reached", question=frame.header.get("question"), found=found)
