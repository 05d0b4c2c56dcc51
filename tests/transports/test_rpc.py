"""The control plane over real TLS: the three kinds of calls, who calls, how errors travel."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import grpc
import pytest

from farflung.errors import ConnectionLost, FarflungError, PlanError, SecurityError, VersionError, WireError
from farflung.security import Credentials, certificate_fingerprint, fetch_server_certificate
from farflung.transports import Insecure, Pinned
from farflung.transports.rpc import RpcClient
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.failures import explain
from farflung.transports.rpc.server import RpcServer
from farflung.wire.frames import Frame, FrameLimits
from tests.support.network.quiet import nobody

Member = Callable[..., Credentials]
PATIENCE = 30.0


class Broker:
    """A server with one method of each kind."""

    def __init__(self, security: Credentials | Insecure) -> None:
        self.server = RpcServer(security, limits=FrameLimits(max_header=1 << 16, max_bytes=1 << 20))
        self.seen = threading.Event()
        self.ended = threading.Event()
        self.errors: list[str] = []
        self.server.unary("who", self.who, anonymous=True)
        self.server.unary("fail", self.fail)
        self.server.stream("count", self.count)
        self.server.session("echo", self.echo)
        self.server.session("collect", self.collect)
        self.server.session("talk", self.talk)
        self.member_address = self.server.listen("127.0.0.1:0")
        self.join_address = self.server.listen("127.0.0.1:0", anonymous=True)
        self.server.start()

    def who(self, call: Call, frame: Frame) -> Frame:
        assert call.active
        name = [call.caller.name, call.caller.role] if call.caller else None
        return Frame("you", {"name": name, "from": call.address, "said": dict(frame.header)}, frame.sections)

    def fail(self, call: Call, frame: Frame) -> Frame:
        if frame.kind == "bug":
            raise KeyError("defect")
        raise PlanError("device worker-3 lacks 1.2 GB; use a smaller micro-batch")

    def count(self, call: Call, frame: Frame) -> Iterator[Frame]:
        call.on_end(self.ended.set)
        for n in range(frame.header["n"]):
            if n == frame.header.get("fail_at"):
                raise PlanError(f"no more after {n}")
            yield Frame("n", {"n": n}, (bytes(100_000),))

    def echo(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        yield from frames
        yield Frame("end")

    def collect(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        call.on_end(self.ended.set)
        try:
            for _ in frames:
                self.seen.set()
            yield Frame("all")
        except ConnectionLost as error:
            self.errors.append(str(error))  # an error would keep gRPC's objects alive
            raise

    def talk(self, call: Call, frames: Iterator[Frame]) -> Iterator[Frame]:
        try:
            yield from frames
        finally:
            self.ended.set()

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def broker(member: Member) -> Iterator[Broker]:
    with closing(Broker(member("broker", "broker"))) as made:
        yield made


@contextmanager
def _client(broker: Broker, security: Credentials) -> Iterator[RpcClient]:
    with closing(RpcClient(broker.member_address, security)) as client:
        yield client


def test_unary_and_the_callers_name(broker: Broker, member: Member) -> None:
    with _client(broker, member("worker-1")) as client:
        reply = client.call("who", Frame("hello", {"cores": 8}, (b"abc",)))
        assert (reply.kind, reply.header["name"], reply.header["said"]) == ("you", ["worker-1", "worker"], {"cores": 8})
        assert bytes(reply.sections[0]) == b"abc"
        assert "127.0.0.1" in reply.header["from"]
    with _client(broker, member("laptop", "submitter")) as client:
        assert client.call("who", Frame("hello")).header["name"] == ["laptop", "submitter"]


def test_before_joining(broker: Broker, member: Member) -> None:
    """A ticket's fingerprint leads to the pinned certificate, and that to the anonymous methods only."""
    fingerprint = certificate_fingerprint(member("broker", "broker").certificate)
    pinned = Pinned(certificate=fetch_server_certificate(broker.join_address, fingerprint))
    with closing(RpcClient(broker.join_address, pinned)) as client:
        assert client.call("who", Frame("hello")).header["name"] is None
        with pytest.raises(SecurityError, match="this call is for members of the cluster; join with a ticket first"):
            client.call("fail", Frame("x"))
        with pytest.raises(SecurityError, match="join with a ticket first"):
            list(client.stream("count", Frame("x", {"n": 1})))
    with (
        closing(RpcClient(broker.member_address, pinned)) as client,
        pytest.raises(ConnectionLost, match="cannot reach the broker"),
    ):
        client.call("who", Frame("hello"))


def test_errors_keep_their_class_and_text(broker: Broker, member: Member, caplog: pytest.LogCaptureFixture) -> None:
    with _client(broker, member("w")) as client:
        with pytest.raises(PlanError, match=r"^device worker-3 lacks 1.2 GB; use a smaller micro-batch$"):
            client.call("fail", Frame("x"))
        with pytest.raises(FarflungError, match=r"broker at .* failed inside: .*'defect'.*; see its log"):
            client.call("fail", Frame("bug"))
        with pytest.raises(VersionError, match="does not know this call; install the same farflung"):
            client.call("nothing", Frame("x"))
    caplog.clear()  # gRPC's thread ends with its last server, to which the logged defect refers


