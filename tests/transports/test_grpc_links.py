"""gRPC links on the loopback: who may speak to whom, what a death looks like, what a hostile sender achieves."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quiet import PATIENCE, nobody

from farflung.errors import ConnectionLost, FarflungError, InputError, SecurityError, VersionError, WireError
from farflung.security import Credentials
from farflung.transports import Insecure, TransportConfig, grpc_sender
from farflung.transports.grpc_base import PEER_KEY, open_channel
from farflung.transports.grpc_endpoint import GrpcEndpoint
from farflung.transports.grpc_receiver import _IncomingLink
from farflung.transports.grpc_sender import GOODBYE, LINK, LINK_KEY, NUMBER, STRIPE_KEY
from farflung.transports.grpc_status import explain
from farflung.units import Seconds
from farflung.wire.frames import Frame, FrameLimits, encode_frame

Member = Callable[..., Credentials]
CALM = TransportConfig(connect_timeout=Seconds(PATIENCE))


def _ignore(peer: str, frame: Frame) -> None:
    del peer, frame


def _endpoint(security: Credentials | Insecure, handler: Callable[[str, Frame], None] = _ignore, **more: object) -> GrpcEndpoint:
    return GrpcEndpoint(security, handler, listen="127.0.0.1:0", **({"config": CALM} | more))  # type: ignore[arg-type]


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, the time to connect is over after the first try, however long that one takes."""

    def over() -> None:
        told = iter([0.0, 0.0])
        monkeypatch.setattr(grpc_sender, "time", SimpleNamespace(monotonic=lambda: next(told, 1e9)))

    return over


def test_a_server_with_another_name_is_refused(member: Member) -> None:
    with closing(_endpoint(member("a"))) as a, closing(_endpoint(member("b"))) as b:
        a.connect("c", b.address)
        with pytest.raises(SecurityError, match=f"the server at {b.address} cannot prove that it is c of this cluster"):
            a.send("c", Frame("x"))


def test_a_server_of_another_cluster_is_refused(member: Member) -> None:
    with closing(_endpoint(member("a"))) as a, closing(_endpoint(member("b", cluster="two"))) as b:
        a.connect("b", b.address)
        with pytest.raises(SecurityError, match=r"cannot prove that it is b of this cluster \(.*CERTIFICATE_VERIFY_FAILED"):
            a.send("b", Frame("x"))


def test_a_caller_of_another_cluster_reaches_no_handler(member: Member, one_try: Callable[[], None]) -> None:
    """He trusts the server's authority but shows a certificate of his own."""
    one_try()
    got: list[str] = []
    stranger = member("a", cluster="two")
    mixed = Credentials(name="a", key=stranger.key, certificate=stranger.certificate, authority=member("a").authority)
    with closing(_endpoint(mixed)) as a, closing(_endpoint(member("b"), lambda peer, frame: got.append(peer))) as b:
        a.connect("b", b.address)
        with pytest.raises(ConnectionLost, match=f"cannot reach b at {b.address}: .*; check that b runs and the port is open"):
            a.send("b", Frame("x"))
        assert got == []


def test_a_plain_caller_reaches_no_handler(member: Member, one_try: Callable[[], None]) -> None:
    one_try()
    got: list[str] = []
    with closing(_endpoint(Insecure(name="a"))) as a, closing(_endpoint(member("b"), lambda peer, frame: got.append(peer))) as b:
        a.connect("b", b.address)
        with pytest.raises(ConnectionLost, match="cannot reach b"):
            a.send("b", Frame("x"))
        assert got == []


def test_the_name_is_that_of_the_certificate(member: Member) -> None:
    """What a caller says of himself counts nothing."""
    got: list[str] = []
    with closing(_endpoint(member("b"), lambda peer, frame: got.append(peer))) as b:
        with _raw_link(b.address, member("mallory"), claimed="a") as send:
            assert send([_message(0, Frame("x")), NUMBER.pack(GOODBYE)]) is None
        assert got == ["mallory"]


def test_plain_endpoints_for_tests() -> None:
    got: list[str] = []
    with closing(_endpoint(Insecure(name="a"))) as a, closing(_endpoint(Insecure(name="b"), lambda p, f: got.append(p))) as b:
        a.connect("b", b.address)
        a.send("b", Frame("x", {}, (b"checked",)))
        assert got == ["a"]


def test_a_receiver_refuses_what_is_too_large_for_it(member: Member) -> None:
    small = TransportConfig(limits=FrameLimits(max_bytes=1000))
    with closing(_endpoint(member("a"))) as a, closing(_endpoint(member("b"), config=small)) as b:
        a.connect("b", b.address)
        with pytest.raises(WireError, match="oversized frame: 5000000 bytes of sections, the limit is 1000"):
            a.send("b", Frame("x", {}, (bytes(5_000_000),)))
        a.send("b", Frame("x", {}, (bytes(1000),)))


