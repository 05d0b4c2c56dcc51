"""Servers of one stage help each other: who asks whom, and who may ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farflung.errors import WireError
from farflung.messages.hybrid import ServerFree, ServerServed
from farflung.messages.schema import Message
from farflung.plan.model import Replica
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step.actions import ActionInputs
from farflung.step.hybrid.peer_servers import PeerServers
from farflung.step.hybrid.slices import Order
from farflung.step.inbox import Inbox
from tests.support.steps.small_runs import ROWS, small_plan, small_setup


class Sent:
    """An outbox that makes messages at once."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []

    def post(self, peer: str, outgoing: Any) -> None:
        self.messages.append((peer, outgoing.make()))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def peers(sent: Sent) -> PeerServers:
    """Of ``a``, with ``b`` and ``c`` as the other servers of the only stage; ``c`` has two of the four slices."""
    plan = small_plan(("a",))
    places = (Replica(device="a", first=0, end=1), Replica(device="b", first=1, end=2), Replica(device="c", first=2, end=4))
    (stage,) = plan.stages
    shared = replace(stage, replicas=places)
    setup = small_setup("a", replace(plan, stages=(shared,), micro_batch_sizes=(ROWS,) * 4), micro_batch_sizes=[ROWS] * 4)
    found = PeerServers(setup, Inbox(), sent)  # type: ignore[arg-type]
    found.begin(3)
    return found


def order(step: int) -> Order:
    return Order(task=Task(step=step, kind=TaskKind.FORWARD, index=1), work=ActionInputs())


def test_speeds_follow_the_shares(peers: PeerServers) -> None:
    assert peers.speeds == {0: {"b": 1.0, "c": 2.0}}


def test_an_idle_server_asks_as_many_peers_as_it_has_room_for_and_each_once(peers: PeerServers, sent: Sent) -> None:
    peers.ask(0, 1)
    peers.ask(0, 1)
    assert sent.messages == [("b", ServerFree(run="run-small", step=3, stage=0))]
    peers.ask(0, 2)
    assert [peer for peer, _ in sent.messages] == ["b", "c"]
    peers.lent.append((0, "b", order(3)))
    assert peers.next() is not None
    peers.done(0, order(3).task)  # its activations stay here until the backward
    peers.ask(0, 2)
    assert [peer for peer, _ in sent.messages] == ["b", "c"], "c was asked, and one slice is stored"
    peers.done(0, Task(step=3, kind=TaskKind.BACKWARD, index=1))
    peers.ask(0, 2)
    assert [peer for peer, _ in sent.messages] == ["b", "c", "b"]


def test_a_peer_whose_slices_are_done_is_not_asked(peers: PeerServers, sent: Sent) -> None:
    peers.served("b", ServerServed(run="run-small", step=3, stage=0))
    assert not peers.over()
    peers.ask(0, 5)
    assert [peer for peer, _ in sent.messages] == ["c"]
    peers.served("c", ServerServed(run="run-small", step=4, stage=0))
    assert peers.over(), "a peer may be a step ahead"
    peers.begin(4)
    assert not peers.over()


def test_peers_learn_once_that_all_is_done_here(peers: PeerServers, sent: Sent) -> None:
    for _ in range(2):
        peers.report_done(0)
    assert sent.messages == [(name, ServerServed(run="run-small", step=3, stage=0)) for name in "bc"]
    peers.begin(4)
    peers.report_done(0)
    assert len(sent.messages) == 4


def test_a_task_of_an_older_step_is_dropped(peers: PeerServers) -> None:
    peers.lent.extend([(0, "b", order(2)), (0, "c", order(3))])
    found = peers.next()
    assert found is not None
    assert (found[1], found[2].task.step) == ("c", 3)
    assert peers.next() is None


def test_strangers_are_refused(peers: PeerServers) -> None:
    for name, stage in (("d", 0), ("a", 0), ("b", 1)):
        text = f"{name} and this worker are not both servers of stage {stage}; its 'served' is refused"
        with pytest.raises(WireError, match=text):
            peers.served(name, ServerServed(run="run-small", step=3, stage=stage))
