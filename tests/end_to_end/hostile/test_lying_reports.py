"""Members whose reports are well formed and absurd: other members' runs, and everybody's status, do not suffer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.commands import idle_members
from benchmarks.commands.idle_members import IdleMembers, member_name
from farflung.broker.live_run import LiveRun
from farflung.errors import WireError
from farflung.messages.reports import CopyHashed, Failed, Hello, Prepared
from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode, encode
from farflung.worker.control_session import ControlSession
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.played_runs import play


@pytest.mark.parametrize(
    "absurd",
    [
        {"overhead": 86400.0, "convolution": 1e-9, "speed": 1.0, "factor": 1e9},
        {"speed": 1e24, "factor": 1e-9, "memory": 1e24, "installed": 1e24, "disk": 1e24},
        {"offload_rate": 1.0},
        {"ranks": 64, "rank_latency": 86400.0, "rank_rate": 1.0, "offload": 1.0, "offload_rate": 1e24},
    ],
    ids=["slow", "fast", "no-disk", "site"],
)
def test_an_absurd_offer_breaks_nobody_s_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absurd: Mapping[str, Any]
) -> None:
    honest = idle_members.idle_offer
    monkeypatch.setattr(idle_members, "idle_offer", lambda name: msgspec.structs.replace(honest(name), **absurd))
    with Loopback(tmp_path, 0) as cluster, closing(IdleMembers(cluster.ticket("join"))) as idle:
        idle.join([member_name(0)])
        assert cluster.members() == [member_name(0)]


@pytest.mark.parametrize("absurd", [{"speed": 1e300}, {"overhead": 1e300}, {"rank_rate": 5e-324}, {"factor": 1e300}])
def test_an_offer_that_no_machine_has_is_refused(absurd: Mapping[str, Any]) -> None:
    offer = msgspec.structs.replace(idle_members.idle_offer(member_name(0)), **absurd)
    with pytest.raises(WireError, match=f"bad message 'hello': Expected `float` .* in 'offer.{min(absurd)}'"):
        decode(encode(Hello(address="", offer=offer)), Channel.REPORTS)


@pytest.mark.parametrize("liar", ["a", "b"])
def test_a_member_that_invents_what_data_it_has_ends_no_run(home: Path, liar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one to report has nobody against it, so the second one is replaced. The third one decides."""
    honest, lies = ControlSession.report, list[Message]()

    def report(self: ControlSession, message: Message) -> None:
        if isinstance(message, Prepared) and self is cluster.workers[liar].session:
            message = msgspec.structs.replace(message, fingerprints=dict.fromkeys(message.fingerprints, "invented"))
            lies.append(message)
        honest(self, message)

    monkeypatch.setattr(ControlSession, "report", report)  # workers keep the bound method
    with Loopback(home, 3) as cluster:
        end = play(cluster, captured(text_job(steps=2), home), workers=2)
    assert (end.result.status, end.result.cause) == ("finished", "")
    assert lies
    assert any("hold different data" in str(frame.header) for frame in end.frames)


def test_what_a_member_invents_of_copies_and_of_others_takes_the_place_of_nothing(home: Path) -> None:
    """Hashes of copies that do not exist, and blame for workers that do not exist."""
    with Loopback(home, 2) as cluster:
        found: list[LiveRun] = []

        def lie(run: str) -> None:
            live = cluster.broker.runs.live(run)
            found.append(live)
            attempt, liar = live.attempt.number, cluster.workers["b"].session
            until(lambda: len(live.workers.copied) == 2)
            (state, *_), *_ = (hashes for hashes in live.workers.copied["b"].values())
            for step in range(10**6, 10**6 + 20):
                liar.report(CopyHashed(run=run, attempt=attempt, step=step, hashes={state: "0" * 64}))
            for number in range(20):
                liar.report(Failed(run=run, attempt=attempt, cause="no", kind="TrainingError", blames=f"nobody {number}"))

        end = play(cluster, captured(text_job(steps=5000), home), "record", lie, copies=1, copy_every=2)
        assert end.result.status == "failed"
        (live,) = found
        steps = live.workers.copied
        assert len(steps["b"]) <= 4
        assert 0 < min(steps["a"]) <= max(steps["a"]) < 5000, "what the honest worker has hashed stays"
        assert live.workers.blamed <= {"a", "b"}
