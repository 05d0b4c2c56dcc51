"""Executors as threads of this process under a plan made by hand, and the plain loop that they must equal."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.api import capture
from farflung.api.submission import freeze
from farflung.broker.records.run_store import RunStore
from farflung.checkpoint import CheckpointReader, pack
from farflung.client.in_process import LocalRun
from farflung.client.shared_batches import SharedBatches
from farflung.cluster import Topology
from farflung.engines import get_engine
from farflung.engines.base import Array, Engine
from farflung.frontends.torch.ambient import batch_arrays, module_states
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.job.rates import rates
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.submission import Bundle
from farflung.plan import CostTables
from farflung.plan.model import LinkPlan, Plan, Replica, Stage
from farflung.plan.synchronization import with_sync
from farflung.planners.finish import Problem
from farflung.step.run_setup import Committed, Phase, RunSetup
from farflung.step.sync.replica_slots import wanted_by
from farflung.sync.reductions import Reduction
from farflung.telemetry import Span, SpanKind
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from farflung.transports.memory import MemoryHub

BatchFunction = Callable[[int, int], tuple[Tensor, ...]]


class Tangle(nn.Module):
    """Tied weights, a shared layer, batch-norm, dropout and residuals: ``forward(x, y)``, ``(n, 6)`` and ``(n,)`` -> loss."""

    def __init__(self, drop: float = 0.2) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.mix = nn.Linear(8, 8)
        self.drop = nn.Dropout(drop)
        self.layer = nn.LayerNorm(8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.mix.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm(self.up(x)).tanh()
        z = x + self.drop(self.mix(x))
        z = self.layer(z) + self.drop(self.mix(z))
        return functional.cross_entropy(self.last(z) + x, y)


def tangle() -> nn.Module:
    torch.manual_seed(0)
    return Tangle().train()


def calm_tangle() -> nn.Module:
    """Without random operators, so that a step's number decides nothing but its data."""
    torch.manual_seed(0)
    return Tangle(drop=0.0).train()


