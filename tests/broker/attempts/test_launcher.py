"""What workers receive before an attempt begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts import launcher, retained_states
from farflung.broker.attempts.launcher import AttemptLauncher
from farflung.broker.links.reachability import Reachability
from farflung.broker.links.routes import Routes
from farflung.broker.run_table import RunTable
from farflung.cluster import Topology
from farflung.job.spec import VerifySpec
from farflung.messages.commands import AttemptMessage, CopyRounds, LiveStart, PhaseLimits, Prepare
from farflung.messages.schema import Message
from farflung.protocol.events import MemberJoined, Offer


def test_who_borrows_is_told_where_lenders_are_that_have_no_part_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder was paused; d, who never met it, takes its stage."""
    sent: list[tuple[str, Message]] = []
    monkeypatch.setattr(launcher, "worker_limits", lambda planned, bundle, job: PhaseLimits(data=60.0, compute=60.0))

    def send(name: str, command: Message) -> None:
        sent.append((name, command))

    runs = RunTable()
    for name in "abd":
        runs.machine.handle(MemberJoined(name=name, address=f"192.0.2.1:{ord(name)}", offer=Offer(memory=1e9, speed=1e9)))
    blank = Topology.preset("homogeneous-2")
    planned = SimpleNamespace(
        plan=SimpleNamespace(devices=("a", "d")), topology=blank.rename(dict(zip(blank.names, "ad", strict=True)))
    )
    start = SimpleNamespace(
        moves={"d": {"b": ("w",), "gone": ("v",)}, "a": {}},
        lenders=frozenset(),
        live_start=lambda name: LiveStart(step=7, committed=7, decision=None, moves={}),
    )
    live: Any = SimpleNamespace(
        run="r",
        attempt=SimpleNamespace(
            planned=planned,
            start=start,
            preparation=AttemptMessage(
                bundle=1,
                run="r",
                documents=(),
                emulate=False,
                notes={},
                first_step=7,
                committed=7,
                attempt=2,
                states="init",
                checkpoint_step=0,
                checkpoint_committed=0,
                recovered=True,
                submitter="s",
                rounds=CopyRounds(),
            ),
        ),
        job=SimpleNamespace(data=SimpleNamespace(kind="text"), verify=VerifySpec()),
        submission=SimpleNamespace(bundle=object(), submitter="s"),
    )
    unused: Any = None
    launching = AttemptLauncher(
        runs=runs,
        notices=unused,
        routes=Routes(runs.machine, runs.changed, Reachability(send, None), send),
        recorder=unused,
        retained=retained_states.RetainedStates(runs, send),
        send=send,
        handle=unused,
        trains=unused,
    )
    for name in ("a", "d"):
        launching.prepare(live, name)
    told = {name: command.addresses for name, command in sent if isinstance(command, Prepare)}
    assert told == {
        "a": {"d": "192.0.2.1:100"},
        "d": {"b": "192.0.2.1:98", "a": "192.0.2.1:97"},
    }
