"""``nat``: what a direct link between two NATs carries, for all pairs of NAT types, over what a link without NATs carries."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.emulation.nat_network import BROKER, NatNetwork
from farflung.errors import EmulationError
from farflung.nat_types import NatType, Way, way_between
from farflung.security import split_address
from farflung.transports import Insecure, TransportConfig
from farflung.transports.base import PUNCHED, EndpointEvents
from farflung.transports.punching.hole_puncher import punch
from farflung.transports.punching.observation import Observation, observe, open_port
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame

__all__ = ["Nat", "NatSettings"]

_TARGET = 0.9
_PORT, _SECONDS = 7000, 5.0
_PIECE = memoryview(bytes(4 << 20))
_TYPES = [nat for nat in NatType if nat is not NatType.NONE]
#: Pairs that connect directly in theory, by a dial or by hole punching; the rest needs a relay.
_PAIRS = [(one, other) for one in _TYPES for other in _TYPES if way_between(one, other) is not Way.RELAY]
#: A device of the first side and one of the second side for each type, and two without NAT.
_DEVICES = {f"{side} {nat.value}": nat for side in "ab" for nat in NatType}


@dataclass(frozen=True, slots=True, kw_only=True)
class NatSettings(Settings):
    """``pieces``: frames of 4 MiB in each transfer, after ``warm_up`` further frames. ``repeats``: transfers of each pair, in
    turns. ``mbit``: what each device may send, in Mbit/s: less than two cores compute."""

    mbit: int = 200
    pieces: int = 8
    warm_up: int = 2
    repeats: int = 5


class Nat:
    """Goodput of direct links between NATs over that of a plain one."""

    name = "nat"
    summary = "goodput of direct links between all pairs of NAT types over a link without NATs (root, iproute2, nftables)"

    def settings(self, quick: bool) -> NatSettings:
        """Quick: few pieces, one transfer of each pair."""
        return NatSettings(quick=True, pieces=2, warm_up=1, repeats=1) if quick else NatSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this machine cannot make namespaces with NATs, or a pair does not connect.
        """
        assert isinstance(settings, NatSettings)
        plain = (NatType.NONE, NatType.NONE)
        rates: dict[tuple[NatType, NatType], list[float]] = {pair: [] for pair in (plain, *_PAIRS)}
        with NatNetwork(_DEVICES) as network, network.observers(_PORT):
            for name in _DEVICES:
                network.limit(name, settings.mbit)
            for _ in range(settings.repeats):
                for pair, found in rates.items():
                    ends = (f"a {pair[0].value}", f"b {pair[1].value}")
                    with _link(network, *ends, through=pair != plain) as endpoint:
                        found.append(_rate(endpoint, ends[1], settings))
                    say(f"{pair[0].value} to {pair[1].value}: {found[-1] / 1e6:.1f} MB/s")
        middle = {pair: median(found) for pair, found in rates.items()}
        return _report({pair: (way_between(*pair), middle[pair] / middle[plain]) for pair in _PAIRS}, middle[plain], settings)


def _report(ratios: Mapping[tuple[NatType, NatType], tuple[Way, float]], plain: float, settings: NatSettings) -> Report:
    worst = min(ratio for _, ratio in ratios.values())
    return Report(
        figures={
            "plain_bytes_per_second": plain,
            "ratios": {f"{one.value} to {other.value}": ratio for (one, other), (_, ratio) in ratios.items()},
            "worst_ratio": worst,
        },
        columns=("from behind", "to behind", "connects", "over a link without NAT"),
        rows=[(one.value, other.value, way.value, ratio) for (one, other), (way, ratio) in ratios.items()],
        checks=(
            Check(
                name=f"goodput of a direct link over one without NAT, the worst of {len(ratios)} pairs of NAT types",
                target=f"at least {_TARGET}",
                measured=f"{worst:.3f}",
                passed=None if settings.quick else worst >= _TARGET,
                note="too short to judge" if settings.quick else "",
            ),
        ),
    )


@contextmanager
def _link(network: NatNetwork, one: str, other: str, *, through: bool) -> Iterator[TcpEndpoint]:
    """The endpoint ``one`` with a link to ``other``, which drops what it gets. ``through``: NATs stand between them."""
    config = TransportConfig()
    with ExitStack() as stack:
        near, far = _connect(network, one, other) if through else (None, None)
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


def _connect(network: NatNetwork, one: str, other: str) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection through the NATs of ``one`` and ``other``."""
    if way_between(_DEVICES[one], _DEVICES[other]) is Way.PUNCHED:
        return _punch(network, one, other)
    if _DEVICES[other] is NatType.FULL_CONE:
        return _dial(network, one, other)
    far, near = _dial(network, other, one)
    return near, far


def _dial(network: NatNetwork, source: str, target: str) -> tuple[socket.socket, socket.socket]:
    """Let ``source`` dial the observed port of ``target``, and return both ends."""
    with ExitStack() as stack:
        with network.inside(target):
            seen = observe((BROKER, _PORT), seconds=_SECONDS)
            own = stack.enter_context(seen.sock)
            server = stack.enter_context(open_port(socket.AddressFamily(own.family), own.getsockname()[1]))
            server.listen()
            server.settimeout(_SECONDS)
        with network.inside(source):
            near = socket.create_connection(split_address(seen.seen), _SECONDS)
        far, _ = server.accept()
        for sock in (near, far):
            sock.setblocking(True)
        return near, far


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