class Root(nn.Module):
    """Its gradient is not a number where the input is zero, although its loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.second(self.first(x))
        return functional.cross_entropy(z, y) + z.square().sum().sqrt()


def root() -> nn.Module:
    torch.manual_seed(0)
    return Root()


def random_batches(sizes: Sequence[int]) -> BatchFunction:
    def batch(step: int, index: int) -> tuple[Tensor, ...]:
        random = torch.Generator().manual_seed(100 * step + index)
        return (
            torch.randn(sizes[index], 6, generator=random),
            torch.randint(0, 8, (sizes[index],), generator=random),
        )

    return batch


def job_of(**changes: Any) -> JobSpec:
    document: dict[str, Any] = {"steps": 3, "seed": 5, "micro_batch_sizes": [4, 2, 3], "optimizer": {"name": "adamw", "lr": 1e-2}}
    return make_job(document | changes)


@dataclass(kw_only=True)
class Case:
    """A module with its job and data. ``devices``: of the stages in order; their number is that of the stages."""

    job: JobSpec
    devices: Sequence[str] = ("a",)
    schedule: str = "1f1b"
    recompute: bool = False
    batch: BatchFunction | None = None
    make: Callable[[], nn.Module] = tangle
    root: Path | None = None
    evaluation: bool = False
    #: as often as the leader asks whether the run shall end, or be handed over
    stop_after: int | None = None
    leave_after: int | None = None
    #: a checkpoint's folder to begin with
    resume: Path | None = None
    cut_seed: int = 0
    #: stage -> (device, micro-batches) of its replicas
    replicas: Mapping[int, Sequence[tuple[str, range]]] = field(default_factory=dict)
    #: stage -> how its replicas sum, where not in the job's order
    adds: Mapping[int, Reduction] = field(default_factory=dict)
    links: Sequence[LinkPlan] = ()
    #: how many steps of a period each pipeline takes (empty: what the planner finds)
    local_steps: tuple[int, ...] = ()
    engine: Engine | None = None
    #: steps whose inputs are multiplied, and by what
    spoilt: Mapping[int, float] = field(default_factory=dict)

    @property
    def batches(self) -> BatchFunction:
        plain = self.batch or random_batches(self.job.micro_batch_sizes)

        def batch(step: int, index: int) -> tuple[Tensor, ...]:
            x, *others = plain(step, index)
            return (x * self.spoilt.get(step, 1.0), *others)

        return batch

    def graphs(self) -> dict[int, Graph]:
        sizes = self.job.micro_batch_sizes
        return {size: freeze(self.captured(sizes.index(size)), self.job) for size in sorted(set(sizes), reverse=True)}

    def captured(self, index: int, mode: str = "train") -> Graph:
        """The graph for micro-batch ``index``."""
        return _captured(self.make, tuple((tuple(x.shape), x.dtype) for x in self.batches(-1, index)), mode)


@lru_cache(maxsize=256)
def _captured(make: Callable[[], nn.Module], inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...], mode: str) -> Graph:
    """Each module is captured once for all tests of a process: a capture takes longer than a run of a few steps."""
    return capture(make(), tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in inputs), mode=mode)


def hand_plan(case: Case, graph: Graph) -> Plan:
    """Stages of module runs, cut at places that ``cut_seed`` chooses."""
    import random

    runs = Problem.of(graph, Topology.preset("homogeneous-1"), case.job).runs
    count = len(case.devices)
    inner = sorted(random.Random(case.cut_seed).sample([run.start for run in runs[1:]], count - 1))
    stages = tuple(
        Stage(
            index=i,
            start=a,
            stop=b,
            device=device,
            recompute=case.recompute,
            replicas=tuple(Replica(device=name, first=r.start, end=r.stop) for name, r in case.replicas.get(i, ())),
            adds=case.adds.get(i),
        )
        for i, (a, b, device) in enumerate(zip([0, *inner], [*inner, len(graph.ops)], case.devices, strict=True))
    )
    plan = Plan(
        graph_hash=graph.hash,
        planner="hand",
        stages=stages,
        links=tuple(case.links),
        schedule=case.schedule,
        micro_batch_sizes=case.job.micro_batch_sizes,
    )
    if case.job.sync.strategy == "exact":
        return plan
    names = plan.devices
    topology = Topology.preset(f"homogeneous-{len(names)}")
    topology = topology.rename(dict(zip(topology.names, names, strict=True)))
    plan = with_sync(plan, graph, cut(graph, plan.bounds), topology, case.job, CostTables(graph).table("cpu"))
    assert plan.sync is not None
    return replace(plan, sync=replace(plan.sync, local_steps=case.local_steps)) if case.local_steps else plan


@dataclass(kw_only=True)
class Ran:
    """``events``: what the hooks were told, in order, as (kind, step). ``reports``: the leader's."""

    plan: Plan
    reports: list[StepReport] = field(default_factory=list)
    evaluations: dict[int, Mapping[str, float]] = field(default_factory=dict)
    states: Mapping[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    #: device -> the states that it holds at the end
    held: dict[str, dict[str, Array]] = field(default_factory=dict)
    store: RunStore | None = None
    #: (step, worker, of whom) -> what the worker has of another one's share of a checkpoint
    copies: dict[tuple[int, str, str], Mapping[str, Array]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: the names of what the trace holds
    spans: set[str] = field(default_factory=set)
    #: the exchanges among it
    exchanges: list[Span] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [report.loss for report in self.reports if report.loss is not None]

    @property
    def micro_losses(self) -> list[tuple[float, ...]]:
        return [report.losses for report in self.reports]


def run_threads(case: Case) -> Ran:
    """Run ``case`` on as many workers as its devices are."""
    graphs = case.graphs()
    graph = graphs[max(graphs)]
    module = case.make()
    evaluation = case.captured(0, "eval") if case.evaluation else None
    plan = hand_plan(case, graph)
    bundle = Bundle(run="run", job=case.job, graphs=graphs, eval_graph=evaluation)
    ran = Ran(plan=plan, store=None if case.root is None else RunStore(case.root))
    first = committed = 0
    if case.resume is not None:
        assert ran.store is not None
        adopted = ran.store.adopt(case.resume, bundle)
        first, committed = adopted.step, adopted.ledger["steps"]
    setups = {
        device: RunSetup(
            run="run",
            device=device,
            job=case.job,
            plan=plan,
            graphs=graphs,
            eval_graph=evaluation,
            first_step=first,
            committed=committed,
        )
        for device in plan.devices
    }
    order = dict(graph.meta).get("inputs", "").split(",")
    pieces = next(iter(setups.values())).subgraphs
    shared = SharedBatches(lambda s, m: batch_arrays(case.batches(s, m), order), sum(1 for piece in pieces if piece.placeholders))
    states = module_states(module, graph)
    hooks = {device: Hooks(case, bundle, plan, device, shared, states, ran) for device in setups}
    run = LocalRun(setups, hooks, case.engine or get_engine("torch"), MemoryHub().endpoint, case.job.threads, keep_gradients=True)
    run.run()
    ran.states = run.states()
    for device, executor in run.executors.items():
        ran.gradients |= executor.gradients
        bases = executor.stages.bases.values()
        ran.held[device] = {name: value for base in bases for name, value in base.states().items()}
    return ran


class Hooks:
    """A worker's surroundings; checkpoints go to the case's folder, as a broker would keep them."""

    def __init__(
        self,
        case: Case,
        bundle: Bundle,
        plan: Plan,
        device: str,
        shared: SharedBatches,
        states: Mapping[str, Array],
        ran: Ran,
    ) -> None:
        self._case, self._bundle, self._plan, self._device = case, bundle, plan, device
        self._shared, self._states, self._ran = shared, states, ran
        self._saved = case.resume is not None
        self._order = dict(bundle.graph.meta).get("inputs", "").split(",")
        self._asked = 0

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        if phase is Phase.TRAIN:
            return self._shared.get(step, micro_batch, names)
        arrays = batch_arrays((self._case.batch or random_batches(self._case.job.micro_batch_sizes))(-2, 0), self._order)
        return {name: arrays[name] for name in names}

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        if self._saved:
            assert self._ran.store is not None
            return dict(self._ran.store.checkpoint_states(names, optimizer=False))
        return {name: self._states[name] for name in names if name in self._states}

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        if not self._saved:
            return {}
        assert self._ran.store is not None
        wanted = wanted_by(self._plan, self._device)
        return dict(self._ran.store.checkpoint_states(parameters, optimizer=True, wanted=wanted))

    def stop_requested(self) -> bool:
        self._asked += 1
        return self._case.stop_after is not None and self._asked >= self._case.stop_after

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        return False

    def leave_requested(self) -> bool:
        return self._case.leave_after is not None and self._asked >= self._case.leave_after

    def save_requested(self) -> bool:
        return False

    def on_step(self, report: StepReport) -> None:
        if report.loss is not None:
            self._ran.reports.append(report)
            self._ran.reports.sort(
                key=lambda told: told.step
            )  # a step is told of when all of it was sent: a later one may be first

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        store = self._ran.store
        if store is None:
            return
        from farflung.checkpoint import encode_shard

        with self._ran.lock:  # as a broker's
            store.add_shard(step, self._device, encode_shard(pack(states, optimizer)), committed)
            if store.complete(step, self._bundle, self._plan):
                self._ran.kept.append(step)
        self._saved = True

    def on_copy(self, step: int, device: str, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        self._ran.copies[step, self._device, device] = pack(states, optimizer)

    def on_copied(self, step: int, hashes: Mapping[str, str]) -> None:
        return

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        self._ran.evaluations[step] = dict(outputs)

    def on_text(self, tokens: Sequence[int]) -> None:
        return

    def on_note(self, text: str, *, detail: bool = False) -> None:
        self._ran.notes.append(text)

    def on_helper_gone(self, text: str) -> None:
        raise AssertionError(text)

    def on_trace(self, spans: Sequence[Span], lost: int) -> None:
        self._ran.spans |= {span.name for span in spans}
        self._ran.exchanges += [span for span in spans if span.what is SpanKind.EXCHANGE]


def plainly(case: Case, module: nn.Module | None = None) -> PlainResult:
    """The same training as a plain PyTorch loop."""
    job = case.job
    settings = PlainSettings(
        optimizer=job.optimizer,
        seed=job.seed,
        weights=[job.weight(index) for index in range(job.micro_batches)],
        rates=lambda step: rates(job, step),
        precision=job.precision,
        loss_scale=job.loss_scale,
        virtual_ends=job.virtual_ends if job.virtual_replicas is not None else (),
    )
    target = module if module is not None else copy.deepcopy(case.make())
    return plain_loop(target, case.batches, steps=job.steps, micro_batches=job.micro_batches, settings=settings)


def differing(truth: Mapping[str, Array], found: Mapping[str, Array]) -> list[str]:
    """Names that only one has, or whose bits differ."""
    names = [name for name in truth if name not in found or truth[name].tobytes() != found[name].tobytes()]
    return names + [name for name in found if name not in truth]


def other(case: Case, **changes: Any) -> Case:
    """``case`` with another setting."""
    return replace(case, **changes)


def newest(ran: Ran) -> CheckpointReader:
    """The newest checkpoint of a run that kept some."""
    assert ran.store is not None
    return CheckpointReader.from_folder(ran.store.checkpoints.folder)


#: A job's checkpoints for ``assert_goes_on`` after any step.
EVERY_STEP = {"every": 1, "at_end": False, "keep": 99}


def assert_goes_on(case: Case, at: int, folder: Path) -> None:
    """Resumed from its checkpoint after ``at`` steps, the run has the losses and states that it has without a pause."""
    whole = run_threads(other(case, root=folder / "one"))
    assert whole.store is not None
    again = run_threads(other(case, root=folder / "two", resume=whole.store.checkpoints.path(at)))
    assert again.losses == whole.losses[at:]
    assert newest(again).manifest.ledger == newest(whole).manifest.ledger
    for device, held in whole.held.items():
        assert differing(held, again.held[device]) == [], device
