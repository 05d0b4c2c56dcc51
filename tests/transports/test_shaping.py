"""The shaper's arithmetic in virtual time, and its behaviour around a real endpoint."""

import threading
from collections.abc import Iterator

import pytest

from farflung.clock import VirtualClock
from farflung.errors import ConnectionLost, InputError, TrainingError
from farflung.transports.memory import MemoryHub
from farflung.transports.meter import frame_bytes
from farflung.transports.shaping import LinkShape, ShapedEndpoint, Uplink
from farflung.units import BytesPerSecond, Seconds
from farflung.wire.frames import Frame
from tests.support.network.quiet import settled

PATIENCE = 30.0


def _shape(latency: float, rate: float, share: str | None = None) -> LinkShape:
    return LinkShape(latency_seconds=Seconds(latency), bytes_per_second=BytesPerSecond(rate), share=share)


def _ignore(peer: str, frame: Frame) -> None:
    del peer, frame


class VirtualWaits:
    """A virtual clock that jumps to whatever is waited for, and notes it by thread name.

    The threads that deliver wait until ``sent`` is set, so that a test can say what leaves before anything arrives.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.waits: dict[str, list[float]] = {}
        self.sent = threading.Event()
        self.sent.set()
        self._lock = threading.Lock()

    def wait_until(self, until: float) -> None:
        if threading.current_thread().name.startswith("shaped-"):
            assert self.sent.wait(PATIENCE)
        with self._lock:
            self.waits.setdefault(threading.current_thread().name, []).append(until)
            self.clock.advance(max(0.0, until - self.clock.now()))


@pytest.fixture
def hub() -> Iterator[MemoryHub]:
    made = MemoryHub()
    yield made
    for name in ("a", "b", "c"):
        endpoint = made.find(f"memory:{name}")
        if endpoint is not None:
            endpoint.close()


def test_an_uplink_transmits_one_after_another() -> None:
    link = Uplink(BytesPerSecond(1000.0))
    assert link.reserve(0.0, 500) == 0.5
    assert link.reserve(0.0, 500) == 1.0  # was ready at 0 but had to wait
    assert link.reserve(3.0, 1000) == 4.0  # the link was idle from 1 to 3


def test_sharers_take_turns_piece_by_piece() -> None:
    """Two senders with 3 pieces each, both ready at 0: each gets half of the rate."""
    link = Uplink(BytesPerSecond(1000.0))
    first = second = 0.0
    ends = []
    for _ in range(3):
        first = link.reserve(first, 100)
        second = link.reserve(second, 100)
        ends.append((round(first, 6), round(second, 6)))
    assert ends == [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]


def test_pieces_are_about_ten_milliseconds_and_bounded() -> None:
    assert list(Uplink(BytesPerSecond(1e6)).pieces(25_000)) == [10_000, 10_000, 5_000]
    assert list(Uplink(BytesPerSecond(10.0)).pieces(5_000)) == [4096, 904]
    assert max(Uplink(BytesPerSecond(1e12)).pieces(5 << 20)) == 1 << 20
    assert list(Uplink(BytesPerSecond(1e6)).pieces(0)) == []


def test_times_of_frames_follow_the_formula(hub: MemoryHub) -> None:
    """Two frames of the same size, rate such that one takes 1 s, latency 0.25 s: they arrive at 1.25 and 2.25."""
    frame = Frame("x", {}, (bytes(100_000),))
    rate = float(frame_bytes(frame))
    time = VirtualWaits()
    got: list[Frame] = []
    inner, b = hub.endpoint("a", _ignore), hub.endpoint("b", lambda peer, frame: got.append(frame))
    a = ShapedEndpoint(inner, {"b": _shape(0.25, rate)}, clock=time.clock, wait_until=time.wait_until)
    a.connect("b", b.address)
    time.sent.clear()
    futures = []
    for at in (1.0, 2.0):
        futures.append(a.post("b", frame))
        # the frame has left when post returns; its arrival does not hold the next one
        assert time.waits[threading.current_thread().name][-1] == pytest.approx(at)
    time.sent.set()
    for future in futures:
        future.result(PATIENCE)
    a.close()
    left = time.waits[threading.current_thread().name]
    assert time.waits["shaped-b-out"] == pytest.approx([1.25, 2.25])
    assert len(left) == 2 * 25
    assert len(got) == 2
    settled(a)
    assert a.statistics()["b"].bytes_sent == 2 * frame_bytes(frame)


def test_the_acknowledgement_takes_the_way_back(hub: MemoryHub) -> None:
    time = VirtualWaits()
    inner, b = hub.endpoint("a", _ignore), hub.endpoint("b", _ignore)
    frame = Frame("x", {}, (bytes(50),))
    a = ShapedEndpoint(inner, {"b": _shape(0.5, float(frame_bytes(frame)))}, clock=time.clock, wait_until=time.wait_until)
    a.connect("b", b.address)
    a.send("b", frame)
    a.close()
    assert time.clock.now() == pytest.approx(1.0 + 0.5 + 0.5)
    settled(a)
    assert a.statistics()["b"].busy_seconds == pytest.approx(2.0)


def test_unshaped_peers_cost_no_time(hub: MemoryHub) -> None:
    time = VirtualWaits()
    inner, b, c = hub.endpoint("a", _ignore), hub.endpoint("b", _ignore), hub.endpoint("c", _ignore)
    a = ShapedEndpoint(inner, {"b": _shape(0.0, 10.0)}, clock=time.clock, wait_until=time.wait_until)
    a.connect("c", c.address)
    a.connect("b", b.address)
    a.send("c", Frame("x", {}, (bytes(1000),)))
    assert time.clock.now() == 0.0
    settled(a)
    assert a.statistics()["c"].frames_sent == 1
    assert a.address == "memory:a"
    a.close()


def test_received_traffic_is_kept_in_the_statistics(hub: MemoryHub) -> None:
    inner, b = hub.endpoint("a", _ignore), hub.endpoint("b", _ignore)
    a = ShapedEndpoint(inner, {"b": _shape(0.0, 1e9)})
    a.connect("b", b.address)
    b.connect("a", a.address)
    a.send("b", Frame("x"))
    b.send("a", Frame("x", {}, (bytes(500),)))
    b.send("a", Frame("y"))
    settled(a)
    both = a.statistics()["b"]
    assert (both.frames_sent, both.frames_received) == (1, 2)
    a.close()


def test_errors_pass_through(hub: MemoryHub) -> None:
    def handler(peer: str, frame: Frame) -> None:
        raise TrainingError("no")

    inner, b = hub.endpoint("a", _ignore), hub.endpoint("b", handler)
    a = ShapedEndpoint(inner, {"b": _shape(0.0, 1e9), "c": _shape(0.0, 1e9)})
    a.connect("b", b.address)
    with pytest.raises(TrainingError, match="no"):
        a.send("b", Frame("x"))
    with pytest.raises(ConnectionLost, match="cannot reach c: its address is unknown"):
        a.send("c", Frame("x"))
    a.close()


def test_closing_does_not_wait_for_slow_frames(hub: MemoryHub) -> None:
    """A frame that needs ten days is given up at once."""
    inner, b = hub.endpoint("a", _ignore), hub.endpoint("b", _ignore)
    a = ShapedEndpoint(inner, {"b": _shape(0.0, 1.0)})
    a.connect("b", b.address)
    errors: list[BaseException | None] = []
    entered = threading.Event()

    def send() -> None:
        entered.set()
        errors.append(a.post("b", Frame("x", {}, (bytes(1_000_000),))).exception(PATIENCE))

    thread = threading.Thread(target=send)
    thread.start()
    assert entered.wait(PATIENCE)
    a.close()
    thread.join()
    assert isinstance(errors[0], ConnectionLost)
    assert "closed" in str(errors[0])


def test_wrong_shapes_are_refused(hub: MemoryHub) -> None:
    with pytest.raises(InputError, match=r"a latency from 0 to 3600 s and a rate above 0, got 0.1 s and 0.0 B/s"):
        _shape(0.1, 0.0)
    with pytest.raises(InputError, match=r"got -1.0 s"):
        _shape(-1.0, 5.0)
    a = ShapedEndpoint(hub.endpoint("a", _ignore), {"b": _shape(0.0, 10.0, "far")})
    with pytest.raises(InputError, match="the link to b is shaped already"):
        a.shape("b", _shape(0.0, 10.0))
    with pytest.raises(InputError, match=r"share the link 'far' must name one rate: c says 160 bit/s, another one 80 bit/s"):
        a.shape("c", _shape(0.0, 20.0, "far"))
    a.close()
