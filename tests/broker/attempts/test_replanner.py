"""The coordinator with a virtual clock and nobody behind it: what it decides of drifts, and of what was measured badly."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts.replanner import PlanInputs, Replanner
from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.broker.live_run import Attempt, Submission, TrainingTimes, WorkerFacts
from farflung.broker.planning import LimitedJudges, cluster_of, plan_run, run_planner
from farflung.clock import VirtualClock
from farflung.protocol.broker import BrokerMachine, Member
from farflung.protocol.events import (
    BetterPlan,
    MemberJoined,
    MemberMeasured,
    MemberSlowed,
    MemberWants,
    Offer,
    PlanMade,
    RunDropped,
    RunPrepared,
    RunSubmitted,
)
from farflung.protocol.replan_timer import REST
from farflung.protocol.straggler_detector import Slowdown
from tests.support.runs.loopback import captured, text_job

#: So slow that steps take seconds.
SPEED = 4e6


@dataclass
class Stage:
    """A broker's machine, its coordinator and one run; all that was told."""

    base: Path
    names: str = "ab"
    steps: int = 1000
    planner: str = "op_fence"
    workers: int | None = None
    again: bool | str = True
    host: str = ""
    offers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock, self.machine, self.links = VirtualClock(), BrokerMachine(), LinkTable()
        self.told: list[BetterPlan | MemberSlowed] = []
        self.notes: list[str] = []
        self.asked: list[tuple[str, ...]] = []
        self.true = dict.fromkeys("abcd", SPEED)
        reaching = Reachability(lambda name, frame: None, None)
        inputs = PlanInputs(
            links=self.links, reachability=reaching, judges=LimitedJudges(), measure=self._measure, clock=self.clock
        )
        self.replanner = Replanner(
            self.machine, threading.Condition(threading.RLock()), self._hear, inputs, lambda run, text: self.notes.append(text)
        )
        job = text_job(steps=self.steps, plan={"planner": self.planner, "again": self.again}, workers=self.workers)
        self.live: Any = SimpleNamespace(
            run="r",
            job=job,
            submission=Submission(submitter="", bundle=captured(job, self.base)),
            attempt=Attempt(),
            planned=None,
            result=None,
            workers=WorkerFacts(),
            times=TrainingTimes(),
        )
        self.live.progress, self.live.workers, self.live.times = SimpleNamespace(last=None), WorkerFacts(), TrainingTimes()
        self.replanner._runs["r"] = self.live
        for name in self.names:
            self.join(name)
        for source, target in permutations("abcd", 2):
            self.links.put(source, target, LinkFigures(alpha=0.001, beta=1e6))
        self.machine.handle(RunSubmitted(run="r", workers=None, recoveries=3))
        self.plan()

    def join(self, name: str) -> None:
        offer = Offer(memory=4e9, speed=self.offers.get(name, SPEED), host=self.host, processors=("0", "1") if self.host else ())
        self.machine.handle(MemberJoined(name=name, address="127.0.0.1:1", offer=offer))

    def plan(self) -> None:
        """As the broker does it for whoever is there."""
        run, members = self.machine.runs["r"], list(self.machine.members.values())
        bundle = self.live.submission.bundle
        planned = plan_run(bundle, cluster_of(bundle, members, self.links), running=None)
        self.live.planned, self.live.attempt = planned, Attempt(number=run.attempts)
        self.live.workers.measured |= {member.name for member in members}
        self.machine.handle(PlanMade(run="r", attempt=run.attempts, devices=planned.plan.devices))
        for name in planned.plan.devices:
            self.machine.handle(RunPrepared(run="r", name=name, attempt=run.attempts))

    def switch(self) -> None:
        """All let go of the old attempt."""
        run = self.machine.runs["r"]
        for name in sorted(run.awaited):
            self.machine.handle(RunDropped(run="r", name=name, attempt=run.attempts))
        self.plan()

    def drift(self, name: str, times: float, before: float = 1.0) -> None:
        text = f"worker {name} is {'slow' if times > before else 'well'}"
        self.replanner.slowed("r", self.live.attempt.number, Slowdown(device=name, times=times, before=before, text=text))
        self.replanner.search_due()

    @property
    def better(self) -> list[BetterPlan]:
        return [event for event in self.told if isinstance(event, BetterPlan)]

    def share(self, name: str) -> float:
        """Of the operators, those that ``name`` has."""
        stages = self.live.planned.plan.stages
        sizes = {stage.devices[0]: stage.stop - stage.start for stage in stages}
        return sizes.get(name, 0) / sum(sizes.values())

    def _hear(self, event: BetterPlan | MemberSlowed) -> None:
        self.told.append(event)
        self.machine.handle(event)

    def _measure(self, members: Sequence[Member], threads: int) -> None:
        self.asked.append(tuple(member.name for member in members))
        for member in members:
            self.machine.handle(MemberMeasured(name=member.name, speed=self.true[member.name], factor=1.0, overhead=0.0))


