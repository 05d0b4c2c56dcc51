"""A token's next batch leaves before its text is made, and a request that has ended needs none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.errors import ConnectionLost, WireError
from farflung.messages.schema import Channel
from farflung.messages.serving import ServedBatch, ServedTokens, TokenItem
from farflung.messages.watching import Planned, Started
from farflung.messages.wire_form import decode, encode
from farflung.serving import service as service_module
from farflung.serving.generation import Generation, Piece
from farflung.serving.scheduler import Draws, Settings, TokenSequence
from farflung.serving.service import Service
from farflung.wire.frames import Frame
from tests.support.network.quiet import until
from tests.support.steps.small_runs import small_plan

WORKERS = ("a", "b")


class FakeCluster:
    """Client and endpoint of a service whose workers are the test: what it sends is in ``batches``."""

    def __init__(self) -> None:
        self.batches: queue.SimpleQueue[ServedBatch] = queue.SimpleQueue()
        self.receive: Callable[[str, Frame], None] = lambda peer, frame: None
        self._over = threading.Event()

    def submit(self, bundle: object) -> None:
        del bundle

    def watch(self, run: str) -> Iterator[object]:
        del run
        yield Planned(
            plan=small_plan(WORKERS).to_json(),
            addresses=dict.fromkeys(WORKERS, "127.0.0.1:1"),
            predicted=0.0,
            summary="",
            explanation="",
            first_step=0,
            attempt=1,
            recovered=False,
            relays={},
        )
        yield Started(run="served", attempt=1, seconds=0.0)
        self._over.wait()

    def endpoint(self, receive: Callable[[str, Frame], None]) -> Any:
        self.receive = receive
        nothing = lambda *_: None  # noqa: E731
        return SimpleNamespace(connect=nothing, relay_through=nothing, close=nothing, post=self._post)

    def _post(self, device: str, frame: Frame) -> None:
        message = decode(frame, Channel.DATA)
        if device == WORKERS[-1] and isinstance(message, ServedBatch):
            self.batches.put(message)

    def stop(self, run: str, *, now: bool) -> None:
        del run, now
        self._over.set()

    def close(self) -> None:
        self._over.set()

    def draw(self, batch: ServedBatch, token: int) -> None:
        """The last worker draws ``token`` for each request of ``batch``."""
        drawn = tuple(TokenItem(token=token, logprob=0.0, likely=()) for _ in batch.draws)
        self.receive(WORKERS[-1], encode(ServedTokens(run=batch.run, number=batch.number, drawn=drawn)))


class Letters:
    """Token 0 is ``a``. ``decode`` notes how many batches were sent by then."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.sent: list[bool] = []

    def decode(self, tokens: Sequence[int]) -> str:
        self.sent.append(not self._cluster.batches.empty())
        return "".join(chr(97 + token) for token in tokens)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def started(cluster: FakeCluster) -> Service:
    graph: Any = SimpleNamespace(result=None, spec=lambda _: SimpleNamespace(shape=(1, 26)))
    bundle: Any = SimpleNamespace(run="served", graph=graph)
    client: Any = cluster
    made = Service(client, bundle, Settings(sizes=(1, 4), slots=2), lambda text: None)
    made.start()
    made.wait_until_ready()
    return made


@pytest.fixture
def service(cluster: FakeCluster) -> Iterator[Service]:
    with closing(started(cluster)) as made:
        yield made


def request(letters: Letters, most: int, **more: Any) -> tuple[Generation, list[Piece]]:
    pieces: list[Piece] = []
    sequence = TokenSequence(tokens=[5], prompt=1, most=most, draws=Draws(temperature=0.0))
    tokenizer: Any = letters
    return Generation(sequence=sequence, tokenizer=tokenizer, listen=pieces.append, **more), pieces


def test_the_next_batch_leaves_before_the_text_is_made(cluster: FakeCluster, service: Service) -> None:
    letters = Letters(cluster)
    generation, pieces = request(letters, 3)
    service.add([generation])
    for number, token in enumerate((7, 8, 9)):
        batch = cluster.batches.get(timeout=10)
        assert (batch.number, batch.tokens, batch.positions) == (number, ((5, 7, 8)[number],), (number,))
        letters.sent.clear()
        cluster.draw(batch, token)
        assert all(letters.sent) if number < 2 else not any(letters.sent), "the last token has no next batch"
    assert "".join(piece.text for piece in pieces) == "hij"
    assert pieces[-1].cause == "length"
    assert cluster.batches.empty()


def test_a_request_that_ends_by_its_text_gives_its_slot_back(cluster: FakeCluster, service: Service) -> None:
    letters = Letters(cluster)
    generation, pieces = request(letters, 9, stops=("i",))
    service.add([generation])
    cluster.draw(cluster.batches.get(timeout=10), 7)
    cluster.draw(cluster.batches.get(timeout=10), 8)
    assert [piece.cause for piece in pieces] == [None, "stop"]
    superfluous = cluster.batches.get(timeout=10)  # it left before the text was known
    others = [request(letters, 1) for _ in range(2)]
    service.add([one for one, _ in others])
    cluster.draw(superfluous, 3)
    assert "".join(piece.text for piece in pieces) == "h"
    while not all(found for _, found in others):
        cluster.draw(cluster.batches.get(timeout=10), 4)
    assert [piece.text for _, found in others for piece in found] == ["e", "e"]


class Paused(threading.Condition):
    """Once the thread that sends batches has given the lock away, it waits: others act before it takes the lock again."""

    made, ending = threading.Event(), threading.Event()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if threading.current_thread().name == "serve-batches":
            self.made.set()
            assert self.ending.wait(10)


def test_a_batch_that_was_made_before_the_end_is_sent(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a batch and its sending, the service ends: it must not wait for the tokens of what never left."""
    monkeypatch.setattr(service_module, "threading", SimpleNamespace(**vars(threading) | {"Condition": Paused}))
    service = started(cluster)
    service.add([request(Letters(cluster), 3)[0]])
    assert Paused.made.wait(10)
    closer = threading.Thread(target=service.close, name="closer")
    closer.start()

    def ends() -> bool:
        try:
            service.add([])
        except ConnectionLost:
            return True
        return False

    until(ends)
    Paused.ending.set()
    cluster.draw(cluster.batches.get(timeout=5), 7)
    closer.join(10)
    assert not closer.is_alive()


def test_tokens_of_others_and_tokens_that_come_twice_are_refused_by_name(service: Service, cluster: FakeCluster) -> None:
    letters = Letters(cluster)
    generation, pieces = request(letters, 2)
    service.add([generation])
    batch = cluster.batches.get(timeout=30)
    drawn = tuple(TokenItem(token=0, logprob=0.0, likely=()) for _ in batch.draws)
    early = encode(ServedTokens(run=batch.run, number=batch.number, drawn=drawn))
    with pytest.raises(WireError, match="a sent tokens, and it does not compute the last stage"):
        cluster.receive(WORKERS[0], early)
    assert pieces == []
    cluster.draw(batch, 0)
    with pytest.raises(WireError, match="b sent 1 tokens for batch 0, which is not under way with as many draws"):
        cluster.draw(batch, 0)
    assert [piece.text for piece in pieces] == ["a"]
