"""Sessions by worker: one at a time, each with a number, a lease and an end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from farflung.broker.session_table import BEAT, Heartbeats, Mailbox, SessionTable
from farflung.errors import ConnectionLost, InputError
from farflung.messages.commands import Beat, Stop
from farflung.protocol.leases import Leases
from farflung.units import Seconds

PATIENCE = 60.0


@pytest.fixture
def table() -> SessionTable:
    numbers = Counter[str]()

    def advance(name: str) -> int:
        numbers[name] += 1
        return numbers[name]

    return SessionTable(advance, Leases(Seconds(5.0)))


def test_a_name_is_taken_until_its_session_is_left(table: SessionTable) -> None:
    first = table.enter("a")
    with pytest.raises(InputError, match="a worker called 'a' is connected already; choose another name with --name"):
        table.enter("a")
    assert table.end(first, "it left")
    assert not table.end(first, "again"), "the first cause stays"
    assert first.ended == "it left"
    assert first.outgoing.take() == [None]
    assert table.serves("a"), "its run may still be ending"
    table.leave(first)
    assert not table.serves("a")
    assert table.enter("a").generation == first.generation + 1, "who was refused took no number"


def test_a_session_that_has_ended_is_renewed_by_nobody(table: SessionTable) -> None:
    first = table.enter("a")
    assert table.renew(first)
    table.end(first, "it left")
    assert not table.renew(first)
    table.leave(first)
    second = table.enter("a")
    assert not table.renew(first), "a frozen worker that wakes up has an old number"
    assert table.renew(second)
    table.leave(first)
    assert table.session("a") is second, "the end of an old session ends no new one"


def test_messages_go_to_connected_workers_only(table: SessionTable) -> None:
    table.send("a", Beat())
    session = table.enter("a")
    table.send("a", Beat())
    assert session.outgoing.take() == [Beat()]


def test_silent_workers_expire_unless_the_broker_handles_their_report(table: SessionTable) -> None:
    silent, busy = table.enter("silent"), table.enter("busy")
    busy.handling = True
    late = silent.begun + 6.0
    expired, silences = table.check_leases(late)
    assert expired == [silent]
    assert silences["silent"] == pytest.approx(6.0, abs=0.1)
    assert silences["busy"] == 0.0


def test_a_worker_with_a_certificate_is_joining_until_it_connects(table: SessionTable) -> None:
    for name in "abc":
        table.admit(name)
    table.withdraw("b")
    table.enter("a")
    assert table.joining() == ["c"]


def test_a_closed_table_takes_nobody_and_ends_all(table: SessionTable) -> None:
    session = table.enter("a")
    table.close()
    assert session.outgoing.take() == [None]
    with pytest.raises(ConnectionLost, match="the broker is closing"):
        table.enter("b")


def test_messages_from_other_threads_arrive_in_order() -> None:
    box = Mailbox()
    box.put(Stop(run="before"))

    def put() -> None:
        for number in range(100):
            box.put(Stop(run=f"run-{number}"))
        box.put(None)

    async def receive() -> list[str]:
        box.open()
        threading.Thread(target=put).start()
        found = []
        while isinstance(message := await box.get(), Stop):
            found.append(message.run)
        return found

    assert asyncio.run(receive()) == ["before", *(f"run-{number}" for number in range(100))]


def test_a_coroutine_that_has_waited_for_long_is_reminded() -> None:
    box = Mailbox()

    async def receive() -> None:
        box.open()
        now = asyncio.get_running_loop().time()
        box.remind(Beat(), now)
        assert box.take() == [], "nobody waits"
        waiting = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        box.remind(Beat(), now - 1.0)
        await asyncio.sleep(0)
        assert not waiting.done(), "it has not waited for long"
        box.remind(Beat(), now + PATIENCE)
        box.remind(Beat(), now + PATIENCE)
        assert await waiting == Beat()
        assert box.take() == [], "once"

    asyncio.run(receive())
    box.put(Beat())
    assert box.take() == [Beat()], "the coroutine has ended, and nothing fails"


def test_one_timer_serves_the_mailboxes_of_idle_sessions_and_ends_with_the_last_one() -> None:
    beats = Heartbeats(lambda: 0.01)

    async def receive(box: Mailbox) -> list[object]:
        box.open()
        with beats.serving(box):
            return [await box.get() for _ in range(3)]

    async def serve() -> list[list[object]]:
        found = await asyncio.gather(receive(Mailbox()), receive(Mailbox()))
        return list(found)

    for _ in range(2):  # the second loop needs a timer of its own
        assert asyncio.run(serve()) == [[BEAT] * 3] * 2
