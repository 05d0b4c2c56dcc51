"""Looking for a better plan while runs go on, for jobs with ``plan.again``.

It is looked when a worker has joined, every minute, and at once when a device or a link that a run uses has become lastingly
slow, or fast again (``protocol.looks`` says how soon and how often). A plan is made for all who could take part, and both it
and the one that runs are predicted with what is known of devices and links by now. If the new one is better by enough, the
machine is told; it then plans anew, as after a loss.

Who is idle is measured first, with the job's threads: what a worker measured when it joined, maybe beside others and with all
threads of a busy machine, may be a fraction of what it can do, and who was slow may be well again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from farflung.clock import Clock, MonotonicClock
from farflung.errors import FarflungError
from farflung.plan.estimate import estimate
from farflung.protocol.broker import BrokerMachine, Member, RunState
from farflung.protocol.events import BetterPlan, MemberDrifted
from farflung.protocol.looks import Looks
from farflung.protocol.rhythm import Drift
from farflung.runtime.link_table import LinkTable
from farflung.runtime.live_run import LiveRun
from farflung.runtime.planning import Judge, cluster_of, plan_run
from farflung.runtime.reaching import Reaching
from farflung.units import Seconds

__all__ = ["Replanning", "World", "worth_it"]

#: How long others may join after one has, and how often it is looked without that.
_SETTLE, _PERIOD = 2.0, 60.0
#: A new plan's step over the old one's at most, and what it must save in all.
_SHORTER, _SAVES = 0.9, 30.0
#: Why it is looked, where nothing has drifted.
_JOINED, _MINUTE = "joined", "minute"


def worth_it(now: float, then: float, steps: int) -> bool:
    """Whether steps of ``then`` seconds instead of ``now``, of which ``steps`` are left, are worth a pause."""
    return then <= _SHORTER * now and (now - then) * steps >= _SAVES


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What plans are made from; ``measure`` asks members to measure themselves with so many threads."""

    links: LinkTable
    reaching: Reaching
    judge: Judge | None
    measure: Callable[[Sequence[Member], int], None]
    clock: Clock = MonotonicClock()  # noqa: RUF009 - it has no state