def test_nobody_listens(member: Member, one_try: Callable[[], None]) -> None:
    one_try()
    with closing(_endpoint(member("a"))) as a, nobody() as address:
        a.connect("b", address)
        with pytest.raises(
            ConnectionLost, match=f"cannot reach b at {address}: .*refused.*; check that b runs and the port is open"
        ):
            a.send("b", Frame("x"))


def test_a_taken_port(member: Member) -> None:
    with (
        closing(_endpoint(member("a"))) as a,
        pytest.raises(InputError, match=f"cannot listen at {a.address}: is the port taken"),
    ):
        GrpcEndpoint(member("b"), _ignore, listen=a.address)


def test_a_caller_without_a_name() -> None:
    """Without certificates a name must at least be told."""
    with closing(_endpoint(Insecure(name="b"))) as b, grpc.insecure_channel(b.address) as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary("/farflung.Frames/Hello", None, None)(b"", timeout=PATIENCE)
        error = explain(failure.value, "b", b.address)
        assert isinstance(error, SecurityError)
        assert str(error) == "only members of the cluster may send here; join with a ticket first"


def test_advertised_address(member: Member) -> None:
    with closing(_endpoint(member("a"), advertise="worker.example.org")) as a:
        assert a.address.startswith("worker.example.org:")


CHILD = """
import sys, threading
from farflung.security import Credentials
from farflung.transports.grpc_endpoint import GrpcEndpoint
from farflung.wire.frames import Frame
from pathlib import Path

role, folder, address = sys.argv[1:]
def handler(peer, frame):
    print("taken", flush=True)
    threading.Event().wait()
endpoint = GrpcEndpoint(Credentials.load(Path(folder)), handler, listen="127.0.0.1:0")
print(endpoint.address, flush=True)
if role == "sender":
    endpoint.connect("a", address)
    endpoint.send("a", Frame("x"))
    print("sent", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def child(member: Member, tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts member b in a process of its own."""
    started: list[subprocess.Popen[str]] = []
    member("b").save(tmp_path / "b")

    def start(role: str, address: str = "-") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, role, str(tmp_path / "b"), address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_killed_receiver(member: Member, child: Callable[..., subprocess.Popen[str]], one_try: Callable[[], None]) -> None:
    process = child("receiver")
    with closing(_endpoint(member("a"))) as a:
        address = _line(process)
        a.connect("b", address)
        futures = [a.post("b", Frame("x", {}, (bytes(3_000_000),))) for _ in range(2)]
        assert _line(process) == "taken"
        os.kill(process.pid, signal.SIGKILL)
        for future in futures:
            with pytest.raises(ConnectionLost, match=f"cannot reach b at {address}: .+"):
                future.result(PATIENCE)
        one_try()
        with pytest.raises(ConnectionLost, match=f"cannot reach b at {address}"):
            a.send("b", Frame("x"))


def test_a_killed_sender_is_noticed(member: Member, child: Callable[..., subprocess.Popen[str]]) -> None:
    lost: list[tuple[str, ConnectionLost]] = []
    noticed = threading.Event()

    def on_lost(peer: str, error: ConnectionLost, run: str) -> None:
        lost.append((peer, error))
        noticed.set()

    with closing(_endpoint(member("a"), on_lost=on_lost)) as a:
        process = child("sender", a.address)
        _line(process)
        assert _line(process) == "sent"
        assert not lost
        os.kill(process.pid, signal.SIGKILL)
        assert noticed.wait(PATIENCE)
    [(peer, error)] = lost
    assert peer == "b"
    assert str(error).startswith("lost b: ")


#: A child of a busy machine that does not run for seconds is not taken for frozen.
ALERT = replace(CALM, keepalive=Seconds(1.0), keepalive_timeout=Seconds(6.0))


def test_a_frozen_receiver_is_given_up(member: Member, child: Callable[..., subprocess.Popen[str]]) -> None:
    """The connection stays open, but nobody answers: keepalive notices."""
    process = child("receiver")
    with closing(_endpoint(member("a"), config=ALERT)) as a:
        a.connect("b", _line(process))
        future = a.post("b", Frame("x"))
        assert _line(process) == "taken"
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(ConnectionLost, match=r"cannot reach b at .*ping timeout"):
            future.result(PATIENCE)


def test_a_frozen_sender_is_given_up(member: Member, child: Callable[..., subprocess.Popen[str]]) -> None:
    noticed = threading.Event()
    with closing(_endpoint(member("a"), config=ALERT, on_lost=lambda peer, error, run: noticed.set())) as a:
        process = child("sender", a.address)
        _line(process)
        assert _line(process) == "sent"
        os.kill(process.pid, signal.SIGSTOP)
        assert noticed.wait(PATIENCE)


