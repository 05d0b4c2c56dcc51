"""What goes to helpers: in which order, what is dropped when a step begins, and that their loss ends nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from farflung.errors import ConnectionLost
from farflung.messages.data import LentEnd
from farflung.step.hybrid.helper_links import HelperLinks
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

PATIENCE = 60.0


class Endpoint:
    """Takes frames for helpers only while it is open; ``lost``: peers whose frames never arrive."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered, self.changed = 0, threading.Condition()
        self.sent: list[tuple[str, str, Urgency]] = []
        self.lost: set[str] = set()

    def post(self, peer: str, frame: Frame, urgency: Urgency) -> Future[None]:
        with self.changed:
            self.entered += 1
            self.changed.notify_all()
        if peer != "b":
            self.open.wait(PATIENCE)
        future: Future[None] = Future()
        with self.changed:
            self.sent.append((peer, frame.header["run"], urgency))
            self.changed.notify_all()
        if peer in self.lost:
            future.set_exception(ConnectionLost(f"{peer} is gone"))
        else:
            future.set_result(None)
        return future

    def await_entered(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.entered >= count, PATIENCE)

    def await_sent(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sent) >= count, PATIENCE)


def named(name: str) -> LentEnd:
    """A message that the test knows again by its run."""
    return LentEnd(run=name)


class Scene:
    def __init__(self) -> None:
        self.endpoint = Endpoint()
        self.errors: list[BaseException] = []
        self.lost: list[tuple[str, str]] = []
        self.outbox = Outbox(self.endpoint, ["b"], self.errors.append)  # type: ignore[arg-type]
        self.links = HelperLinks(self.outbox, self._lose)
        self.gone = threading.Event()

    def _lose(self, name: str, why: str) -> None:
        self.lost.append((name, why))
        self.links.remove(name)
        self.gone.set()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.endpoint.open.set()
    made.outbox.close()


def test_the_first_states_are_all_and_later_ones_are_not(scene: Scene) -> None:
    scene.endpoint.open.set()
    scene.links.add("h", 0, fed=True)
    for step in range(2):
        scene.links.begin_step("h", lambda blank, step=step: named(f"states-{step}-{blank}"))  # type: ignore[misc]
        scene.endpoint.await_sent(step + 1)
    assert [kind for _, kind, _ in scene.endpoint.sent] == ["states-0-True", "states-1-False"]
    scene.links.add("h", 1, fed=False)
    scene.links.post("h", lambda blank: named(f"task-{blank}"))
    scene.endpoint.await_sent(3)
    assert scene.endpoint.sent[-1][1] == "task-True", "who comes again has nothing"
    assert (scene.links.stage("h"), scene.links.is_fed("h")) == (1, False)


def test_a_step_that_begins_drops_tasks_and_brings_states_that_were_sent_ahead_forward(scene: Scene) -> None:
    """The first frame of each urgency is stuck in the endpoint, which is closed; the others wait."""
    scene.links.add("h", 0, fed=True)
    scene.links.post("h", lambda _: named("stuck"))
    scene.links.post_ahead("h", 4, lambda: named("stuck ahead"))
    scene.endpoint.await_entered(2)
    scene.links.post("h", lambda _: named("old task"))
    scene.links.post_ahead("h", 5, lambda: named("ahead"))
    assert scene.links.has_ahead("h", 5)
    scene.links.begin_step("h", lambda _: named("states"))
    scene.links.post("h", lambda _: named("task"))
    scene.endpoint.open.set()
    scene.endpoint.await_sent(5)
    values = [kind for _, kind, urgency in scene.endpoint.sent if urgency is Urgency.VALUES]
    assert values == ["stuck", "ahead", "states", "task"]
    assert [kind for _, kind, urgency in scene.endpoint.sent if urgency is Urgency.BULK] == ["stuck ahead"]


def test_a_frozen_helper_holds_up_nobody(scene: Scene) -> None:
    scene.links.add("h", 0, fed=True)
    for _ in range(20):
        scene.links.post("h", lambda _: named("task"))
    scene.endpoint.await_entered(1)
    scene.outbox.post("b", OutgoingMessage(make=lambda: named("value")))
    scene.outbox.flush()
    assert [peer for peer, _, _ in scene.endpoint.sent] == ["b"]


def test_a_lost_helper_is_reported_and_the_outbox_goes_on(scene: Scene) -> None:
    scene.endpoint.lost.add("h")
    scene.endpoint.open.set()
    scene.links.add("h", 3, fed=True)
    scene.links.post("h", lambda _: named("task"))
    assert scene.gone.wait(PATIENCE)
    assert scene.lost == [("h", "h is gone")]
    assert scene.links.stage("h") is None
    assert scene.links.known == {"h"}
    scene.links.post("h", lambda _: named("too late"))  # dropped
    with pytest.raises(KeyError):
        scene.outbox.post("h", OutgoingMessage(make=lambda: named("task")))
    scene.outbox.post("b", OutgoingMessage(make=lambda: named("value")))
    scene.outbox.flush()
    assert scene.errors == []
