"""Better plans for runs that train, unless the job sets ``plan.again = false``.

The replanner searches when a worker has joined, every minute, and at once when a device or link of a run has lastingly changed
its speed (``protocol.replan_timer`` says how soon and how often). It plans for all workers that could take part. Both the new
and the current plan are predicted with the present figures of devices and links. If the new plan is better by enough, the
machine gets ``BetterPlan``; it then plans again, as after a loss.

Idle workers are measured first, with the job's threads. Their measurement on joining may be too low: other workers measured at
the same time, or with another number of threads. Workers on a host that computes for a run are not measured, since both would be
slowed down; they count as fast as those that work there.

A new plan whose workers share processors must be better even if its step exceeds its prediction as much as the last step did.

With ``plan.again = "auto"`` nothing is done for a run that ends before a move can pay off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import AttemptedRun, TrainingTimes
from farflung.broker.planning import LimitedJudges, Planned, cluster_of, plan_run, predict_plan, strangers_of
from farflung.broker.progress import Progress
from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.errors import FarflungError, Stopped
from farflung.job.engine_ranges import in_ranges
from farflung.messages.submission import Bundle
from farflung.optim import state_factor
from farflung.plan import Plan
from farflung.planners.constraints import moved_bytes
from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.candidates import candidates
from farflung.protocol.events import BetterPlan, MemberSlowed
from farflung.protocol.hosts import host_groups
from farflung.protocol.members import Member
from farflung.protocol.replan_timer import ReplanTimer
from farflung.protocol.straggler_detector import Slowdown
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds, counted

__all__ = ["PlanInputs", "Replanner", "transfer_seconds", "worth_it"]

#: Seconds: how long other workers may join after one has, and between two searches without a reason.
_SETTLE, _PERIOD = 2.0, 60.0
#: A new plan's step may take at most this share of the old one's.
_SHORTER = 0.9
#: Seconds of a move without the transfer of states; a move must save this many times its cost.
_PAUSE, _MARGIN = 10.0, 3.0
#: Reasons for a search where no speed has changed.
_JOINED, _MINUTE = "joined", "minute"
#: Seconds that ``close`` waits: a search can't be interrupted.
_END_SECONDS = 10.0


def worth_it(now: float, then: float, steps: int, transfer: float = 0.0) -> bool:
    """Return whether steps of ``then`` seconds instead of ``now``, of which ``steps`` are left, are worth a pause.

    ``transfer``: seconds until the states are on their new devices.
    """
    return then <= _SHORTER * now and (now - then) * steps >= _MARGIN * (_PAUSE + transfer)


def transfer_seconds(bundle: Bundle, old: Plan, new: Plan, topology: Topology) -> float:
    """Return the seconds until each device has the states that it lacks (with optimizer state), over its fastest link."""
    copies = 1.0 + state_factor(bundle.job.optimizer, bundle.graph)
    slowest = 0.0
    for device, nbytes in moved_bytes(bundle.graph, old, new).items():
        row = topology.index(device)
        rates = [float(topology.beta[i, row]) for i in range(len(topology)) if i != row]
        slowest = max(slowest, copies * nbytes / max(rates, default=float("inf")))
    return slowest


class ReplannedRun(AttemptedRun, Protocol):
    """A run for which better plans are searched."""

    times: TrainingTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What plans are made from. ``measure`` lets members measure their devices with that many threads."""

    links: LinkTable
    reachability: Reachability
    judges: LimitedJudges
    measure: Callable[[Sequence[Member], int], None]
    clock: Clock = MonotonicClock()  # noqa: RUF009 - it has no state


