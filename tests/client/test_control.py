"""What ``watch`` passes on when the broker is lost and found again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farflung.client import control
from farflung.client.control import ControlClient
from farflung.errors import ConnectionLost, SecurityError
from farflung.messages.schema import Message
from farflung.messages.watching import CheckpointWritten, JobInfo, Note, RecordLine, Result
from farflung.telemetry.records import RunResult
from farflung.units import Seconds
from farflung.worker.membership import Membership

INFO = JobInfo(name="j", steps=4, workers=2)
DONE = Result(result=RunResult(status="finished", steps=4, seconds=1.0).to_json(), kind="")


def test_messages_are_not_repeated_after_a_restart_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Message] = [INFO, Note(text="slow"), RecordLine(line="1"), Note(text="back"), Note(text="slow")]
    second: list[Message] = [INFO, Note(text="slow"), Note(text="slow"), CheckpointWritten(step=2), Note(text="back"), DONE]
    calls: list[int] = []

    def ask_all(rpc: object, request: Any, channel: object) -> Iterator[Message]:
        calls.append(request.records)
        yield from first if len(calls) == 1 else second
        if len(calls) == 1:
            raise ConnectionLost("the broker is gone")

    monkeypatch.setattr(control, "ask_all", ask_all)
    monkeypatch.setattr(control, "_RETRY_SECONDS", 0.0)

    client = ControlClient(cast(Membership, SimpleNamespace(client=None, again=None)))
    client.patience = Seconds(60.0)
    found = list(client.watch("run-1"))
    lost = Note(text="the broker is gone; trying again for at most 1 min 0 s")
    assert calls == [0, 1], "records continue where they broke off"
    assert [one for one in found if one != lost] == [*first, CheckpointWritten(step=2), Note(text="back"), DONE]
    assert sum(isinstance(one, Note) and "trying again" in one.text for one in found) == 1


def test_watch_continues_at_the_broker_that_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rpc:
        def __init__(self, name: str) -> None:
            self.name, self.closed = name, False

        def close(self) -> None:
            self.closed = True

    old, new = Rpc("old"), Rpc("new")
    answers = iter([ConnectionLost("not yet"), SecurityError("expired"), SimpleNamespace(client=new, again=None)])

    def again() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    calls: list[str] = []

    def ask_all(rpc: Rpc, request: Any, channel: object) -> Iterator[Message]:
        calls.append(rpc.name)
        if rpc is old:
            raise ConnectionLost("the broker is gone")
        yield DONE

    monkeypatch.setattr(control, "ask_all", ask_all)
    monkeypatch.setattr(control, "_RETRY_SECONDS", 0.0)
    client = ControlClient(cast(Membership, SimpleNamespace(client=old, again=again)))
    client.patience = Seconds(60.0)
    assert list(client.watch("run-1"))[-1] == DONE
    assert calls == ["old", "old", "old", "new"], "a ticket that has expired, and a standby that does not lead yet, are no end"
    assert (old.closed, new.closed) == (True, False)
