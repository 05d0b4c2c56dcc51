"""Watchers of runs that leave."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from farflung.broker.live_run import Submission
from farflung.broker.requests.watchers import Watchers
from farflung.broker.run_table import RunTable
from farflung.messages.calls import Watch
from farflung.protocol.events import Event, RunFailed
from farflung.security import Caller
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.channel import CallThreads
from tests.support.network.quiet import until

PATIENCE = 60.0


def test_the_end_of_a_watchers_call_does_not_wait_for_the_broker() -> None:
    """It comes on the thread that serves all calls."""
    runs, handled = RunTable(), list[Event]()
    live: Any = SimpleNamespace(
        run="r",
        job=SimpleNamespace(name="r", steps=1, workers=1, data=SimpleNamespace(kind="caller")),
        result=None,
        submission=Submission(submitter="client-ann", bundle=None),
        records=SimpleNamespace(log=SimpleNamespace(records=0, has_more=lambda position: False)),
    )
    runs.add(live)
    folders = SimpleNamespace(check=lambda run, caller, what: None)
    watchers = Watchers(runs, cast(Any, folders), handled.append)
    call = Call(Caller(name="client-ann", role="client"), "", CallThreads("test"))
    stream = watchers.watch(call, Watch(run="r", records=0))
    next(stream)
    ending = threading.Thread(target=call.finish)
    with runs.changed:
        ending.start()
        ending.join(PATIENCE)
        waited = ending.is_alive()
    assert not waited
    until(lambda: handled)
    assert [type(event) for event in handled] == [RunFailed]
    assert list(stream) == []
    watchers.close()