class Replanner:
    """One thread, "replanning", which starts with the first run that allows it. Any thread may call.

    ``lock`` guards ``machine``. ``handle`` receives events; ``notify`` a run and a text for people.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        lock: threading.Condition,
        handle: Callable[[BetterPlan | MemberSlowed], None],
        inputs: PlanInputs,
        notify: Callable[[str, str], None],
    ) -> None:
        self._machine, self._lock, self._handle, self._inputs, self._notify = machine, lock, handle, inputs, notify
        self._runs: dict[str, ReplannedRun] = {}
        self._timer = ReplanTimer()
        #: run -> idle worker -> why it has no part
        self._findings: dict[str, dict[str, str]] = {}
        self._wake, self._came, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._threads: ThreadGroup | None = None

    def begins(self, live: ReplannedRun) -> None:
        """``live`` trains from now on."""
        with self._lock:
            if live.job.plan.again is False:
                return
            self._runs[live.run] = live
            if live.planned is not None:  # these reasons were reported with the plan
                self._findings[live.run] = live.planned.unused
            if self._threads is None and not self._closed.is_set():
                self._threads = ThreadGroup()
                self._threads.spawn("replanning", self._main)

    def close(self) -> None:
        """Search no more, and join the thread."""
        self._closed.set()
        self._wake.set()
        if self._threads is not None:
            self._threads.join(_END_SECONDS)

    def joined(self, name: str) -> None:
        """The worker ``name`` has joined."""
        with self._lock:
            for live in self._runs.values():
                live.workers.measured.discard(name)
        self._came.set()
        self._wake.set()

    def findings(self, run: str) -> Mapping[str, str]:
        """Return why the workers that the last search for ``run`` left idle have no part, by name."""
        with self._lock:
            return dict(self._findings.get(run, {}))

    def slowed(self, run: str, attempt: int, slowdown: Slowdown) -> None:
        """A device or link of plan number ``attempt`` of ``run`` has changed its speed."""
        with self._lock:
            live = self._runs.get(run)
            if live is None or live.attempt.number != attempt or live.planned is None:
                return
            topology = live.planned.topology
        if slowdown.device:
            self._handle(MemberSlowed(name=slowdown.device, times=slowdown.times / slowdown.before))
        else:
            self._inputs.links.slowdowns.put(slowdown, topology)
        self.wake(run, slowdown.text)

    def wake(self, run: str, why: str) -> None:
        """Search for a better plan for ``run`` soon, if its job allows that."""
        with self._lock:
            if run not in self._runs:
                return
            self._timer.request(run, why)
        self._wake.set()

    def search(self, why: str = _MINUTE, names: Collection[str] | None = None) -> None:
        """Search for a better plan for each run, or for those with ``names``."""
        with self._lock:
            for name in [name for name, live in self._runs.items() if live.result is not None]:
                del self._runs[name]
                self._findings.pop(name, None)
                self._timer.forget(name)
            runs = [live for name, live in self._runs.items() if names is None or name in names]
        for live in runs:
            try:
                found = self._consider(live, why)
            except Stopped:
                continue  # the run trains by another plan meanwhile, or is over
            except FarflungError as error:
                found = f"there is no other plan: {error}"  # the current plan stays
            if found is None:
                continue
            news = self._found(live, found)
            if found and why not in (_JOINED, _MINUTE):
                self._notify(live.run, f"the plan stays: {found}")
            elif news and why == _JOINED:
                self._notify(live.run, f"{' and '.join(news)} joined and {'is' if len(news) == 1 else 'are'} not used: {found}")

    def search_due(self) -> None:
        """Search for the runs whose speeds have changed, if it is time."""
        with self._lock:
            due = self._timer.due(self._inputs.clock.now())
        for name, why in due.items():
            self.search(why, (name,))

    def _found(self, live: ReplannedRun, why: str) -> list[str]:
        """Store ``why`` for the workers that the run could use and does not; return those that are new among them."""
        with self._lock:
            if live.run not in self._runs or live.run not in self._machine.runs:
                return []
            idle = [one for one in self._able(live.run)[0] if one.run is None]
            known = self._findings.get(live.run, {})
            strange = [] if live.submission.bundle is None else strangers_of(live.submission.bundle, idle)
            found = {one.name: why or "the run moves to a better plan" for one in idle}
            found |= dict.fromkeys(strange, "it is not in the submitted topology; join under one of its names")
            found |= {name: f"limits.exclude of its job names {name}" for name in live.job.limits.exclude if name in found}
            engines = {one.name: one.offer.versions.get("engine", "") for one in idle}
            found |= {
                name: f"limits.engines of its job leaves {engine} out"
                for name, engine in engines.items()
                if not in_ranges(engine, live.job.limits.engines)
            }
            self._findings[live.run] = found
            return [one.name for one in idle if one.name not in known and found[one.name] == why]

    def _consider(self, live: ReplannedRun, why: str) -> str | None:
        """Return why the plan stays (empty: it does not, or nobody needs to know; None: nothing has changed)."""
        with self._lock:
            planned, bundle, now = live.planned, live.submission.bundle, self._inputs.clock.now()
            attempt = self._runs_by(live.run)
            if not attempt or planned is None or bundle is None or (why == _MINUTE and self._timer.rests(live.run, now)):
                return ""
            if soon := _too_soon(live, planned):
                return soon
            if why in (_JOINED, _MINUTE) and self._settled(live):
                return None
            idle = self._unmeasured(live, why)
            if idle is None:
                return ""
        self._inputs.measure(idle, live.job.threads)  # their offers are changed by their answers
        with self._lock:
            if self._runs_by(live.run) != attempt:
                return ""
            live.workers.measured.update(member.name for member in idle)
            members, _ = self._able(live.run)
            helpers = self._machine.may_help(live.run)
        cluster = cluster_of(bundle, [*members, *helpers], self._inputs.links, self._inputs.reachability)
        judge = self._inputs.judges.until(lambda: self._runs_by(live.run) == attempt)
        found = plan_run(bundle, cluster, judge, running=planned.plan)
        if found.plan.stages == planned.plan.stages:
            if live.job.workers is not None and len(planned.plan.devices) >= live.job.workers:
                return f"the job asks for workers = {live.job.workers}, and no better ones are there"
            return "no plan with other workers is faster"
        before = Seconds(predict_plan(bundle, planned.plan, cluster, judge).step_seconds)
        then = Seconds(found.estimate.step_seconds)
        transfer = transfer_seconds(bundle, planned.plan, found.plan, cluster)
        last, steps = _last_step(live.progress), live.job.steps - live.times.furthest
        scale = min(1.0, last / before) if live.job.plan.again == "auto" and last else 1.0  # measured over predicted
        error = max(1.0, last / before) if before and _shares(members, found.plan) else 1.0
        if not worth_it(scale * before, scale * error * then, steps, transfer):
            left = counted(steps, "remaining step")
            known = f" (steps take {error:.1f} times as long as predicted, and it shares cores, too)" if error > 1.05 else ""
            return f"the best plan takes {then} per step instead of {before}{known}, which is not worth a pause for {left}"
        came = sorted(set(found.plan.devices) - set(planned.plan.devices))
        using = f" with {', '.join(came)}" if came else ""
        with self._lock:
            why = self._timer.take(live.run) or why
            reason = "" if why in (_JOINED, _MINUTE) else f"{why}; "
            if why != _JOINED:
                self._timer.changed(live.run, self._inputs.clock.now())
            step = live.times.furthest
        cause = f"{reason}there is a better plan{using}: {then} per step instead of {before}; the run moves at step {step}"
        self._handle(BetterPlan(run=live.run, attempt=attempt, cause=cause))
        return ""

    def _settled(self, live: ReplannedRun) -> bool:
        """Return whether the cluster is large, and no new candidate is there since the last search (under the lock).

        In a large cluster a search takes seconds, and members come all the time.
        """
        chosen, able = self._able(live.run)
        return len(chosen) < len(able) and all(one.run is not None or one.name in live.workers.measured for one in chosen)

    def _unmeasured(self, live: ReplannedRun, why: str) -> list[Member] | None:
        """Return the idle workers to measure before a search (None: no search is needed; under the lock)."""
        able, _ = self._able(live.run)
        if live.job.plan.again == "auto" and why == _MINUTE and all(one.run is not None for one in able):
            return None
        beside = {one.name for group in host_groups(able) if any(other.run for other in group) for one in group}
        idle = [one for one in able if one.run is None and (why == _MINUTE or one.name not in live.workers.measured)]
        return [one for one in idle if one.name not in beside]

    def _runs_by(self, name: str) -> int:
        """Return the number of the plan by which the run ``name`` trains (0: it does not)."""
        with self._lock:
            run = self._machine.runs.get(name)
            return run.attempts if run is not None and run.state is RunState.RUNNING else 0

    def _able(self, name: str) -> tuple[Sequence[Member], Sequence[Member]]:
        """Return the run's workers with the candidates among those that could work for it; and with all those (locked)."""
        run = self._machine.runs[name]
        restored = self._machine.restored()
        free = (one for one in self._machine.members.values() if one.run == name or self._machine.may_take(name, one, restored))
        able = [one for one in free if run.plans_for(one)]
        return candidates(able, run.workers, run.devices), able

    def _main(self) -> None:
        full = self._inputs.clock.now() + _PERIOD
        while not self._closed.is_set():
            now = self._inputs.clock.now()
            with self._lock:
                wait = min(full - now, self._timer.wait(now))
            self._wake.wait(max(wait, 0.0))
            self._wake.clear()
            if self._came.is_set() and self._closed.wait(_SETTLE):
                return
            if self._closed.is_set():
                return
            now = self._inputs.clock.now()
            self.search_due()  # first: a change of speed is the more precise reason
            if self._came.is_set():
                self._came.clear()
                self.search(_JOINED)
            elif now >= full:
                self.search()
            full = full if now < full else now + _PERIOD


def _last_step(progress: Progress | None) -> float:
    """Return the seconds of the last step (0: there was none)."""
    last = progress.last if progress is not None else None
    return float(last.seconds) if last is not None else 0.0


def _too_soon(live: ReplannedRun, planned: Planned) -> str:
    """Return why no search can pay off for a run with ``plan.again = "auto"`` (empty: it can)."""
    left = (live.job.steps - live.times.furthest) * (_last_step(live.progress) or float(planned.estimate.step_seconds))
    if live.job.plan.again != "auto" or left >= _MARGIN * _PAUSE:
        return ""
    return f"the run ends in about {left:.0f} s, too soon for a move to another plan"


def _shares(members: Sequence[Member], plan: Plan) -> bool:
    """Return whether workers of ``plan`` share processors; predictions of shared processors are the least exact."""
    return any(sum(one.name in plan.devices for one in group) > 1 for group in host_groups(members))
