"""``nat``: what a link carries that was punched through two NATs, over what it carries without NATs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.emulation.nat_network import BROKER, NatNetwork
from farflung.errors import EmulationError
from farflung.nat_types import NatType
from farflung.transports import Insecure, TransportConfig
from farflung.transports.base import PUNCHED, EndpointEvents
from farflung.transports.punching.hole_puncher import punch
from farflung.transports.punching.observation import Observation, observe
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame

__all__ = ["Nat", "NatSettings"]

_TARGET = 0.9
_PORT, _SECONDS = 7000, 5.0
_PIECE = memoryview(bytes(4 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class NatSettings(Settings):
    """``pieces``: frames of 4 MiB in each transfer, after ``warm_up`` further frames. ``repeats``: transfers of each kind, in
    turns. ``mbit``: what each device may send, in Mbit/s: less than two cores compute."""

    mbit: int = 200
    pieces: int = 32
    warm_up: int = 4
    repeats: int = 5


class Nat:
    """Goodput of a punched link over that of a plain one."""

    name = "nat"
    summary = "goodput of a link punched through two port-restricted NATs over one without NATs (root, iproute2, nftables)"

    def settings(self, quick: bool) -> NatSettings:
        """Quick: few pieces, one transfer of each kind."""
        return NatSettings(quick=True, pieces=4, warm_up=1, repeats=1) if quick else NatSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this machine cannot make namespaces with NATs.
        """
        assert isinstance(settings, NatSettings)
        nats = {"a": NatType.PORT_RESTRICTED, "b": NatType.PORT_RESTRICTED, "c": NatType.NONE, "d": NatType.NONE}
        rates: dict[str, list[float]] = {"plain": [], "punched": []}
        with NatNetwork(nats) as network, network.observers(_PORT):
            for name in nats:
                network.limit(name, settings.mbit)
            for _ in range(settings.repeats):
                for kind, (one, other) in (("plain", "cd"), ("punched", "ab")):
                    with _link(network, one, other, punched=kind == "punched") as endpoint:
                        rates[kind].append(_rate(endpoint, other, settings))
                    say(f"{kind}: {rates[kind][-1] / 1e6:.0f} MB/s")
        middle = {kind: median(found) for kind, found in rates.items()}
        ratio = middle["punched"] / middle["plain"]
        return Report(
            figures={"bytes_per_second": rates, "median": middle, "ratio": ratio},
            columns=("link", "median, MB/s", "from", "to"),
            rows=[(kind, middle[kind] / 1e6, min(found) / 1e6, max(found) / 1e6) for kind, found in rates.items()],
            checks=(
                Check(
                    name="goodput of a punched link over a plain one",
                    target=f"at least {_TARGET}",
                    measured=f"{ratio:.3f}",
                    passed=None if settings.quick else ratio >= _TARGET,
                    note="too short to judge" if settings.quick else "",
                ),
            ),
        )


@contextmanager
def _link(network: NatNetwork, one: str, other: str, *, punched: bool) -> Iterator[TcpEndpoint]:
    """The endpoint ``one`` with a link to ``other``, which drops what it gets."""
    config = TransportConfig()
    with ExitStack() as stack:
        near, far = _punch(network, one, other) if punched else (None, None)
        events = EndpointEvents() if near is None else EndpointEvents(punch=lambda peer: near)
        with network.inside(other):
            listen = f"{network.outer[other]}:0" if far is None else ""
            target = TcpEndpoint(Insecure(name=other), lambda peer, frame: None, listen=listen, config=config)
        stack.callback(target.close)
        with network.inside(one):
            source = TcpEndpoint(Insecure(name=one), lambda peer, frame: None, listen="", config=config, events=events)
        stack.callback(source.close)
        source.connect(other, target.address or PUNCHED)
        if far is not None:
            thread = threading.Thread(target=target.take_in, args=(far, ""))
            thread.start()
            stack.callback(thread.join)
        with network.inside(one):  # threads that dial are made here
            yield source


def _punch(network: NatNetwork, one: str, other: str) -> tuple[socket.socket, socket.socket]:
    seen: dict[str, Observation] = {}
    for name in (one, other):
        with network.inside(name):
            seen[name] = observe((BROKER, _PORT), seconds=_SECONDS)

    def end(name: str, peer: str) -> socket.socket:
        own = seen[name].sock
        with network.inside(name), own, closing(punch(own.getsockname()[1], seen[peer].seen, _SECONDS)) as found:
            for sock in found:
                return sock
        raise EmulationError(f"{name} punched no hole to {peer} in {_SECONDS:.0f} s; do other nftables rules drop its packets?")

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(end, one, other), pool.submit(end, other, one)]
        return ends[0].result(), ends[1].result()


def _rate(endpoint: TcpEndpoint, peer: str, settings: NatSettings) -> float:
    """Bytes per second from the first frame after the warm-up to the last confirmation."""
    for _ in range(settings.warm_up):
        endpoint.send(peer, Frame("x", {}, (_PIECE,)))
    begin = time.monotonic()
    futures = [endpoint.post(peer, Frame("x", {}, (_PIECE,))) for _ in range(settings.pieces)]
    for future in futures:
        future.result()
    return settings.pieces * len(_PIECE) / (time.monotonic() - begin)
