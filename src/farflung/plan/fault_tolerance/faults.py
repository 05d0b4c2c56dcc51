"""Fault tolerance as a number: which deaths a plan survives, and the throughput that is left under given failure rates.

Deaths of device d come at random with the rate 1 / mtbf_d (exponential lives), so those of a run at the sum L of the rates of its
devices. A run writes a checkpoint after every n steps, for which training waits C seconds, and after a death pauses for R seconds
(the death is noticed, a plan made, the machines made ready) and makes the steps since the checkpoint again; a death in a pause
begins it anew. With s seconds per step, W = n s + C and lives without memory, n steps take

    E = exp(L R) (exp(L W) - 1) / L                                                                                       (1)

on average, restarts included (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006:
his complete model), so the throughput is n steps' samples over E. The best time between checkpoints is near
sqrt(2 C / L) - C (Young 1974, Daly 2006)                                                                                 (2).
A death that leaves another copy of all that it held costs a pause and the step under way only: with the rate M of such deaths a
step takes exp(M R) (exp(M s) - 1) / M in place of s in (1), and L is the rate of the others.
If a machine that died stays away for A seconds, the time is divided among the sets of machines that are there: all with
probability P = prod mtbf_d / (mtbf_d + A), all but d with P A / mtbf_d; (1) holds for each with its own s and L, and a return
costs a pause and no steps (3). Sets that lack more than one machine count as standing still, so A must be small beside 1 / L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.job.spec import JobSpec
from farflung.plan.estimation.results import Estimate
from farflung.plan.fault_tolerance.protection import protect
from farflung.plan.model import Plan
from farflung.plan.usable_devices import allowed_devices
from farflung.units import Seconds

__all__ = [
    "NOTICE_SECONDS",
    "FaultModel",
    "Survival",
    "best_interval",
    "checkpoint_steps",
    "expected_seconds",
    "failure_rates",
    "fault_model",
    "survival",
]

#: After so much silence a worker is given up (``protocol.leases``), and so long a new plan takes.
NOTICE_SECONDS, _PLAN_SECONDS = 5.0, 1.0
#: A checkpoint to recover from comes after so many times what the last one took, at the earliest (``worker.training_run``).
_SHARE = 33.0
#: Bytes per second at which states reach the broker and come back, where nothing else is known.
_STORE_RATE = 125e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """``copies``: of the stage that has fewest. ``weakest``: the stages with so few.

    ``in_memory``: deaths at once, whoever dies, after which every stage's newest states still lie on a machine: ``copies`` - 1 (0
    under a sync strategy, whose copies differ).
    ``goes_on``: deaths at once, the largest machines first, after which the others that the job's limits allow have memory for
    the model, and are as many as the job asks for: beyond them a run waits for machines. 0 where the job ends on a loss.
    ``checkpointed``: whether the weights of the newest checkpoint outlive everything but the broker's disk.
    ``guarded``: deaths at once, whoever dies, after which every stage's states still lie on a machine, be it as copies that
    are up to two rounds of ``round_seconds`` old (0 seconds: the plan makes no copies).
    """

    copies: int
    weakest: tuple[int, ...]
    in_memory: int
    goes_on: int
    checkpointed: bool
    on_loss: str
    guarded: int = 0
    round_seconds: float = 0.0

    @property
    def text(self) -> str:
        """It in a sentence."""
        many = len(self.weakest) > 1
        stages = ", ".join(map(str, self.weakest[:6])) + (", ..." if len(self.weakest) > 6 else "")
        if not self.in_memory:
            single = f"stage{'s' if many else ''} {stages} {'have' if many else 'has'} one copy"
            if self.copies > 1:
                single = "the copies differ under the sync strategy"
            memory = f"a single death can lose the newest state of a stage ({single})"
        else:
            memory = f"{_any(self.in_memory, 'leave')} a copy of the newest state of each stage"
        if self.guarded > self.in_memory:
            age = Seconds(2 * self.round_seconds)
            memory += f"; {_any(self.guarded, 'leave')} copies that are at most {age} old"
        if self.on_loss == "stop":
            return f'{memory}; the run ends on the first death (on_loss = "stop")'
        state = "the newest checkpoint is on the disk of the broker"
        if not self.checkpointed:
            state = "without checkpoints, the run starts again"
        goes = "after the death of the largest machine, the run waits for another machine"
        if self.goes_on:
            goes = f"after {_any(self.goes_on)}, the remaining machines have enough memory to continue"
        return f"{memory}; {state}; {goes}"


def _any(deaths: int, verb: str = "") -> str:
    """``deaths`` at once, whoever dies, with a verb in the right number."""
    words = "any death" if deaths == 1 else f"any {deaths} deaths at once"
    return f"{words} {verb}{'s' if deaths == 1 else ''}" if verb else words


def survival(plan: Plan, topology: Topology, job: JobSpec, estimate: Estimate) -> Survival:
    """Which deaths ``plan`` survives. Memory is compared in sum: a plan for fewer machines is not made here."""
    counts = [len(stage.devices) for stage in plan.stages]
    copies = min(counts)
    recovers = job.on_loss == "recover"
    need = sum(stage.memory_bytes for stage in estimate.stages)
    left = sorted((float(device.memory) for device in allowed_devices(topology, job.limits)), reverse=True)
    least = job.workers or 1
    goes_on = 0
    while recovers and goes_on + 1 <= len(left) - least and sum(left[goes_on + 1 :]) >= need:
        goes_on += 1
    kept = protect(plan, topology, job, estimate)
    return Survival(
        guarded=kept.tolerates(plan) if kept.guards else 0,
        round_seconds=kept.seconds,
        copies=copies,
        weakest=tuple(i for i, count in enumerate(counts) if count == copies),
        in_memory=copies - 1 if plan.sync is None else 0,
        goes_on=goes_on,
        checkpointed=job.checkpoint.every > 0 or job.recover_seconds > 0,
        on_loss=job.on_loss,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultModel:
    """``rates``: device -> deaths per second. ``interval``: steps from one checkpoint to the next. Seconds: ``step_seconds`` (s),
    ``checkpoint`` (C), ``recovery`` (R), ``away`` (A; 0: a machine that dies is replaced at once).

    ``spared``: the devices whose stages all have another copy, so that a death costs no finished step.

    ``without``: device -> step seconds of the plan that would be made without it (infinite: there is none); asked for only
    where ``away`` is more than 0.

    Raises:
        InputError: a rate or a time is negative or not finite.
    """

    rates: Mapping[str, float]
    step_seconds: float
    samples: int
    interval: int
    checkpoint: float
    recovery: float
    away: float = 0.0
    without: Mapping[str, float] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        numbers = {"checkpoint": self.checkpoint, "recovery": self.recovery, "away": self.away, **self.rates}
        for name, value in numbers.items():
            if not 0 <= value < math.inf:
                raise InputError(f"the fault model needs finite numbers from 0 on, got {name} = {value}; correct it")
        if self.interval < 1:
            raise InputError(f"there must be at least 1 step between checkpoints, got {self.interval}")

    @property
    def rate(self) -> float:
        """Deaths per second, L."""
        return sum(self.rates.values())

    @property
    def undisturbed(self) -> float:
        """Samples per second without deaths and checkpoints."""
        return self.samples / self.step_seconds

    @property
    def samples_per_second(self) -> float:
        """The expected throughput: equation (1), and (3) where machines stay away."""
        if self.away <= 0 or not self.rates:
            return self._throughput(self.step_seconds, "", 0.0)
        there = math.prod(1.0 / (1.0 + rate * self.away) for rate in self.rates.values())
        total = there * self._throughput(self.step_seconds, "", 0.0)
        for device, rate in self.rates.items():
            seconds = self.without.get(device, math.inf)
            if math.isfinite(seconds):
                total += there * rate * self.away * self._throughput(seconds, device, 1.0 / self.away)
        return total

    def _throughput(self, step: float, missing: str, returns: float) -> float:
        """Samples per second without the device ``missing``, with ``returns`` per second, which cost a pause each."""
        light = sum(rate for device, rate in self.rates.items() if device in self.spared and device != missing)
        heavy = sum(rate for device, rate in self.rates.items() if device not in self.spared and device != missing)
        each = expected_seconds(step, light, self.recovery)
        seconds = expected_seconds(self.interval * each + self.checkpoint, heavy, self.recovery)
        return self.interval * self.samples / (seconds * (1.0 + returns * self.recovery))

    @property
    def share(self) -> float:
        """The expected throughput over the undisturbed one."""
        return self.samples_per_second / self.undisturbed

    @property
    def text(self) -> str:
        """It in a sentence."""
        if not self.rates or self.rate == 0:
            return "unknown; no machine of this plan has a failure rate (set mtbf in the topology, or --mtbf)"
        heavy = sum(rate for device, rate in self.rates.items() if device not in self.spared)
        wish = (
            f"the best interval is {Seconds(best_interval(self.checkpoint, heavy))}"
            if heavy
            else "needed after several deaths at once only"
        )
        return (
            f"{self.samples_per_second:.4g} samples/s expected, {self.share:.1%} of the throughput without deaths, with a death "
            f"every {Seconds(1 / self.rate)} on average, a pause of {Seconds(self.recovery)} per death, and a checkpoint every "
            f"{self.interval} steps ({Seconds(self.interval * self.step_seconds)}; {Seconds(self.checkpoint)} each; {wish})"
        )


def expected_seconds(work: float, rate: float, recovery: float) -> float:
    """Equation (1): mean seconds until ``work`` seconds have passed without a death, ``recovery`` seconds after each."""
    if rate * work < 1e-12:
        return work
    if rate * (work + recovery) > 600:
        return math.inf
    return math.exp(rate * recovery) * math.expm1(rate * work) / rate


def best_interval(checkpoint: float, rate: float) -> float:
    """Equation (2): seconds of training between checkpoints that cost least (0: a checkpoint costs nothing)."""
    return max(math.sqrt(2.0 * checkpoint / rate) - checkpoint, 0.0) if rate > 0 else math.inf


def checkpoint_steps(job: JobSpec, step_seconds: float, checkpoint: float) -> int:
    """Steps from one checkpoint to the next, as the runtime writes them.

    Every ``checkpoint.every`` steps, and at the first end of a step after ``recover_every`` seconds, or 33 times what a
    checkpoint takes if that is longer (neither: all steps of the job).
    """
    steps = [job.steps]
    if job.checkpoint.every:
        steps.append(job.checkpoint.every)
    if job.recover_seconds > 0:
        pause = max(job.recover_seconds, _SHARE * checkpoint)
        steps.append(max(1, math.ceil(pause / step_seconds)))
    return min(steps)


def failure_rates(plan: Plan, topology: Topology, mtbf: float | None = None) -> dict[str, float]:
    """Deaths per second of the plan's devices: from the topology, from ``mtbf`` seconds for those of which it says nothing."""
    found = {}
    for name in plan.devices:
        seconds = topology.device(name).mtbf or mtbf
        if seconds is not None:
            found[name] = 1.0 / seconds
    return found


