"""What every transport must do, checked on the memory transport, on TCP with TLS, on several connections, and shaped."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from farflung.errors import ConnectionLost, InputError, TrainingError, WireError
from farflung.security import Credentials
from farflung.transports import Endpoint, FrameHandler, TransportConfig, get_transport
from farflung.transports.memory import MemoryEndpoint, MemoryHub
from farflung.transports.shaping import LinkShape, ShapedEndpoint
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import BytesPerSecond, Seconds
from farflung.wire.frames import Frame, FrameLimits
from tests.support.network.quiet import nobody, settled

Make = Callable[..., Endpoint]
PATIENCE = 30.0


@pytest.fixture(params=["memory", "tcp", "tcp-stripes", "shaped"])
def make(request: pytest.FixtureRequest, member: Callable[..., Credentials]) -> Iterator[Make]:
    """Makes endpoints of one kind by name and handler."""
    hub, made = MemoryHub(), []
    kind = request.param
    stripes = 3 if kind.endswith("stripes") else 1

    def build(name: str, handler: FrameHandler, limits: FrameLimits | None = None) -> Endpoint:
        config = TransportConfig(
            window=2,
            stripes=stripes,
            chunk_bytes=2048 if stripes > 1 else 1 << 16,
            limits=limits or FrameLimits(),
            connect_timeout=Seconds(PATIENCE),
        )
        endpoint: Endpoint
        if kind == "memory":
            endpoint = hub.endpoint(name, handler, config)
        else:
            endpoint = TcpEndpoint(member(name), handler, listen="127.0.0.1:0", config=config)
        if kind == "shaped":
            shape = LinkShape(latency_seconds=Seconds(0.001), bytes_per_second=BytesPerSecond(1e9))
            endpoint = ShapedEndpoint(endpoint, {"a": shape, "b": shape}, window=2)
        made.append(endpoint)
        return endpoint

    yield build
    for endpoint in made:
        endpoint.close()


def _ignore(peer: str, frame: Frame) -> None:
    del peer, frame


def _pair(make: Make, handler: FrameHandler) -> tuple[Endpoint, Endpoint]:
    """(a, b): a can send to b, whose handler is given."""
    a, b = make("a", _ignore), make("b", handler)
    a.connect("b", b.address)
    return a, b


def _impatient(endpoint: Endpoint, seconds: float = 0.5) -> None:
    """It tries a peer that does not answer for so long only, from now on."""
    inner = getattr(endpoint, "_inner", endpoint)
    for name in ("config", "_config"):
        if hasattr(inner, name):
            setattr(inner, name, replace(getattr(inner, name), connect_timeout=Seconds(seconds)))


def test_frames_arrive_whole_and_are_counted(make: Make) -> None:
    got: list[tuple[str, Frame]] = []
    a, b = _pair(make, lambda peer, frame: got.append((peer, frame)))
    big = np.random.default_rng(1).integers(0, 256, 300_001, dtype=np.uint8)
    sections = (memoryview(big.data), b"", b"xyz", memoryview(np.arange(6.0).reshape(2, 3).data))
    a.send("b", Frame("activation", {"step": 3, "name": "h"}, sections))
    [(peer, frame)] = got
    assert (peer, frame.kind, dict(frame.header)) == ("a", "activation", {"step": 3, "name": "h"})
    assert [bytes(section) for section in frame.sections] == [bytes(section) for section in sections]
    settled(a)
    sent, received = a.statistics()["b"], b.statistics()["a"]
    assert (sent.frames_sent, received.frames_received) == (1, 1)
    assert sent.bytes_sent == received.bytes_received > 300_000
    assert sent.busy_seconds > 0


def test_order_is_kept_and_send_waits_for_the_handler(make: Make) -> None:
    got: list[int] = []
    a, _ = _pair(make, lambda peer, frame: got.append(frame.header["n"]))
    body = bytes(5000)
    for n in range(20):
        a.send("b", Frame("x", {"n": n}, (body,)))
        assert got[-1] == n
    futures = [a.post("b", Frame("x", {"n": n}, (body * (n % 3),))) for n in range(20, 60)]
    for future in futures:
        future.result(PATIENCE)
    assert got == list(range(60))


def test_a_busy_handler_holds_the_sender(make: Make) -> None:
    entered, release, third = threading.Event(), threading.Event(), threading.Event()
    got: list[int] = []

    def handler(peer: str, frame: Frame) -> None:
        entered.set()
        assert release.wait(PATIENCE)
        got.append(frame.header["n"])

    a, _ = _pair(make, handler)
    futures: list[Future[None]] = []

    def sender() -> None:
        for n in range(3):
            futures.append(a.post("b", Frame("x", {"n": n}, (bytes(100_000),))))  # noqa: PERF401 - each call may block
        third.set()

    thread = threading.Thread(target=sender)
    thread.start()
    assert entered.wait(PATIENCE)
    # the window is 2: the third frame is not taken while the first is being handled
    assert not third.wait(0.05)
    assert not any(future.done() for future in futures)
    assert a.statistics()["b"].busy_seconds > 0
    release.set()
    assert third.wait(PATIENCE)
    thread.join()
    for future in futures:
        future.result(PATIENCE)
    assert got == [0, 1, 2]


def test_both_directions_at_once(make: Make) -> None:
    got: dict[str, list[int]] = {"a": [], "b": []}
    a = make("a", lambda peer, frame: got["a"].append(frame.header["n"]))
    b = make("b", lambda peer, frame: got["b"].append(frame.header["n"]))
    a.connect("b", b.address)
    b.connect("a", a.address)

    def run(endpoint: Endpoint, peer: str) -> None:
        for n in range(30):
            endpoint.send(peer, Frame("x", {"n": n}, (bytes(3000),)))

    threads = [threading.Thread(target=run, args=pair) for pair in ((a, "b"), (b, "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {"a": list(range(30)), "b": list(range(30))}


def test_an_error_of_the_handler_reaches_the_sender(make: Make) -> None:
    def handler(peer: str, frame: Frame) -> None:
        if frame.kind == "bad":
            raise TrainingError("the loss at step 7 is not a number; lower the learning rate ≤ 1e-3")

    a, _ = _pair(make, handler)
    with pytest.raises(TrainingError, match=r"^the loss at step 7 is not a number; lower the learning rate ≤ 1e-3$"):
        a.send("b", Frame("bad"))
    a.send("b", Frame("good"))


def test_oversized_frames_are_refused_before_they_leave(make: Make) -> None:
    a = make("a", _ignore, FrameLimits(max_bytes=1000))
    b = make("b", _ignore)
    a.connect("b", b.address)
    with pytest.raises(WireError, match="oversized frame: 1001 bytes of sections, the limit is 1000"):
        a.post("b", Frame("x", {}, (bytes(1001),))).result(PATIENCE)
    a.send("b", Frame("x", {}, (bytes(1000),)))


def test_peers_that_cannot_be_reached(make: Make) -> None:
    a = make("a", _ignore)
    with pytest.raises(ConnectionLost, match=r"cannot reach c: its address is unknown; call connect\('c', address\) first"):
        a.send("c", Frame("x"))
    _impatient(a)
    with nobody() as free:
        address = "memory:b" if a.address.startswith("memory:") else free
        a.connect("b", address)
        with pytest.raises(ConnectionLost, match=f"cannot reach b at {address}"):
            a.send("b", Frame("x"))


def test_closing_fails_what_is_under_way(make: Make) -> None:
    entered, release = threading.Event(), threading.Event()

    def handler(peer: str, frame: Frame) -> None:
        entered.set()
        release.wait(PATIENCE)

    a, _ = _pair(make, handler)
    future = a.post("b", Frame("x"))
    assert entered.wait(PATIENCE)
    closer = threading.Thread(target=a.close)
    closer.start()
    with pytest.raises(ConnectionLost, match="closed"):
        future.result(PATIENCE)
    release.set()
    closer.join()
    with pytest.raises(ConnectionLost, match=r"cannot reach b: this endpoint \(a\) was closed|closed on this side"):
        a.send("b", Frame("x"))


def test_a_peer_that_closes_and_returns(make: Make) -> None:
    a, b = _pair(make, _ignore)
    a.send("b", Frame("x"))
    b.close()
    _impatient(a)
    with pytest.raises(ConnectionLost, match=r"(cannot reach|lost) b\b"):
        a.send("b", Frame("x"))
    _impatient(a, PATIENCE)
    got: list[str] = []
    b2 = make("b", lambda peer, frame: got.append(frame.kind))
    a.connect("b", b2.address)
    a.send("b", Frame("again"))
    assert got == ["again"]


def test_names_in_memory_are_unique() -> None:
    hub = MemoryHub()
    hub.endpoint("a", _ignore)
    with pytest.raises(InputError, match="an endpoint called 'a' exists already"):
        hub.endpoint("a", _ignore)


def test_a_defect_of_a_handler_in_memory_is_told() -> None:
    hub = MemoryHub()

    def handler(peer: str, frame: Frame) -> None:
        raise KeyError("layer")

    a, b = hub.endpoint("a", _ignore), hub.endpoint("b", handler)
    a.connect("b", b.address)
    with pytest.raises(Exception, match="b failed inside: KeyError: 'layer'"):
        a.send("b", Frame("x"))
    a.close()
    b.close()


def test_frames_in_memory_are_not_copied() -> None:
    hub, got = MemoryHub(), []
    a, b = hub.endpoint("a", _ignore), hub.endpoint("b", lambda peer, frame: got.append(frame))
    a.connect("b", b.address)
    frame = Frame("x", {}, (b"abc",))
    a.send("b", frame)
    assert got == [frame]
    assert got[0] is frame
    a.close()
    b.close()


def test_members_by_name() -> None:
    assert get_transport("memory") is MemoryEndpoint
    assert get_transport("tcp") is TcpEndpoint
    with pytest.raises(InputError, match="unknown transport 'udp': known are memory, tcp"):
        get_transport("udp")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 0}, "window must be from 1 to 64, got 0"),
        ({"chunk_bytes": 1 << 21}, "chunk_bytes must be from 1024 to 1048576, got 2097152"),
        ({"stripes": 65}, "stripes must be from 1 to 64, got 65"),
        ({"keepalive": Seconds(0.5)}, "keepalive must be from 1 to 86400 seconds, got 0.5"),
        ({"connect_timeout": Seconds(0.0)}, "connect_timeout must be from 0.001 to 86400 seconds, got 0.0"),
    ],
)
def test_settings_are_checked(settings: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TransportConfig(**settings)  # type: ignore[arg-type]
