"""A worker's links to its peers: addresses, relays, probes, and relaying for other members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from farflung.clock import monotonic
from farflung.errors import FarflungError
from farflung.messages.conversions.probes import Probe
from farflung.telemetry.log_line import Detail
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Endpoint
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Bytes
from farflung.worker.links.link_probe import probe_link
from farflung.worker.links.mapped_port import MappedPort
from farflung.worker.links.punching import Punching

__all__ = ["PeerLinks", "RelayService"]

#: peer -> (name, address) of the relays that reach it, the best first.
Relays = Mapping[str, Sequence[tuple[str, str]]]

#: Seconds after which ``reach`` answers, whatever a peer does: the broker waits for 20 seconds, and then counts none as reached.
_MOST_SECONDS = 15.0


class PeerLinks:
    """What the broker has reported of this worker's peers, applied to the data plane."""

    def __init__(self, endpoint: TcpEndpoint, punching: Punching, mapped: MappedPort | None = None) -> None:
        """``mapped``: the port of the router that leads to ``endpoint`` (None: nobody asked for one)."""
        self._endpoint, self._mapped = endpoint, mapped
        #: Connections with peers behind NAT.
        self.punching = punching
        #: The threads "reach".
        self._dials = ThreadGroup()

    @property
    def endpoint(self) -> Endpoint:
        """The data plane."""
        return self._endpoint

    @property
    def address(self) -> str:
        """Where peers dial this worker (empty: it dials them)."""
        return self._outer or self._endpoint.address

    @property
    def inner_address(self) -> str:
        """Where peers behind the same router dial this worker, if ``address`` is the router's (else empty)."""
        return self._endpoint.address if self._outer else ""

    @property
    def _outer(self) -> str:
        return "" if self._mapped is None else self._mapped.address

    def connect(self, addresses: Mapping[str, str], relays: Relays) -> None:
        """Store where peers are (empty: they dial), and through which relays some are reached."""
        for peer in dict.fromkeys([*addresses, *relays]):
            if peer in addresses:
                self._endpoint.connect(peer, addresses[peer])
            through = relays.get(peer, ())
            for relay, place in through:
                self._endpoint.connect(relay, place)
            self._endpoint.relay_through(peer, [relay for relay, _ in through])

    def release(self, peers: Sequence[str]) -> None:
        """A run with ``peers`` is over: they may not call any more, and the links that occupy relays are closed."""
        self._endpoint.part(peers)

    def limit_rate(self, rate: float | None) -> None:
        """Send at most ``rate`` bytes per second to all peers together (None: no limit)."""
        self._endpoint.cap.limit(rate)

    def probe(self, peer: str) -> tuple[Probe, str]:
        """Measure the link to ``peer``: the result, and the relay that the link uses.

        Raises:
            ConnectionLost: the peer can't be reached.
        """
        found = probe_link(self._endpoint, peer)
        return found, self._endpoint.statistics()[peer].relay

    def reach(self, peers: Mapping[str, str], seconds: float) -> dict[str, bool]:
        """Dial ``peers`` (name -> address) at the same time, each for about ``seconds``: which ones answered soon enough."""
        found = dict.fromkeys(peers, False)

        def dial(peer: str, address: str) -> None:
            with suppress(FarflungError):  # the peer can't be dialled: the answer is False
                found[peer] = self._endpoint.reach(peer, address, seconds)

        dials = [self._dials.spawn("reach", dial, peer, address) for peer, address in peers.items()]
        until = monotonic() + _MOST_SECONDS
        for one in dials:
            one.join(max(0.0, until - monotonic()))
        return dict(found)  # a slow dial may still change it

    def close(self) -> None:
        """Close all links, and give the router's port back."""
        self.punching.close()
        if self._mapped is not None:
            self._mapped.close()
        self._endpoint.close()
        self.punching.join()
        self._dials.join()


class RelayService:
    """Relays for members of the broker's runs. Only the session's thread calls."""

    def __init__(self, endpoint: TcpEndpoint, log: Callable[[str], None]) -> None:
        self._endpoint, self._log = endpoint, log
        #: run -> the pairs that this worker relays for, and the bytes that it had relayed before
        self._runs: dict[str, tuple[set[tuple[str, str]], dict[tuple[str, str], int]]] = {}

    def allow(self, run: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Relay between the members of each of ``pairs`` for ``run``."""
        known, _ = self._runs.setdefault(run, (set(), dict(self._endpoint.relayed())))
        self._endpoint.relay_for(run, pairs)
        known |= set(pairs)
        self._log(Detail(f"run {run}: relays between {', '.join(' and '.join(pair) for pair in pairs)}"))

    def end(self, run: str) -> list[tuple[str, str, int]]:
        """Relay for ``run`` no more; returns (sender, receiver, bytes) of what was relayed."""
        known, before = self._runs.pop(run, (set[tuple[str, str]](), dict(self._endpoint.relayed())))
        self._endpoint.relay_for(run, [])
        now = {way: count - before.get(way, 0) for way, count in self._endpoint.relayed().items()}
        carried = [(*way, count) for way, count in now.items() if count and known & {way, way[::-1]}]
        if carried:
            amounts = ", ".join(f"{Bytes(count)} from {source} to {target}" for source, target, count in carried)
            self._log(Detail(f"run {run}: relayed {amounts}"))
        return carried