class Replanning:
    """One thread, which begins with the first run that wants it. ``tell``: where events go; ``note``: what people are told of a
    run."""

    def __init__(
        self,
        machine: BrokerMachine,
        lock: threading.Condition,
        tell: Callable[[BetterPlan | MemberDrifted], None],
        world: World,
        note: Callable[[str, str], None],
    ) -> None:
        self._machine, self._lock, self._tell, self._world, self._note = machine, lock, tell, world, note
        self._runs: dict[str, LiveRun] = {}
        self._looks = Looks()
        self._wake, self._came, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def begins(self, live: LiveRun) -> None:
        """``live`` trains from now on."""
        with self._lock:
            if not live.job.plan.again:
                return
            self._runs[live.run] = live
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="replanning", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Look no more; nothing is waited for."""
        self._closed.set()
        self._wake.set()

    def joined(self, name: str) -> None:
        """The worker ``name`` has joined."""
        with self._lock:
            for live in self._runs.values():
                live.measured.discard(name)
        self._came.set()
        self._wake.set()

    def drifted(self, run: str, attempt: int, drift: Drift) -> None:
        """Something that plan number ``attempt`` of ``run`` uses is slow, or well again."""
        with self._lock:
            live = self._runs.get(run)
            if live is None or live.attempt != attempt or live.planned is None:
                return
            topology = live.planned.topology
        if drift.device:
            self._tell(MemberDrifted(name=drift.device, times=drift.times / drift.before))
        else:
            self._world.links.drifts.put(drift, topology)
        self.wake(run, drift.text)

    def wake(self, run: str, why: str) -> None:
        """Look soon whether there is a better plan for ``run``, if it wants that."""
        with self._lock:
            if run not in self._runs:
                return
            self._looks.want(run, why)
        self._wake.set()

    def look(self, why: str = _MINUTE, names: Collection[str] | None = None) -> None:
        """See for each run, or those with ``names``, whether there is a better plan."""
        with self._lock:
            for name in [name for name, live in self._runs.items() if live.result is not None]:
                del self._runs[name]
                self._looks.forget(name)
            runs = [live for name, live in self._runs.items() if names is None or name in names]
        for live in runs:
            try:
                found = self._consider(live, why)
            except FarflungError as error:
                found = f"there is no other one: {error}"  # no plan for all of them, or not now: the one that runs is good
            if found and why not in (_JOINED, _MINUTE):
                self._note(live.run, f"the plan stays ({why}): {found}")

    def look_due(self) -> None:
        """The same for what has drifted, if it is time."""
        with self._lock:
            due = self._looks.due(self._world.clock.now())
        for name, why in due.items():
            self.look(why, (name,))

    def _consider(self, live: LiveRun, why: str) -> str:
        """Why the plan stays (empty: it does not, or nobody needs to know)."""
        with self._lock:
            planned, bundle, now = live.planned, live.bundle, self._world.clock.now()
            attempt = self._runs_by(live)
            if not attempt or planned is None or bundle is None or (why == _MINUTE and self._looks.rests(live.run, now)):
                return ""
            idle = [one for one in self._able(live.run) if one.run is None and (why == _MINUTE or one.name not in live.measured)]
        self._world.measure(idle, live.job.threads)  # their offers are changed by their answers
        with self._lock:
            if self._runs_by(live) != attempt:
                return ""
            live.measured |= {member.name for member in idle}
            members = self._able(live.run)
        cluster = cluster_of(bundle, members, self._world.links, self._world.reaching)
        found = plan_run(bundle, cluster, self._world.judge, running=planned.plan)
        if found.plan.stages == planned.plan.stages:
            return "none is better"
        held = self._world.judge(bundle.graph, cluster, bundle.job)(planned.plan) if self._world.judge else None
        before = Seconds((held or estimate(bundle.graph, planned.plan, cluster, bundle.job)).step_seconds)
        then = Seconds(found.estimate.step_seconds)
        if not worth_it(before, then, live.job.steps - live.furthest):
            return f"the best takes {then} per step instead of {before}, which is not worth a pause"
        with self._lock:
            why = self._looks.taken(live.run) or why
            reason = "" if why in (_JOINED, _MINUTE) else f"{why}; "
            if why != _JOINED:
                self._looks.changed(live.run, self._world.clock.now())
        cause = f"{reason}there is a better plan: {then} per step instead of {before}"
        self._tell(BetterPlan(run=live.run, attempt=attempt, cause=cause))
        return ""

    def _runs_by(self, live: LiveRun) -> int:
        """The number of the plan that ``live`` runs by (0: it does not run; under the lock)."""
        run = self._machine.runs.get(live.run)
        return run.attempts if run is not None and run.state is RunState.RUNNING else 0

    def _able(self, name: str) -> Sequence[Member]:
        """Those who work for the run, and those who could (under the lock)."""
        run = self._machine.runs[name]
        return tuple(one for one in self._machine.members.values() if (one.run == name or one.ready) and run.plans_for(one))

    def _main(self) -> None:
        full = self._world.clock.now() + _PERIOD
        while not self._closed.is_set():
            now = self._world.clock.now()
            with self._lock:
                wait = min(full - now, self._looks.wait(now))
            self._wake.wait(max(wait, 0.0))
            self._wake.clear()
            if self._came.is_set() and self._closed.wait(_SETTLE):
                return
            if self._closed.is_set():
                return
            now = self._world.clock.now()
            self.look_due()  # first: what has drifted is the better reason
            if self._came.is_set():
                self._came.clear()
                self.look(_JOINED)
            elif now >= full:
                self.look()
            full = full if now < full else now + _PERIOD