def test_a_slow_device_is_moved_off_at_once_and_comes_back_when_it_is_well(home: Path) -> None:
    stage = Stage(home)
    fair = stage.share("b")
    stage.drift("b", 8.0)
    (better,) = stage.better
    assert better.cause.startswith("worker b is slow; there is a better plan: ")
    assert better.attempt == 1
    stage.switch()
    assert stage.share("b") < fair / 2
    assert stage.asked == [()], "nobody is asked who works"
    if not stage.share("b"):  # it stands by, and is measured there
        stage.clock.advance(REST)
        stage.replanner.search()
        assert stage.asked[-1] == ("b",)
    else:
        stage.clock.advance(REST - 1)
        stage.drift("b", 0.125)
        assert len(stage.better) == 1, "it rests after the last change"
        stage.clock.advance(1)
        stage.replanner.search_due()
    assert len(stage.better) == 2
    stage.switch()
    assert stage.share("b") == fair


def test_a_gain_that_a_pause_outweighs_changes_nothing_and_people_are_told(home: Path) -> None:
    stage = Stage(home, steps=2)
    stage.drift("b", 8.0)
    assert stage.better == []
    (note,) = stage.notes
    assert note.startswith("the plan stays: the best plan takes "), "the line before it has the reason"
    assert note.endswith(", which is not worth a pause for 2 remaining steps")


def test_a_planner_that_fails_leaves_the_plan_and_the_next_search_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"

        def plan(self, graph: object, topology: object, *, job: object) -> object:
            raise ValueError("no route")

    stage = Stage(home)
    with monkeypatch.context() as patched:
        patched.setattr(run_planner, "get_planner", lambda name: Broken())
        stage.drift("b", 8.0)
    assert stage.notes == ["the plan stays: there is no other plan: the planner op_fence failed: ValueError: no route"]
    stage.clock.advance(REST)
    stage.replanner.search()
    assert len(stage.better) == 1


def test_a_drift_of_an_older_plan_or_of_a_run_that_does_not_want_it_says_nothing(home: Path) -> None:
    stage = Stage(home)
    drift = Slowdown(device="b", times=8.0, before=1.0, text="b is slow")
    stage.replanner.slowed("r", 2, drift)
    stage.replanner.slowed("s", 1, drift)
    stage.replanner.wake("s", "b is slow")
    stage.replanner.search_due()
    assert (stage.told, stage.notes) == ([], [])


def test_a_slow_link_is_planned_round(home: Path) -> None:
    stage = Stage(home, names="abc", workers=2)
    first, second = stage.live.planned.plan.devices
    drift = Slowdown(link=(first, second), kind="fills", times=1000.0, before=1.0, text="the link is slow")
    stage.replanner.slowed("r", 1, drift)
    stage.replanner.search_due()
    (better,) = stage.better
    assert better.cause.startswith("the link is slow; there is a better plan with c: ")
    stage.switch()
    assert stage.live.planned.plan.devices != (first, second)


def test_who_joins_is_measured_before_it_is_judged(home: Path) -> None:
    """Its first measurement was made beside others, with all threads of a busy machine."""
    stage = Stage(home, names="a", offers={"b": SPEED / 50})
    stage.join("b")
    stage.replanner.joined("b")
    stage.replanner.search("joined")
    assert stage.asked == [("b",)]
    (better,) = stage.better
    assert better.cause.startswith("there is a better plan with b: ")
    stage.switch()
    assert stage.share("b") > 0


def test_who_stands_by_is_measured_again_with_each_minutes_look(home: Path) -> None:
    stage = Stage(home, names="a", offers={"b": SPEED / 50})
    stage.true["b"] = SPEED / 50
    stage.join("b")
    stage.replanner.joined("b")
    stage.replanner.search("joined")
    assert stage.better == [], "it is a bad partner now"
    stage.replanner.search("joined")
    assert stage.asked == [("b",), ()], "for who joins only the new ones are measured"
    stage.true["b"] = SPEED
    stage.replanner.search()
    assert stage.asked[-1] == ("b",)
    assert len(stage.better) == 1


