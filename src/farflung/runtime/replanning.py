"""Looking for a better plan while runs go on: when a worker has joined, and every minute, for jobs with ``plan.again``.

A plan is made for all who could take part, and both it and the one that runs are predicted with what is known of devices and
links by now. If the new one is better by enough, the machine is told; it then plans anew, as after a loss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.errors import FarflungError
from farflung.plan.estimate import estimate
from farflung.protocol.broker import BrokerMachine, Member, RunState
from farflung.protocol.events import BetterPlan
from farflung.runtime.link_table import LinkTable
from farflung.runtime.live_run import LiveRun
from farflung.runtime.planning import Judge, cluster_of, plan_run
from farflung.runtime.reaching import Reaching
from farflung.units import Seconds

__all__ = ["Replanning", "worth_it"]

#: How long others may join after one has, and how often it is looked without that.
_SETTLE, _PERIOD = 2.0, 60.0
#: A new plan's step over the old one's at most, and what it must save in all.
_SHORTER, _SAVES = 0.9, 30.0


def worth_it(now: float, then: float, steps: int) -> bool:
    """Whether steps of ``then`` seconds instead of ``now``, of which ``steps`` are left, are worth a pause."""
    return then <= _SHORTER * now and (now - then) * steps >= _SAVES


class Replanning:
    """One thread, which begins with the first run that wants it. ``tell``: where events go."""

    def __init__(
        self,
        machine: BrokerMachine,
        lock: threading.Condition,
        tell: Callable[[BetterPlan], None],
        world: tuple[LinkTable, Reaching, Judge | None],
    ) -> None:
        self._machine, self._lock, self._tell = machine, lock, tell
        self._links, self._reaching, self._judge = world
        self._runs: dict[str, LiveRun] = {}
        self._wake = threading.Event()
        self._closed = threading.Event()
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

    def joined(self) -> None:
        """Somebody has joined, or is free again."""
        self._wake.set()

    def look(self) -> None:
        """See for each run whether there is a better plan."""
        with self._lock:
            self._runs = {name: live for name, live in self._runs.items() if live.result is None}
            runs = list(self._runs.values())
        for live in runs:
            try:
                self._consider(live)
            except FarflungError:
                continue  # no plan for all of them, or not now: the one that runs is good

    def _consider(self, live: LiveRun) -> None:
        with self._lock:
            run, planned, bundle = self._machine.runs.get(live.run), live.planned, live.bundle
            if run is None or run.state is not RunState.RUNNING or planned is None or bundle is None:
                return
            attempt, members = run.attempts, self._able(live.run)
        cluster = cluster_of(bundle, members, self._links, self._reaching)
        found = plan_run(bundle, cluster, self._judge, running=planned.plan)
        if found.plan.stages == planned.plan.stages:
            return
        held = self._judge(bundle.graph, cluster, bundle.job)(planned.plan) if self._judge else None
        now = float((held or estimate(bundle.graph, planned.plan, cluster, bundle.job)).step_seconds)
        then = float(found.estimate.step_seconds)
        if worth_it(now, then, live.job.steps - live.furthest):
            cause = f"there is a better plan: {Seconds(then)} per step instead of {Seconds(now)}"
            self._tell(BetterPlan(run=live.run, attempt=attempt, cause=cause))

    def _able(self, name: str) -> Sequence[Member]:
        """Those who work for the run, and those who could (under the lock)."""
        run = self._machine.runs[name]
        return tuple(one for one in self._machine.members.values() if (one.run == name or one.ready) and run.plans_for(one))

    def _main(self) -> None:
        while not self._closed.is_set():
            if self._wake.wait(_PERIOD) and self._closed.wait(_SETTLE):
                return
            self._wake.clear()
            if not self._closed.is_set():
                self.look()