def fault_model(
    plan: Plan, topology: Topology, job: JobSpec, estimate: Estimate, *, mtbf: float | None = None, recovery: float | None = None
) -> FaultModel:
    """The model of ``plan`` under ``job``: states go to the broker and back at 1 Gbit/s, a death is noticed after 5 s of silence.

    ``recovery``: the whole pause in seconds, where it is known from runs.
    """
    state = sum(stage.memory["parameters"] + stage.memory["optimizer"] + stage.disk_bytes for stage in estimate.stages)
    moved = state / _STORE_RATE
    return FaultModel(
        rates=failure_rates(plan, topology, mtbf),
        step_seconds=estimate.step_seconds,
        samples=sum(plan.micro_batch_sizes),
        interval=checkpoint_steps(job, estimate.step_seconds, moved),
        checkpoint=moved,
        recovery=NOTICE_SECONDS + _PLAN_SECONDS + moved if recovery is None else recovery,
        spared=_spared(plan),
    )


def _spared(plan: Plan) -> frozenset[str]:
    """The devices whose stages all have another copy with the same states (under a sync strategy copies differ)."""
    if plan.sync is not None:
        return frozenset()
    return frozenset(name for name in plan.devices if all(len(stage.devices) > 1 for stage in plan.stages_of(name)))
