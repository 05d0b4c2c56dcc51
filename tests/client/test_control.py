"""What ``watch`` passes on when the broker is lost and found again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from farflung.client import control
from farflung.client.control import ControlClient
from farflung.errors import ConnectionLost
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

    class Member:
        client = None

    client = ControlClient(cast(Membership, Member()))
    client.patience = Seconds(60.0)
    found = list(client.watch("run-1"))
    lost = Note(text="the broker is gone; trying again for at most 1 min 0 s")
    assert calls == [0, 1], "records continue where they broke off"
    assert [one for one in found if one != lost] == [*first, CheckpointWritten(step=2), Note(text="back"), DONE]
    assert sum(isinstance(one, Note) and "trying again" in one.text for one in found) == 1
