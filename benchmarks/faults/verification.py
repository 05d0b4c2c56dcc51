"""``verification``: what verifying 1 % of the work costs, and how soon a worker that forges one step in a hundred is named.

Workers are threads of this process with the in-memory transport. The cost is CPU time: that of all calls of ``Verification`` over
the rest. It falls with the rows of a micro-batch, because the gradients that are hashed have the size of the parameters. Pairs of
runs also compare step times, with verification over without. For the other two figures, a tiny model is trained by three
replicas of one stage, and the decisions of the broker (``broker.verification``) are made from their step reports. The forger
gives gradients with the wrong sign in all micro-batches of a forged step, and is honest when it verifies others.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.api import capture
from farflung.broker.verification.unit_verdicts import Forged, SecondOpinion, UnitVerdicts
from farflung.client.in_process import LocalHooks, LocalRun
from farflung.engines import get_engine
from farflung.engines.base import Array, Engine, EngineSettings, Forward, MicroBatch, StageRunner
from farflung.frontends.torch.ambient import batch_arrays, module_states
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Use, ValueRef
from farflung.job import JobSpec, make_job
from farflung.messages.conversions.step_reports import StepReport
from farflung.plan.model import Plan, Replica, Stage
from farflung.plan.verification import secrets_for
from farflung.step.run_setup import Phase, RunSetup
from farflung.step.verification.verification import Verification as Verifying
from farflung.transports.memory import MemoryHub

__all__ = ["Verification", "VerificationSettings"]

_COST, _STEPS, _FORGER = 0.015, 1000, "b"
_DEVICES = ("a", "b", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSettings(Settings):
    """``share`` of the work; ``micro_batches`` of each replica; ``forged``: the share of forged steps.

    ``width`` and ``cost_steps``: of the model and of each of ``repeats`` pairs of runs whose cost is measured, for each number of
    ``rows`` of a micro-batch; the target is for the last one. ``runs``: with a forger, each of ``most`` steps at most.
    ``honest``: steps without one, with ``honest_micro_batches`` of each replica.
    """

    share: float = 0.01
    micro_batches: int = 8
    forged: float = 0.01
    width: int = 256
    rows: tuple[int, ...] = (512, 2048, 8192)
    cost_steps: int = 12
    repeats: int = 4
    runs: int = 20
    most: int = 5000
    honest: int = 10_000
    honest_micro_batches: int = 2


class Verification:
    """Three replicas that verify each other."""

    name = "verification"
    summary = "verification of 1 % of the work: its cost, steps until a forger is named, honest workers named"

    def settings(self, quick: bool) -> VerificationSettings:
        """Quick: a tiny model, a large share, and few steps."""
        if not quick:
            return VerificationSettings()
        return VerificationSettings(
            quick=True,
            share=0.2,
            forged=0.2,
            micro_batches=2,
            width=16,
            rows=(4,),
            cost_steps=3,
            repeats=1,
            runs=1,
            most=60,
            honest=10,
        )

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, VerificationSettings)
        costs = {rows: _cost(settings, rows, say) for rows in settings.rows}
        named = []
        for number in range(settings.runs):
            group = _Group(settings, width=8, rows=2, steps=settings.most, seed=number, forges=settings.forged)
            group.train()
            wrong = [name for name in group.named if name != _FORGER]
            assert not wrong, f"{wrong} were named and are honest"
            named.append(group.steps if group.named else settings.most)
            say(f"run {number + 1} of {settings.runs}: named after {named[-1]} steps")
        few = replace(settings, micro_batches=settings.honest_micro_batches)
        honest = _Group(few, width=8, rows=2, steps=settings.honest, seed=settings.seed)
        honest.train()
        return _report(settings, costs, named, honest)


class _Net(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, (self.body(x) - x.flip(1)).square().mean())


@dataclass(slots=True)
class _Group:
    """One run. ``named``: workers that were found to forge. ``seconds``: of the steps of worker a, as it reports them."""

    settings: VerificationSettings
    width: int
    rows: int
    steps: int
    layers: int = 1
    seed: int = 0
    forges: float = 0.0
    share: float | None = None
    named: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    verified: int = 0

    def train(self) -> None:
        """Train until all steps are done, or somebody is named."""
        job, (graph, plan, states) = self._job(), self._planned()
        setups = {
            device: RunSetup(
                run="bench",
                device=device,
                job=job,
                plan=plan,
                graphs={self.rows: graph},
                secrets=secrets_for(f"secret {self.seed}", plan, device, dict.fromkeys(_DEVICES, "cpu")),
            )
            for device in plan.devices
        }
        verdicts, lock = UnitVerdicts(plan), threading.Lock()
        hooks = {device: _Hooks(self, device, states) for device in plan.devices}
        engine = _ForgingEngine(get_engine("torch"), self.seed, self.forges)
        run = LocalRun(setups, hooks, cast(Engine, engine), MemoryHub().endpoint, job.threads)

        def reported(device: str, report: StepReport) -> None:
            with lock:
                findings = verdicts.report(device, report)
                self.verified = verdicts.verified
            for finding in findings:
                match finding:
                    case SecondOpinion():
                        run.executors[finding.name].verification.recheck(finding.unit, finding.verifier)
                    case Forged():
                        self.named.append(finding.name)
            if device == plan.devices[0]:
                self.seconds.append(report.seconds)

        for hook in hooks.values():
            hook.reported = reported
        run.run()
        self.steps = len(self.seconds)

    def _job(self) -> JobSpec:
        document: dict[str, Any] = {
            "steps": self.steps,
            "seed": self.seed,
            "micro_batch_sizes": [self.rows] * (self.settings.micro_batches * len(_DEVICES)),
            "model": {"recipe": "gpt"},
            "data": {"kind": "text", "path": "unread"},  # the hooks give the batches
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "plan": {"replicas": len(_DEVICES)},
            "verify": {"share": self.settings.share if self.share is None else self.share},
            "threads": self.settings.threads,
        }
        return make_job(document)

    def _planned(self) -> tuple[Graph, Plan, Mapping[str, Array]]:
        torch.manual_seed(self.seed)
        module = _Net(self.width, self.layers)
        graph = capture(module, (self.batch(0, 0),))
        each = self.settings.micro_batches
        replicas = tuple(Replica(device=name, first=i * each, end=(i + 1) * each) for i, name in enumerate(_DEVICES))
        stage = Stage(index=0, start=0, stop=len(graph.ops), device=_DEVICES[0], replicas=replicas)
        sizes = (self.rows,) * (each * len(_DEVICES))
        plan = Plan(graph_hash=graph.hash, planner="hand", stages=(stage,), links=(), schedule="1f1b", micro_batch_sizes=sizes)
        return graph, plan, module_states(module, graph)

    def batch(self, step: int, index: int) -> torch.Tensor:
        """Return the samples of a micro-batch."""
        return torch.randn(self.rows, self.width, generator=torch.Generator().manual_seed(1000 * step + index))


class _Hooks(LocalHooks):
    def __init__(self, group: _Group, device: str, states: Mapping[str, Array]) -> None:
        self._group, self._device, self._states = group, device, states
        self.reported: Any = None

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """One micro-batch."""
        del phase
        return batch_arrays((self._group.batch(step, micro_batch),), list(names))

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array]:
        """The module's own."""
        return {name: self._states[name] for name in names if name in self._states}

    def stop_requested(self) -> bool:
        """Whether somebody is named."""
        return bool(self._group.named)

    def on_step(self, report: StepReport) -> None:
        """As a broker."""
        self.reported(self._device, report)

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """There are no evaluations."""