def test_who_comes_back_is_measured_anew(home: Path) -> None:
    stage = Stage(home)
    stage.live.workers.measured = {"a", "b"}
    stage.replanner.joined("b")
    assert stage.live.workers.measured == {"a"}


def test_by_default_a_worker_that_joins_is_used_if_that_pays_off(home: Path) -> None:
    stage = Stage(home, names="a", again="auto")
    assert text_job(plan={"planner": "op_fence"}).plan.again == "auto", "it used to be false: who joined was never used"
    stage.join("b")
    stage.replanner.joined("b")
    stage.replanner.search("joined")
    (better,) = stage.better
    assert better.cause.startswith("there is a better plan with b: ")
    assert better.cause.endswith("; the run moves at step 0")
    stage.switch()
    assert stage.share("b") > 0


def test_by_default_a_short_run_is_left_alone_and_people_are_told(home: Path) -> None:
    stage = Stage(home, names="a", again="auto")
    step = float(stage.live.planned.estimate.step_seconds)
    stage.join("b")
    for seconds, furthest in ((step, 1000 - int(29 / step)), (0.02, 0)):  # the measured step counts where there is one
        stage.live.times.furthest = furthest
        stage.live.progress.last = SimpleNamespace(seconds=seconds)
        stage.replanner.search("joined")
        assert (stage.better, stage.asked) == ([], []), "nothing is measured or planned"
    assert stage.replanner.findings("r")["b"] == "the run ends in about 20 s, too soon for a move to another plan"
    (note,) = stage.notes
    assert note.startswith("b joined and is not used: the run ends in about ")
    stage.live.progress.last = SimpleNamespace(seconds=0.04)
    stage.replanner.search("joined")
    assert stage.asked == [("b",)], "40 s are left"
    assert stage.better == [], "half of 40 s is less than three times the pause"
    assert "which is not worth a pause for 1000 remaining steps" in stage.replanner.findings("r")["b"]


def test_who_is_idle_is_told_why(home: Path) -> None:
    stage = Stage(home, names="a", again="auto", offers={"b": SPEED / 50})
    stage.true["b"] = SPEED / 50
    stage.join("b")
    stage.replanner.search("joined")
    (note,) = stage.notes
    assert note == "b joined and is not used: no plan with other workers is faster"
    stage.replanner.search("joined")
    assert len(stage.notes) == 1, "once"
    asking = Stage(home, names="ab", again="auto", workers=2)
    asking.join("c")
    asking.replanner.search("joined")
    assert asking.replanner.findings("r") == {"c": "the job asks for workers = 2, and no better ones are there"}
    asking.live.result = object()
    asking.replanner.search("joined")
    assert asking.replanner.findings("r") == {}, "the run is over"


def test_every_minute_nothing_is_done_where_all_take_part(home: Path) -> None:
    stage = Stage(home, names="ab", again="auto")
    stage.replanner.search()
    assert stage.asked == []
    explicit = Stage(home, names="ab")
    explicit.replanner.search()
    assert explicit.asked == [()], "plan.again = true looks all the same"


def test_members_that_are_paused_do_not_end_the_search_of_each_minute(home: Path) -> None:
    """Those who may not take part make no cluster large."""
    stage = Stage(home, names="ab")
    for name in ("p", "q", "s"):
        stage.join(name)
        stage.machine.handle(MemberWants(name=name, paused=True))
    stage.replanner.search()
    assert stage.asked == [()]


def test_who_joins_a_host_that_computes_is_as_fast_as_who_is_there(home: Path) -> None:
    """It is not measured, since both would be slowed down, and its first measurement was made beside the other one."""
    stage = Stage(home, names="a", host="pc", offers={"b": SPEED / 50})
    stage.join("b")
    stage.replanner.search("joined")
    assert stage.asked == [()]
    (better,) = stage.better
    assert "with b" in better.cause


def test_a_worker_that_the_plan_leaves_out_is_reported_once_with_the_plan(home: Path) -> None:
    """The search after its joining finds the same, which is no news."""
    stage = Stage(home, names="abc", workers=2)
    (unused,) = stage.live.planned.unused
    assert "unused: " + unused in stage.live.planned.summary
    stage.replanner.begins(stage.live)
    assert unused in stage.replanner.findings("r"), "status knows the reason at once"
    stage.replanner.close()
    stage.replanner.search("joined")
    assert stage.notes == []
    stage.join("d")
    stage.replanner.search("joined")
    (note,) = stage.notes
    assert note.startswith("d joined and is not used: ")
