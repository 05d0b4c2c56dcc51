"""What the broker asks a worker and takes time: measure the device, probe a link, dial peers. A report answers each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.messages.commands import Measure, Probe, Reach
from farflung.messages.reports import Measured, NatDescribed, Probed, Reached
from farflung.messages.schema import Message
from farflung.security import split_address
from farflung.thread_group import ThreadGroup
from farflung.transports.punching.nat_probe import find_nat
from farflung.worker.device_measurement import MeasuredDevice
from farflung.worker.links.peer_links import PeerLinks

__all__ = ["BrokerQueries"]

_Query = TypeVar("_Query", Measure, Probe, Reach)

#: The longest cause that is reported, in characters.
_MAX_CAUSE = 3000
#: The longest time for dialling, in seconds.
_REACH_SECONDS = 60.0


class BrokerQueries:
    """Answers each query on a thread of its own. The session thread calls its methods."""

    def __init__(
        self,
        device: MeasuredDevice,
        links: PeerLinks,
        broker: str,
        busy: Callable[[], bool],
        report: Callable[[Message], None],
    ) -> None:
        """``broker``: its ``host:port``. ``busy``: whether the worker has a part in a run."""
        self._device, self._links, self._broker, self._busy, self._report = device, links, broker, busy, report
        self._threads = ThreadGroup()

    def measure(self, query: Measure) -> None:
        """Measure the device."""
        self._threads.spawn("query-measure", self._answer, self._measure, query)

    def probe(self, query: Probe) -> None:
        """Measure a link."""
        self._threads.spawn("query-probe", self._answer, self._probe, query)

    def reach(self, query: Reach) -> None:
        """Try which peers can be dialed."""
        self._threads.spawn("query-reach", self._answer, self._reach, query)

    def describe_nat(self) -> None:
        """Report the type of NAT between this machine and the broker, once it is known."""
        self._threads.spawn("query-nat", self._describe_nat)

    def join(self) -> None:
        """Wait for the answers; links must be closed, and the session over."""
        self._threads.join()

    def _answer(self, answer: Callable[[_Query], None], query: _Query) -> None:
        with suppress(ConnectionLost):  # the broker is lost, and nobody waits for the answer
            answer(query)

    def _measure(self, query: Measure) -> None:
        """The broker plans a run for this worker.

        It has seen to it that no other worker of this machine measures now, or (``together``) that all of them do. A worker that
        has got a part meanwhile keeps the part's threads, and reports its older figures.
        """
        if self._busy():
            self._report(Measured(**self._device.speed))
            return
        with suppress(InputError):  # the broker continues with the older figures
            self._report(Measured(**self._device.measure_again(query.threads, together=query.together is True)))

    def _probe(self, query: Probe) -> None:
        """Measure the link to a peer."""
        peer = query.peer
        try:
            self._links.connect({peer: query.address}, query.relays or {})
            found, relay = self._links.probe(peer)
            answer = Probed(question=query.question, alpha=found.alpha, beta=found.beta, spread=found.spread, relay=relay)
        except FarflungError as error:
            answer = Probed(question=query.question, cause=str(error)[:_MAX_CAUSE])
        self._report(answer)

    def _describe_nat(self) -> None:
        with suppress(ConnectionLost):  # then the broker tries hole punching without knowing
            self._report(NatDescribed(nat=find_nat(split_address(self._broker))))

    def _reach(self, query: Reach) -> None:
        """Dial peers, all at once: which ones answer."""
        found = self._links.reach(query.peers, min(query.seconds, _REACH_SECONDS))
        self._report(Reached(question=query.question, found=dict(found)))