class _ForgingEngine:
    """The engine of all workers. The first runner that the forger opens forges; the one with which it verifies does not."""

    def __init__(self, engine: Engine, seed: int, share: float) -> None:
        self._engine, self._seed, self._share = engine, seed, share
        self._opened = False

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> StageRunner:
        """See ``Engine``."""
        runner = self._engine.open(subgraph, settings, share)
        if threading.current_thread().name != f"compute-{_FORGER}" or self._opened or not self._share:
            return runner
        self._opened = True
        return cast(StageRunner, _Forger(runner, self._seed, self._share))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _Forger:
    """A runner that gives wrong gradients of parameters in some steps."""

    def __init__(self, runner: StageRunner, seed: int, share: float) -> None:
        self._runner, self._seed, self._share, self._step = runner, seed, share, 0

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """See ``StageRunner``."""
        self._step = key.step
        return self._runner.forward(key, values, data)

    def take_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        found = self._runner.take_gradients()
        forges = random.Random(f"{self._seed}/{self._step}").random() < self._share
        return {use: np.negative(array) for use, array in found.items()} if forges else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """``share``: CPU seconds of verification over the other ones. ``ratios``: of step times, with verification over without.

    The seconds of the ``units`` that were drawn count as if exactly the wanted share had been drawn.
    """

    share: float
    ratios: Sequence[float]
    units: int


