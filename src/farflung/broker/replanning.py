"""Looking for a better plan while runs go on, unless the job sets ``plan.again = false``.

It is looked when a worker has joined, every minute, and at once when a device or a link that a run uses has become lastingly
slow, or fast again (``protocol.looks`` says how soon and how often). A plan is made for all who could take part, and both it
and the one that runs are predicted with what is known of devices and links by now. If the new one is better by enough, the
machine is told; it then plans anew, as after a loss.

Who is idle is measured first, with the job's threads: what a worker measured when it joined, maybe beside others and with all
threads of a busy machine, may be a fraction of what it can do, and who was slow may be well again. Workers on a host that
computes for a run are not measured, since both would be slowed down; they count as fast as those that work there.

A new plan whose workers share processors has to be better even if its step exceeds its prediction as much as the last step did.

With ``plan.again = "auto"`` nothing is done for a run that ends before a move can pay off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from farflung.broker.links.reachability import Reaching
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import LiveRun
from farflung.broker.planning import Judge, Planned, cluster_of, plan_run, strangers_of
from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.cost import optimizer_factor
from farflung.errors import FarflungError
from farflung.messages.submission import Bundle
from farflung.plan import Plan
from farflung.plan.estimation.estimate import estimate
from farflung.planners.constraints import moved_bytes
from farflung.protocol.broker import BrokerMachine, Member, RunState
from farflung.protocol.events import BetterPlan, MemberDrifted
from farflung.protocol.hosts import host_groups
from farflung.protocol.looks import Looks
from farflung.protocol.rhythm import Drift
from farflung.units import Seconds, counted

__all__ = ["Replanning", "World", "transfer_seconds", "worth_it"]

#: How long others may join after one has, and how often it is looked without that.
_SETTLE, _PERIOD = 2.0, 60.0
#: A new plan's step over the old one's at most.
_SHORTER = 0.9
#: Seconds of a move without the transfer of states, and how many times what a move costs it must save.
_PAUSE, _MARGIN = 10.0, 3.0
#: Why it is looked, where nothing has drifted.
_JOINED, _MINUTE = "joined", "minute"


def worth_it(now: float, then: float, steps: int, transfer: float = 0.0) -> bool:
    """Whether steps of ``then`` seconds instead of ``now``, of which ``steps`` are left, are worth a pause.

    ``transfer``: seconds that states take to their new places.
    """
    return then <= _SHORTER * now and (now - then) * steps >= _MARGIN * (_PAUSE + transfer)


def transfer_seconds(bundle: Bundle, old: Plan, new: Plan, topology: Topology) -> float:
    """Seconds until each device has the states that it lacks, parameters and optimizer state, over its fastest link."""
    copies = 1.0 + optimizer_factor(bundle.job.optimizer.name, bundle.job.optimizer.momentum)
    slowest = 0.0
    for device, nbytes in moved_bytes(bundle.graph, old, new).items():
        row = topology.index(device)
        rates = [float(topology.beta[i, row]) for i in range(len(topology)) if i != row]
        slowest = max(slowest, copies * nbytes / max(rates, default=float("inf")))
    return slowest


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
        #: run -> idle worker -> why it has no part
        self._findings: dict[str, dict[str, str]] = {}
        self._wake, self._came, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def begins(self, live: LiveRun) -> None:
        """``live`` trains from now on."""
        with self._lock:
            if live.job.plan.again is False:
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

    def findings(self, run: str) -> Mapping[str, str]:
        """Why the workers that the last search for a better plan of ``run`` left idle have no part, by name."""
        with self._lock:
            return dict(self._findings.get(run, {}))

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
                self._findings.pop(name, None)
                self._looks.forget(name)
            runs = [live for name, live in self._runs.items() if names is None or name in names]
        for live in runs:
            try:
                found = self._consider(live, why)
            except FarflungError as error:
                found = f"there is no other plan: {error}"  # no plan for all of them, or not now: the one that runs is good
            news = self._found(live, found)
            if found and why not in (_JOINED, _MINUTE):
                self._note(live.run, f"the plan stays ({why}): {found}")
            elif news and why == _JOINED:
                self._note(live.run, f"{' and '.join(news)} joined and {'is' if len(news) == 1 else 'are'} not used: {found}")

    def _found(self, live: LiveRun, why: str) -> list[str]:
        """Keep ``why`` for the workers that the run could use and does not; those of them of whom nothing was known before."""
        with self._lock:
            if live.run not in self._runs or live.run not in self._machine.runs:
                return []
            idle = [one for one in self._able(live.run) if one.run is None]
            known = self._findings.get(live.run, {})
            strange = [] if live.bundle is None else strangers_of(live.bundle, idle)
            found = {one.name: why or "the run moves to a better plan" for one in idle}
            found |= dict.fromkeys(strange, "it is not in the submitted topology; join under one of its names")
            found |= {name: f"limits.exclude of its job names {name}" for name in live.job.limits.exclude if name in found}
            self._findings[live.run] = found
            return [one.name for one in idle if one.name not in known and found[one.name] == why]

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
            if soon := _too_soon(live, planned):
                return soon
            idle = self._unmeasured(live, why)
            if idle is None:
                return ""
        self._world.measure(idle, live.job.threads)  # their offers are changed by their answers
        with self._lock:
            if self._runs_by(live) != attempt:
                return ""
            live.measured |= {member.name for member in idle}
            members = self._able(live.run)
        cluster = cluster_of(bundle, members, self._world.links, self._world.reaching)
        found = plan_run(bundle, cluster, self._world.judge, running=planned.plan)
        if found.plan.stages == planned.plan.stages:
            if live.job.workers is not None and len(planned.plan.devices) >= live.job.workers:
                return f"the job asks for workers = {live.job.workers}, and no better ones are there"
            return "no plan with other workers is faster"
        held = self._world.judge(bundle.graph, cluster, bundle.job)(planned.plan) if self._world.judge else None
        before = Seconds((held or estimate(bundle.graph, planned.plan, cluster, bundle.job)).step_seconds)
        then = Seconds(found.estimate.step_seconds)
        transfer = transfer_seconds(bundle, planned.plan, found.plan, cluster)
        scale, steps = _scale(live, before), live.job.steps - live.furthest
        error = _error(live, before) if _shares(members, found.plan) else 1.0
        if not worth_it(scale * before, scale * error * then, steps, transfer):
            left = counted(steps, "remaining step")
            known = f" (steps take {error:.1f} times as long as predicted, and it shares cores, too)" if error > 1.05 else ""
            return f"the best plan takes {then} per step instead of {before}{known}, which is not worth a pause for {left}"
        came = sorted(set(found.plan.devices) - set(planned.plan.devices))
        using = f" with {', '.join(came)}" if came else ""
        with self._lock:
            why = self._looks.taken(live.run) or why
            reason = "" if why in (_JOINED, _MINUTE) else f"{why}; "
            if why != _JOINED:
                self._looks.changed(live.run, self._world.clock.now())
            step = live.furthest
        cause = f"{reason}there is a better plan{using}: {then} per step instead of {before}; the run moves at step {step}"
        self._tell(BetterPlan(run=live.run, attempt=attempt, cause=cause))
        return ""

    def _unmeasured(self, live: LiveRun, why: str) -> list[Member] | None:
        """The idle workers that are measured before a search (None: nothing is to be searched for; under the lock)."""
        able = self._able(live.run)
        if live.job.plan.again == "auto" and why == _MINUTE and all(one.run is not None for one in able):
            return None
        beside = {one.name for group in host_groups(able) if any(other.run for other in group) for one in group}
        idle = [one for one in able if one.run is None and (why == _MINUTE or one.name not in live.measured)]
        return [one for one in idle if one.name not in beside]

    def _runs_by(self, live: LiveRun) -> int:
        """The number of the plan that ``live`` runs by (0: it does not run; under the lock)."""
        run = self._machine.runs.get(live.run)
        return run.attempts if run is not None and run.state is RunState.RUNNING else 0

    def _able(self, name: str) -> Sequence[Member]:
        """Those who work for the run, and those who could (under the lock)."""
        run = self._machine.runs[name]
        able = (one for one in self._machine.members.values() if one.run == name or self._machine.may_take(name, one))
        return tuple(one for one in able if run.plans_for(one))

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


def _last_step(live: LiveRun) -> float:
    """Seconds of the last step (0: there was none)."""
    last = live.progress.last if live.progress is not None else None
    return float(last.seconds) if last is not None else 0.0


def _too_soon(live: LiveRun, planned: Planned) -> str:
    """Why no search can pay off for a run that leaves that to us (empty: it can, or it wants one in any case)."""
    left = (live.job.steps - live.furthest) * (_last_step(live) or float(planned.estimate.step_seconds))
    if live.job.plan.again != "auto" or left >= _MARGIN * _PAUSE:
        return ""
    return f"the run ends in about {left:.0f} s, too soon for a move to another plan"


def _error(live: LiveRun, before: float) -> float:
    """The measured step over the predicted one, where that is more."""
    return max(1.0, _last_step(live) / before) if before else 1.0


def _shares(members: Sequence[Member], plan: Plan) -> bool:
    """Whether workers of ``plan`` share processors: how much they slow each other down is what predictions know least."""
    return any(sum(one.name in plan.devices for one in group) > 1 for group in host_groups(members))


def _scale(live: LiveRun, before: float) -> float:
    """The measured step over the predicted one, where that is less, for a run that leaves it to us whether to move."""
    last = _last_step(live)
    return min(1.0, last / before) if live.job.plan.again == "auto" and last else 1.0
