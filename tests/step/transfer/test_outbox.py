"""The outbox: order, urgency, what is reported of a step, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from farflung.errors import ConnectionLost
from farflung.messages.data import Slope
from farflung.step.transfer import outbox as runtime_links
from farflung.step.transfer.outbox import LinkUse, Outbox, OutgoingMessage
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame
from tests.support.network.futures import PATIENCE, later


class Wire:
    """An endpoint whose deliveries the test completes."""

    address = "nowhere:0"

    def __init__(self) -> None:
        self.posted: list[tuple[str, Frame, Future[None]]] = []
        self.changed = threading.Condition()
        self.refuse: Exception | None = None

    def connect(self, peer: str, address: str) -> None: ...

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        del urgency
        if self.refuse is not None:
            raise self.refuse
        future: Future[None] = Future()
        with self.changed:
            self.posted.append((peer, frame, future))
            self.changed.notify_all()
        return future

    def wait(self, count: int) -> list[tuple[str, Frame, Future[None]]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.posted) >= count, PATIENCE)
            return list(self.posted)

    def send(self, peer: str, frame: Frame) -> None:
        self.post(peer, frame).result()

    def statistics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


@contextmanager
def links(wire: Wire, *peers: str) -> Iterator[tuple[Outbox, list[BaseException]]]:
    errors: list[BaseException] = []
    made = Outbox(wire, peers, errors.append)
    try:
        yield made, errors
    finally:
        made.close()


def numbered(number: int, section: bytes = b"") -> Slope:
    """A small message with a number."""
    return Slope(run="r", step=number, sections=(section,))


def parcel(number: int, step: int = 0, dense: int = 8) -> OutgoingMessage:
    return OutgoingMessage(make=lambda: numbered(number, bytes(4)), step=step, pair=(0, 1), dense=dense)


def test_frames_of_a_peer_go_in_order() -> None:
    wire = Wire()
    with links(wire, "b", "c") as (made, errors):
        for number in range(20):
            made.post("b", parcel(number))
        posted = wire.wait(20)
        assert [frame.header["step"] for _, frame, _ in posted] == list(range(20))
        for _, _, future in posted:
            future.set_result(None)
        made.flush()
        assert errors == []


def test_values_and_verdicts_do_not_wait_behind_a_bulk_transfer_that_the_link_does_not_take() -> None:
    class Slow(Wire):
        def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
            future = super().post(peer, Frame(urgency.name, frame.header))
            if urgency is Urgency.BULK:
                gate.wait(PATIENCE)
            return future

    wire, gate = Slow(), threading.Event()
    with links(wire, "b") as (made, errors):
        for number in range(4):
            made.post("b", OutgoingMessage(make=lambda number=number: numbered(number), urgency=Urgency.BULK))
        wire.wait(1)  # the link has no room for more of these
        for number in range(3):
            made.post("b", parcel(number))
            made.post("b", OutgoingMessage(make=lambda number=number: numbered(number), urgency=Urgency.CONTROL))
        seen = [(frame.kind, frame.header["step"]) for _, frame, _ in wire.wait(7)]
        assert seen[0] == ("BULK", 0)
        assert [entry for entry in seen if entry[0] == "VALUES"] == [("VALUES", number) for number in range(3)]
        assert [entry for entry in seen if entry[0] == "CONTROL"] == [("CONTROL", number) for number in range(3)]
        gate.set()
        for _, _, future in wire.wait(10):
            future.set_result(None)
        made.flush()
        assert errors == []


def test_a_steps_bytes_are_told_once_all_is_made_and_before_a_flush_returns() -> None:
    wire, told = Wire(), list[LinkUse]()
    with links(wire, "b") as (made, _):
        for number in range(3):
            made.post("b", parcel(number, step=7))
        made.post("b", parcel(9, step=8))
        made.when_sent(7, told.append)
        for _, _, future in wire.wait(4):
            future.set_result(None)
        made.flush()
        assert [(use.sent, use.dense) for use in told] == [({(0, 1): 12}, {(0, 1): 24})]
        made.when_sent(8, told.append)
        assert told[-1].sent == {(0, 1): 4}
        made.when_sent(9, told.append)
        assert told[-1].sent == {}, "a step that sends nothing is told at once"


def test_a_lost_peer_reaches_the_run_and_closing_wakes_who_waits() -> None:
    wire = Wire()
    with links(wire, "b") as (made, errors):
        made.post("b", parcel(0))
        ((_, _, future),) = wire.wait(1)
        future.set_exception(ConnectionLost("lost b"))
        with pytest.raises(ConnectionLost, match="lost b"):
            made.flush()
    assert [str(error) for error in errors] == ["lost b"]
    with pytest.raises(ConnectionLost, match="lost b"):
        made.post("b", parcel(1))


def test_a_peer_that_refuses_everything_holds_nobody() -> None:
    wire = Wire()
    wire.refuse = ConnectionLost("cannot reach b")
    with links(wire, "b", "c") as (made, errors):

        def post_all() -> None:
            for number in range(50):
                made.post("b", parcel(number))

        with pytest.raises(ConnectionLost, match="cannot reach b"):
            post_all()
        with pytest.raises(ConnectionLost, match="cannot reach b"):
            made.flush()
    assert [str(error) for error in errors] == ["cannot reach b"]


def test_an_abort_wakes_a_post_that_waits_for_a_slow_link() -> None:
    wire, ended = Wire(), list[str]()
    gate = threading.Event()

    def slow() -> Slope:
        gate.wait(PATIENCE)
        return numbered(0)

    with links(wire, "b") as (made, errors):

        def post_all() -> None:
            try:
                for _ in range(50):
                    made.post("b", OutgoingMessage(make=slow))
            except ConnectionLost as error:
                ended.append(str(error))

        poster = threading.Thread(target=post_all)
        poster.start()
        made.abort(ConnectionLost("another worker died"))
        poster.join(PATIENCE)
        gate.set()
        assert ended == ["another worker died"]
        assert errors == []


def test_closing_waits_for_no_link_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_links, "_CLOSE_SECONDS", 0.0)
    wire, gate = Wire(), threading.Event()

    def stuck() -> Slope:
        gate.wait()
        return numbered(0)

    with links(wire, "b", "c") as (made, _):
        made.post("b", OutgoingMessage(make=stuck))
        made.post("c", OutgoingMessage(make=stuck))
        closing = later(made.close)
        closing.result(PATIENCE)
        gate.set()


def test_a_codec_that_fails_ends_the_run_not_the_thread_alone() -> None:
    wire, seen = Wire(), threading.Event()

    def broken() -> Slope:
        seen.set()
        raise ValueError("defect")

    with links(wire, "b") as (made, errors):
        made.post("b", OutgoingMessage(make=broken))
        assert seen.wait(PATIENCE)
        made.threads.join(PATIENCE)
        assert [repr(error) for error in errors] == ["ValueError('defect')"]