def test_streams(broker: Broker, member: Member) -> None:
    with _client(broker, member("w")) as client:
        assert [frame.header["n"] for frame in client.stream("count", Frame("x", {"n": 5}))] == [0, 1, 2, 3, 4]
        frames = client.stream("count", Frame("x", {"n": 5, "fail_at": 2}))
        assert [next(frames).header["n"], next(frames).header["n"]] == [0, 1]
        with pytest.raises(PlanError, match="no more after 2"):
            next(frames)


def test_a_stream_that_nobody_reads_on_ends_at_the_server(broker: Broker, member: Member) -> None:
    with _client(broker, member("w")) as client:
        frames = client.stream("count", Frame("x", {"n": 10_000}))
        assert next(frames).header["n"] == 0
        assert not broker.ended.is_set()
        frames.close()  # type: ignore[attr-defined]
        assert broker.ended.wait(PATIENCE)


def test_sessions(broker: Broker, member: Member) -> None:
    with _client(broker, member("w")) as client:
        session = client.session("echo", depth=2)
        replies = iter(session)
        for n in range(5):
            session.send(Frame(f"m{n}"))
            assert next(replies).kind == f"m{n}"
        session.end()
        assert [frame.kind for frame in replies] == ["end"]
        with pytest.raises(ConnectionLost, match=r"the session with broker at .* is over"):
            session.send(Frame("late"))


def test_a_session_that_breaks_off_is_no_end(broker: Broker, member: Member) -> None:
    with _client(broker, member("w")) as client:
        whole = client.session("collect")
        whole.send(Frame("m"))
        whole.end()
        assert [frame.kind for frame in whole] == ["all"]
        assert broker.errors == []
        broker.seen.clear()
        session = client.session("collect")
        session.send(Frame("m"))
        assert broker.seen.wait(PATIENCE)
        session.close()
        assert broker.ended.wait(PATIENCE)
    broker.close()
    assert broker.errors == ["lost w: the connection broke off"]


def test_a_session_that_breaks_off_while_it_answers(broker: Broker, member: Member) -> None:
    """gRPC may not ask the handler's iterator again: then it is closed, and its ``finally`` runs."""
    with _client(broker, member("w")) as client:
        session = client.session("talk")
        session.send(Frame("m"))
        assert next(iter(session)).kind == "m"
        session.close()
        assert broker.ended.wait(PATIENCE)


def test_large_frames_are_refused_by_both_sides(broker: Broker, member: Member) -> None:
    with (
        _client(broker, member("w")) as client,
        pytest.raises(WireError, match=r"broker at .* refused a message: .*larger than max"),
    ):
        client.call("who", Frame("x", {}, (bytes(5 << 20),)))
    limits = FrameLimits(max_bytes=10)
    with (
        closing(RpcClient(broker.member_address, member("w"), limits=limits)) as client,
        pytest.raises(WireError, match="oversized frame: 11 bytes of sections, the limit is 10"),
    ):
        client.call("who", Frame("x", {}, (bytes(11),)))


@pytest.mark.parametrize("details", ["Stream removed (Socket closed)", "recvmsg:Connection reset by peer", "Socket closed"])
def test_a_connection_that_breaks_is_told_in_plain_words(details: str) -> None:
    class Failure:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return details

        def trailing_metadata(self) -> None:
            return None

    assert str(explain(Failure(), "broker", "192.0.2.1:7070")) == (
        "cannot reach the broker at 192.0.2.1:7070: the connection broke off; check that the broker runs and the port is open"
    )


def test_nobody_listens(member: Member) -> None:
    with nobody() as address, closing(RpcClient(address, member("w"))) as client:
        words = rf"cannot reach the broker at {address}: .*refused.*; check that the broker runs and the port is open"
        with pytest.raises(ConnectionLost, match=words):
            client.call("who", Frame("x"))
        with pytest.raises(ConnectionLost, match=words):
            client.call("who", Frame("x"), patience=0.3)


def test_the_wrong_broker(broker: Broker, member: Member) -> None:
    with (
        _client(broker, member("w", cluster="two")) as client,
        pytest.raises(SecurityError, match="cannot prove that it is the broker of this cluster"),
    ):
        client.call("who", Frame("x"), patience=PATIENCE)


def test_a_deadline(member: Member) -> None:
    release = threading.Event()
    server = RpcServer(member("broker", "broker"))
    server.unary("slow", lambda call, frame: Frame("late", {"waited": release.wait(PATIENCE)}))
    address = server.listen("127.0.0.1:0")
    server.start()
    with closing(RpcClient(address, member("w"))) as client, pytest.raises(ConnectionLost, match="no answer in time"):
        client.call("slow", Frame("x"), timeout=0.2)
    release.set()
    server.close()


def test_plain_calls_for_tests() -> None:
    plain = Insecure(name="w")
    with closing(Broker(Insecure(name="broker"))) as broker, closing(RpcClient(broker.member_address, plain)) as client:
        assert client.call("who", Frame("x")).header["name"] == ["w", "worker"]


def test_a_name_is_registered_once(member: Member) -> None:
    with closing(Broker(member("broker", "broker"))) as broker, pytest.raises(ValueError, match="'who' is registered twice"):
        broker.server.unary("who", broker.who)