def test_a_loss_says_what_the_connection_carried(member: Member) -> None:
    """A peer that comes back has another connection; whoever hears of the old one's end can tell."""
    runs: list[str] = []
    noticed = threading.Event()

    def on_lost(peer: str, error: ConnectionLost, run: str) -> None:
        runs.append(run)
        noticed.set()

    with (
        closing(_endpoint(member("a"), on_lost=on_lost)) as a,
        closing(_endpoint(member("b"))) as old,
        closing(_endpoint(member("b"))) as new,
    ):
        for endpoint, run in ((old, "first"), (new, "second")):
            endpoint.connect("a", a.address)
            endpoint.send("a", Frame("x", {"run": run}))
        old._link("a")._messages.put([b"this is no frame at all, by no means"])
        assert noticed.wait(PATIENCE)
    assert runs == ["first"]


def test_a_goodbye_is_no_loss(member: Member) -> None:
    lost: list[str] = []
    config = TransportConfig(stripes=3)
    with closing(_endpoint(member("b"), on_lost=lambda peer, error, run: lost.append(peer))) as b:
        with closing(_endpoint(member("a"), config=config)) as a:
            a.connect("b", b.address)
            a.send("b", Frame("x"))
        assert lost == []
    assert lost == []


def _message(number: int, frame: Frame) -> bytes:
    return NUMBER.pack(number) + b"".join(encode_frame(frame))


class _raw_link:
    """A link made by hand: calls with messages, gives the error that the receiver answers with (None: none)."""

    def __init__(self, address: str, security: Credentials, *, claimed: str = "", stripe: str = "0/1") -> None:
        self._address = address
        self._channel = open_channel(address, "b", security, CALM, 2 << 20)
        self._metadata = ((PEER_KEY, claimed), (LINK_KEY, "link-1"), (STRIPE_KEY, stripe))

    def __enter__(self) -> Callable[[list[bytes]], FarflungError | None]:
        return self._send

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def _send(self, messages: list[bytes]) -> FarflungError | None:
        call = self._channel.stream_stream(LINK, None, None)(iter(messages), metadata=self._metadata, timeout=PATIENCE)
        try:
            for _ in call:
                pass
        except grpc.RpcError as failure:
            return explain(failure, "b", self._address)
        return None


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([b"abc"], "a message of a link has at least 8 bytes, got 3"),
        ([NUMBER.pack(0) + b"GET / HTTP/1.1\r\n"], "not a frame: it begins with"),
        ([_message(0, Frame("x", {}, (bytes(100),)))[:-1], NUMBER.pack(GOODBYE)], "truncated frame"),
        ([_message(0, Frame("x")), _message(0, Frame("x"))], "message 0 of a link came twice"),
        ([_message(0, Frame("x", {}, (b"abc",)))[:-1] + b"d"], "damaged frame: the checksum of section 0"),
    ],
)
def test_malformed_messages_end_the_link(member: Member, messages: list[bytes], words: str) -> None:
    with closing(_endpoint(member("b"))) as b, _raw_link(b.address, member("a")) as send:
        error = send(messages)
        assert isinstance(error, WireError)
        assert words in str(error)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=60), max_size=6), st.binary(max_size=200), st.integers(1, 40))
def test_noise_breaks_a_link_in_known_ways(noise: list[bytes], body: bytes, cut: int) -> None:
    """Good frames cut anywhere arrive; whatever follows them ends in an error of ours or in nothing."""
    good = b"".join(encode_frame(Frame("x", {"n": 1}, (body,))))
    pieces = [good[start : start + cut] for start in range(0, len(good), cut)]
    link = _IncomingLink("a", 1, TransportConfig())
    for number, piece in enumerate(pieces):
        assert link.feed(NUMBER.pack(number) + piece)
    frame = link.take()
    assert frame is not None
    assert bytes(frame.sections[0]) == body
    broken: list[FarflungError] = []
    for number, piece in enumerate(noise):
        try:
            link.feed(NUMBER.pack(len(pieces) + number) + piece)
        except (WireError, VersionError) as error:
            broken.append(error)
            break
    for reason in broken:
        assert link.fail(reason)
        assert not link.fail(reason)
        with pytest.raises(type(reason)):
            link.take()


def test_a_link_must_say_its_stripe(member: Member) -> None:
    with closing(_endpoint(member("b"))) as b, _raw_link(b.address, member("a"), stripe="4/2") as send:
        assert "which of its stripes" in str(send([]))


def test_an_unfinished_link_is_a_loss(member: Member) -> None:
    lost: list[str] = []
    with (
        closing(_endpoint(member("b"), on_lost=lambda peer, error, run: lost.append(str(error)))) as b,
        _raw_link(b.address, member("a")) as send,
    ):
        assert "lost a: it went away without saying goodbye" in str(send([_message(0, Frame("x"))]))
        assert lost == ["lost a: it went away without saying goodbye"]


def test_other_versions_are_told_apart(member: Member) -> None:
    """A caller of a method that this version does not have."""
    with closing(_endpoint(member("b"))) as b, open_channel(b.address, "b", member("a"), CALM, 1 << 20) as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary("/farflung.Frames/Later", None, None)(b"", timeout=PATIENCE)
        error = explain(failure.value, "b", b.address)
        assert isinstance(error, VersionError)
        assert "does not know this call; install the same farflung on both machines" in str(error)
