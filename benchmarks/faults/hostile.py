"""``hostile``: the final loss with one hostile replica of five over the loss of the undisturbed run, with two defenses.

Workers are threads of this process. ``sync robust``: five pipelines of two stages train a small network on samples of one
distribution; a third of the labels is noise, so the loss has a floor. The hostile pipeline exchanges forged gradients in every
step. Compared is the mean loss of the honest pipelines in the last steps. Verification: see ``hostile_verified``. Compared is the
mean loss of the run in the last steps.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.faults.hostile_verified import FORGER, VerifiedRun, train_verified
from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.inprocess import PlannedRun, run_planned
from farflung.api import capture
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.frontends.torch.ambient import batch_arrays, module_states
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job import JobSpec, make_job
from farflung.plan import CostTables
from farflung.plan.model import Plan, Replica, Stage
from farflung.plan.synchronization import with_sync
from farflung.step.sync.stage_replica import StageReplica

__all__ = ["ATTACKS", "Hostile", "HostileSettings"]

_TARGET, _MEMBERS, _AGE = 0.05, 5, 10
#: What becomes of a gradient; the second one is ten steps old.
ATTACKS: Mapping[str, Callable[[Array, Array], Array]] = {
    "nan": lambda array, _: np.full_like(array, np.nan),
    "infinite": lambda array, _: np.full_like(array, np.inf),
    "scaled": lambda array, _: array * array.dtype.type(1000.0),
    "sign-flipped": lambda array, _: -array,
    "stale": lambda _, old: old,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileSettings(Settings):
    """``rows``: samples of a micro-batch. ``last``: steps at the end whose losses are averaged.

    ``share`` of the work is verified in ``verified_steps``.
    """

    steps: int = 200
    rows: int = 64
    last: int = 20
    share: float = 0.1
    verified_steps: int = 60


class Hostile:
    """One hostile replica of five."""

    name = "hostile"
    summary = "one hostile replica of five, two stages, under sync robust and with verification: final loss over the undisturbed"

    def settings(self, quick: bool) -> HostileSettings:
        """Quick: a few steps."""
        return HostileSettings(quick=True, steps=4, rows=4, last=2, share=1.0, verified_steps=10) if quick else HostileSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, HostileSettings)
        robust = _robust(settings, say)
        verified = _verified(settings, say)
        ended = {attack: run for attack, run in verified.items() if run.status != "finished"}
        losses = {"sync robust": robust, "verification": {attack: run.loss for attack, run in verified.items()}}
        checks, rows = [], []
        for defense, found in losses.items():
            gaps = {attack: abs(loss / found["none"] - 1.0) for attack, loss in found.items()}
            rows += [(defense, attack, f"{loss:.4f}", f"{gaps[attack]:.2%}") for attack, loss in found.items()]
            worst = max(gaps, key=lambda attack: math.inf if math.isnan(gaps[attack]) else gaps[attack])
            checks.append(_check(f"final loss, {defense}", settings, gaps[worst], worst))
        honest = sorted({name for run in verified.values() for name in run.named} - {FORGER})
        checks.append(
            Check(
                name="verified runs that finish without a quarantine of an honest worker",
                target="all",
                measured=f"{len(verified) - len(ended)} of {len(verified)}",
                passed=not ended and not honest,
                note="; ".join([*(f"{attack}: {run.cause}" for attack, run in ended.items()), *honest]),
            )
        )
        named = {attack: list(run.named) for attack, run in verified.items()}
        figures = {"losses": losses, "named": named, "causes": {attack: run.cause for attack, run in verified.items()}}
        return Report(figures=figures, columns=("defense", "attack", "final loss", "gap"), rows=rows, checks=checks)


def _check(name: str, settings: HostileSettings, gap: float, worst: str) -> Check:
    return Check(
        name=name,
        target=f"within {_TARGET:.0%} of the undisturbed run",
        measured=f"{gap:.2%} ({worst})",
        passed=None if settings.quick else gap <= _TARGET,
        note="quick" if settings.quick else "",
    )


def _robust(settings: HostileSettings, say: Say) -> dict[str, float]:
    """Final losses by attack under ``sync robust`` (``none``: undisturbed)."""
    found = {"none": _final(settings)}
    for attack in ATTACKS:
        with _hostile(attack):
            found[attack] = _final(settings)
    say(f"sync robust: {found}")
    return found


def _verified(settings: HostileSettings, say: Say) -> dict[str, VerifiedRun]:
    """Runs by attack with verification (``none``: undisturbed)."""
    found: dict[str, VerifiedRun] = {}
    for attack, forge in {"none": None, **ATTACKS}.items():
        found[attack] = train_verified(
            forge, steps=settings.verified_steps, share=settings.share, last=settings.last, seed=settings.seed
        )
        run = found[attack]
        say(f"verification, {attack}: {run.loss:.4f}, {run.status}, named: {', '.join(run.named) or 'nobody'} {run.cause}")
    return found


@contextmanager
def _hostile(attack: str) -> Iterator[None]:
    """Inside, the last pipeline exchanges forged gradients."""
    honest, forge = StageReplica.read, ATTACKS[attack]
    old: defaultdict[tuple[int, str], deque[Array]] = defaultdict(lambda: deque(maxlen=_AGE + 1))

    def read(self: StageReplica, register: str, names: Sequence[str]) -> Mapping[str, Array]:
        found = honest(self, register, names)
        if register != "gradient" or self.world.rank != _MEMBERS - 1:
            return found
        for name, array in found.items():
            old[self.stage, name].append(np.array(array))
        return {name: forge(array, old[self.stage, name][0]) for name, array in found.items()}

    with mock.patch.object(StageReplica, "read", read):
        yield


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.second(self.first(x).tanh()), y)


def _batch(rows: int, step: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * (step + 1) + index)
    x = torch.randn(rows, 6, generator=random)
    learnt = (x @ torch.randn(6, 8, generator=torch.Generator().manual_seed(1))).argmax(dim=1)
    noise = torch.randint(0, 8, (rows,), generator=random)
    return x, torch.where(torch.rand(rows, generator=random) < 0.33, noise, learnt)


def _final(settings: HostileSettings) -> float:
    """Return the mean loss of the honest pipelines in the last steps."""
    torch.manual_seed(settings.seed)
    module = _Net()
    graph = capture(module, _batch(settings.rows, 0, 0))
    document: dict[str, Any] = {
        "steps": settings.steps,
        "seed": settings.seed,
        "micro_batch_sizes": [settings.rows] * _MEMBERS,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "plan": {"replicas": _MEMBERS},
        "sync": {"strategy": "robust", "settings": {"faulty": 1}},
        "threads": settings.threads,
    }
    job = make_job(document)
    order = dict(graph.meta).get("inputs", "").split(",")
    run = PlannedRun(
        graph=graph,
        plan=_plan(graph, job),
        job=job,
        states=module_states(module, graph),
        batches=lambda step, index: batch_arrays(_batch(settings.rows, step, index), order),
        rows=settings.rows,
    )
    losses = run_planned(run).micro_losses[-settings.last :]
    return statistics.mean(loss for step in losses for loss in step[: _MEMBERS - 1])


def _plan(graph: Graph, job: JobSpec) -> Plan:
    """Five pipelines of two stages, cut in the middle."""
    middle = next(graph.position[use.op] for use in graph.uses["second.weight"])
    stages = []
    for index, (start, stop) in enumerate([(0, middle), (middle, len(graph.ops))]):
        names = [f"w{number}-{index}" for number in range(_MEMBERS)]
        replicas = tuple(Replica(device=name, first=number, end=number + 1) for number, name in enumerate(names))
        stages.append(Stage(index=index, start=start, stop=stop, device=names[0], replicas=replicas))
    plan = Plan(
        graph_hash=graph.hash,
        planner="hand",
        stages=tuple(stages),
        links=(),
        schedule="1f1b",
        micro_batch_sizes=job.micro_batch_sizes,
    )
    topology = Topology.preset(f"homogeneous-{len(plan.devices)}")
    topology = topology.rename(dict(zip(topology.names, plan.devices, strict=True)))
    return with_sync(plan, graph, cut(graph, plan.bounds), topology, job, CostTables(graph).table("cpu"))
