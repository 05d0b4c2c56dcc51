"""A worker goes through all states that there are, and ``status`` says so each time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from farflung.messages.commands import Measure
from farflung.protocol.members import MemberState
from farflung.telemetry.records import StepRecord
from farflung.worker.broker_queries import BrokerQueries
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job


def state(cluster: Loopback, name: str) -> str:
    states = cluster.client.status()["states"]
    assert isinstance(states, dict)
    return str(states.get(name))


def test_a_worker_goes_through_all_states(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    measure = BrokerQueries._measure

    def measured(self: BrokerQueries, query: Measure) -> None:
        seen.append(state(cluster, "a"))
        measure(self, query)

    def look(name: str, facts: Mapping[str, int | str]) -> None:
        if name == "broker.before_plan":
            seen.append(state(cluster, "a"))

    def act(run: str, record: StepRecord) -> None:
        if record.step == 1:
            seen.append(state(cluster, "a"))
            cluster.workers["a"].announce({"parting": "drain"})
            until(lambda: state(cluster, "a") == MemberState.DRAINING)
            seen.append(state(cluster, "a"))

    monkeypatch.setattr(BrokerQueries, "_measure", measured)
    with Loopback(home, 0) as cluster:
        join(cluster.ticket("join"), name="a", role="worker", key=cluster.key).client.close()
        seen.append(state(cluster, "a"))
        cluster.add("a")
        seen.append(state(cluster, "a"))
        found = cluster.run(text_job(steps=6), on_record=act, injector=look)
        until(lambda: state(cluster, "a") == MemberState.GONE)
        seen.append(state(cluster, "a"))
    assert found.result.status == "finished", found.result.cause
    assert seen == ["joining", "standby", "assigned", "profiling", "active", "draining", "gone"]
    assert set(seen) == set(MemberState)