@dataclass(frozen=True, slots=True)
class _Account:
    """CPU seconds of calls: for a worker's ``own`` units, and for ``drawn`` ones. Appends of several threads are safe."""

    own: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)


def _cost(settings: VerificationSettings, rows: int, say: Say) -> _Cost:
    """Measure pairs of runs, without and with verification."""
    ratios, own, drawn, total, units, expected = [], 0.0, 0.0, 0.0, 0, 0.0
    for number in range(settings.repeats):
        seconds: dict[float, float] = {}
        turn = (0.0, settings.share)
        model: dict[str, Any] = {"width": settings.width, "layers": 4, "rows": rows}
        for share in reversed(turn) if number % 2 else turn:  # a machine that gets slower favors neither
            group = _Group(settings, **model, steps=settings.cost_steps, seed=number, share=share)
            with _accounted() as account:
                began = time.process_time()
                group.train()
            seconds[share] = statistics.mean(group.seconds[1:])
            if share:
                own, drawn, total = own + sum(account.own), drawn + sum(account.drawn), total + time.process_time() - began
                units += group.verified
                expected += share * group.steps * settings.micro_batches * len(_DEVICES)
        ratios.append(seconds[settings.share] / seconds[0.0])
        say(f"{rows} rows: {seconds[0.0]:.4f} s a step, {seconds[settings.share]:.4f} with verification")
    scale = expected / max(1, units)
    return _Cost(share=(own + scale * drawn) / (total - own - drawn), ratios=ratios, units=units)


@contextmanager
def _accounted() -> Iterator[_Account]:
    """Collect the CPU seconds of all calls of ``Verification``, which are made in the threads of the workers."""
    account = _Account()

    def timed(method: Callable[..., Any], found: list[float]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args, **named)
            finally:
                found.append(time.thread_time() - began)

        return call

    with ExitStack() as patches:
        for found, names in (
            (account.own, ("computed", "part", "end_step")),
            (account.drawn, ("before_update", "take_report", "receive_wanted", "receive_inputs")),
        ):
            for name in names:
                patches.enter_context(patch.object(Verifying, name, timed(getattr(Verifying, name), found)))
        yield account


def _report(settings: VerificationSettings, costs: Mapping[int, _Cost], named: Sequence[int], honest: _Group) -> Report:
    share, median = costs[settings.rows[-1]].share, statistics.median(named)
    judged = not settings.quick
    note = "quick" if settings.quick else ""
    checks = [
        Check(
            name=f"share of CPU time with {settings.rows[-1]} rows in a micro-batch",
            target=f"under {_COST}",
            measured=f"{share:.4f}",
            passed=share < _COST if judged else None,
            note=note,
        ),
        Check(
            name="steps until a forger is named",
            target=f"{_STEPS} at most",
            measured=f"median {median:.0f}",
            passed=median <= _STEPS if judged else None,
            note=note,
        ),
        Check(name="honest workers named", target="0", measured=str(len(honest.named)), passed=not honest.named),
    ]
    figures = {
        "cpu_share": {str(rows): cost.share for rows, cost in costs.items()},
        "cost_units": {str(rows): cost.units for rows, cost in costs.items()},
        "step_ratios": {str(rows): list(cost.ratios) for rows, cost in costs.items()},
        "steps_until_named": list(named),
        "median_steps_until_named": median,
        "honest_steps": honest.steps,
        "honest_named": len(honest.named),
        "honest_units_verified": honest.verified,
    }
    table = [
        (
            rows,
            f"{100 * cost.share:.2f} %",
            f"{statistics.median(cost.ratios):.3f}",
            f"{median:.0f}",
            honest.steps,
            honest.verified,
        )
        for rows, cost in costs.items()
    ]
    columns = ("rows", "CPU time", "step ratio", "steps until named", "honest steps", "units verified")
    return Report(figures=figures, columns=columns, rows=table, checks=checks)
