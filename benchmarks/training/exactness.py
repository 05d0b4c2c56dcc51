"""``exactness``: is what the workers compute, bit for bit, what a plain PyTorch loop computes?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.inprocess import PlannedRun, run_planned
from benchmarks.harness.models import FAMILIES, Family, family
from benchmarks.harness.text_model import made_up_text
from farflung.api import capture
from farflung.chaos.local_cluster import LocalCluster
from farflung.cluster import Topology
from farflung.data import Loader, open_source
from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.graph.ir import Graph, StateKind
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.plan.model import Plan
from farflung.planners import get_planner
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from farflung.units import FlopsPerSecond

__all__ = ["Exactness", "ExactnessSettings", "compare", "differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactnessSettings(Settings):
    """``cuts``: how many random partitions for each number of workers. ``grids``: replicas x stages, on devices of unequal speed
    (models with batch norm take none). ``processes``: also over TLS, for one model."""

    models: tuple[str, ...] = FAMILIES
    workers: tuple[int, ...] = (1, 2, 3, 5)
    cuts: int = 3
    grids: tuple[str, ...] = ("2x2", "3x1", "2x3")
    steps: int = 3
    micro_batches: int = 3
    optimizer: str = "adamw"
    processes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    family: Family
    graph: Graph
    states: Mapping[str, Array]
    truth: PlainResult
    job: JobSpec


class Exactness:
    """Losses, last gradients and all weights, for every partition asked for."""

    name = "exactness"
    summary = "losses, gradients and weights against a plain PyTorch loop, bit for bit"

    def settings(self, quick: bool) -> ExactnessSettings:
        """Quick: tiny models, fewer partitions, no processes."""
        if quick:
            return ExactnessSettings(quick=True, workers=(1, 3), cuts=1, grids=("2x1",), steps=2, processes=False)
        return ExactnessSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Compare; every partition of every model is a run of its own.

        Raises:
            FarflungError: a model can't be captured, or a run fails.
        """
        import torch

        assert isinstance(settings, ExactnessSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            runs = list(self._runs(settings, say))
        finally:
            torch.set_num_threads(before)
        rows = [_row(model, [run for run in runs if run["model"] == model]) for model in dict.fromkeys(r["model"] for r in runs)]
        equal = sum(run["equal"] for run in runs)
        first = next((run for run in runs if not run["equal"]), None)
        check = Check(
            name="bit-equal runs",
            target="all",
            measured=f"{equal} of {len(runs)}",
            passed=equal == len(runs),
            note="" if first is None else f"first difference: {_where(first)}: {first['first_difference']}",
        )
        columns = ("model", "runs", "bit-equal", "tensors compared", "largest difference")
        figures = {"runs": runs, "equal": equal, "total": len(runs)}
        return Report(figures=figures, columns=columns, rows=rows, checks=(check,))

    def _runs(self, settings: ExactnessSettings, say: Say) -> Iterator[dict[str, Any]]:
        for name in settings.models:
            say(f"{name}: capture and plain loop")
            subject = _subject(name, settings)
            seen: set[tuple[tuple[int, int], ...]] = set()
            for planner, workers, plan in _plans(subject, settings):
                say(f"{name}: {planner}, {workers} workers")
                result = run_planned(_given(subject, plan), keep_gradients=True)
                new = plan.bounds not in seen or plan.replicated
                seen.add(plan.bounds)
                found = compare(subject.truth, result.micro_losses, result.gradients, result.states)
                yield _entry(name, planner, workers, len(plan.stages), new, found)
            say(f"{name}: farflung.train")
            yield _train(subject, settings)
        if settings.processes:
            say("gpt2: broker and workers as processes, over TLS")
            yield from _over_tls(settings)


def differences(truth: Mapping[str, Array], found: Mapping[str, Array]) -> tuple[int, float, str]:
    """(tensors that differ, largest difference, the first of them by name) over the names of ``found``; compares bits."""
    count, largest, first = 0, 0.0, ""
    for name, value in found.items():
        wanted = truth.get(name)
        if wanted is not None and wanted.shape == value.shape and wanted.tobytes() == np.ascontiguousarray(value).tobytes():
            continue
        count += 1
        first = first or name
        if wanted is not None and wanted.shape == value.shape:
            largest = max(largest, float(np.max(np.abs(wanted.astype(np.float64) - value.astype(np.float64)))))
        else:
            largest = float("inf")
    return count, largest, first


def _subject(name: str, settings: ExactnessSettings) -> _Subject:
    from farflung.frontends.torch.ambient import module_states

    model = family(name, quick=settings.quick)
    module = model.make()
    graph = capture(module, model.batch(0, 0), name=name)
    states = module_states(module, graph)
    optimizer = OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-2})
    truth = plain_loop(
        module,
        model.batch,
        steps=settings.steps,
        micro_batches=settings.micro_batches,
        settings=PlainSettings(optimizer=optimizer, seed=settings.seed),
    )
    job = JobSpec(
        name=name,
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(1,) * settings.micro_batches,
        weighting="equal",
        threads=settings.threads,
        optimizer=optimizer,
    )
    return _Subject(family=model, graph=graph, states=states, truth=truth, job=job)


def _plans(subject: _Subject, settings: ExactnessSettings) -> Iterator[tuple[str, int, Plan]]:
    for workers in settings.workers:
        topology = Topology.preset(f"homogeneous-{workers}")
        names = ["equal_number"] if workers == 1 else ["equal_number", "equal_compute", *["random"] * settings.cuts]
        for index, planner in enumerate(names):
            # The seed of a plan decides the cuts; the run keeps the job's own.
            job = subject.job.model_copy(update={"seed": settings.seed + 1000 * workers + index})
            yield planner, workers, get_planner(planner).plan(subject.graph, topology, job=job)
    for grid in () if subject.graph.state_updates else settings.grids:
        replicas, _, stages = grid.partition("x")
        devices = int(replicas) * int(stages)
        topology = _unequal(Topology.preset(f"homogeneous-{devices}"))
        plan_spec = subject.job.plan.model_copy(update={"replicas": int(replicas)})
        job = subject.job.model_copy(update={"plan": plan_spec})
        yield f"equal_number {grid}", devices, get_planner("equal_number").plan(subject.graph, topology, job=job)


def _unequal(topology: Topology) -> Topology:
    """The same devices, each faster than the one before."""
    factors = [1.0 + index / 2 for index in range(len(topology))]
    faster = [replace(d, speed=FlopsPerSecond(d.speed * x)) for d, x in zip(topology.devices, factors, strict=True)]
    return topology.with_devices(faster)


def _given(subject: _Subject, plan: Plan) -> PlannedRun:
    from farflung.frontends.torch.ambient import batch_arrays

    order = dict(subject.graph.meta).get("inputs", "").split(",")
    return PlannedRun(
        graph=subject.graph,
        plan=plan,
        job=subject.job,
        states=subject.states,
        batches=lambda step, index: batch_arrays(subject.family.batch(step, index), order),
    )


def compare(
    truth: PlainResult,
    losses: Sequence[Sequence[float]],
    gradients: Sequence[Mapping[str, Array]],
    states: Sequence[Mapping[str, Array]],
) -> dict[str, Any]:
    """Every worker's copies against the truth, and that together they hold everything.

    ``losses``: of each step those of its micro-batches, or one, their plain mean.
    """
    problems: list[str] = []
    largest = 0.0
    for step, (wanted, found) in enumerate(zip(truth.micro_losses, losses, strict=True)):
        expected = wanted if len(found) > 1 else (sum(wanted) / len(wanted),)
        if expected != tuple(found):
            largest = max(largest, *(abs(a - b) for a, b in zip(expected, found, strict=True)))
            problems.append(f"loss of step {step}")
    tensors = len(losses)
    for what, tensors_wanted, copies in (("gradient", truth.gradients, gradients), ("state", truth.states, states)):
        for copy in copies:
            count, difference, first = differences(tensors_wanted, copy)
            tensors += len(copy)
            largest = max(largest, difference)
            if count:
                problems.append(f"{what} {first} ({count} of {len(copy)})")
        missing = set(tensors_wanted) - {name for copy in copies for name in copy} if copies else set()
        if missing:
            problems.append(f"{what} {min(missing)} is missing")
    return {"equal": not problems, "tensors": tensors, "largest": largest, "first_difference": "; ".join(problems[:3])}


def _entry(model: str, planner: str, workers: int, stages: int, new: bool, found: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "planner": planner, "workers": workers, "stages": stages, "new_partition": new} | found


def _row(model: str, runs: Sequence[Mapping[str, Any]]) -> list[object]:
    equal = sum(run["equal"] for run in runs)
    return [model, len(runs), equal, sum(run["tensors"] for run in runs), max(run["largest"] for run in runs)]


def _where(run: Mapping[str, Any]) -> str:
    return f"{run['model']}, {run['planner']}, {run['workers']} workers"


def _train(subject: _Subject, settings: ExactnessSettings) -> dict[str, Any]:
    """The public call on a module, without a plan given."""
    from farflung.api import train

    result = train(
        subject.family.make(),
        subject.family.batch,
        steps=settings.steps,
        micro_batches=settings.micro_batches,
        optimizer=subject.job.optimizer,
        workers=3,
        seed=settings.seed,
    )
    found = compare(subject.truth, [(loss,) for loss in result.losses], [], [result.states])
    return _entry(subject.family.name, "train()", len(result.plan.devices), len(result.plan.stages), False, found)


def _over_tls(settings: ExactnessSettings) -> Iterator[dict[str, Any]]:
    for workers in (2, 3):
        with tempfile.TemporaryDirectory(prefix="farflung-bench-") as folder:
            stages, truth, losses, states = _compare_processes(Path(folder), workers, settings)
        yield _entry(
            "gpt2 over TLS", "equal_compute", workers, stages, True, compare(truth, [(loss,) for loss in losses], [], [states])
        )


#: Rows of a micro-batch that real processes train on.
_PROCESS_ROWS = 2


def _compare_processes(
    folder: Path, workers: int, settings: ExactnessSettings
) -> tuple[int, PlainResult, tuple[float, ...], dict[str, Array]]:
    """Train GPT-2 on text from ``folder``: (number of stages, the plain loop, losses, states of the checkpoint).

    Raises:
        FarflungError: a process ends early, or the run fails.
    """
    job = _processes_job(folder, settings)
    bundle = bundle_of(job, base=folder)
    with LocalCluster(folder / "cluster", [f"worker-{i}" for i in range(workers)], data=folder) as cluster:
        finished = cluster.run(bundle)
    losses = tuple(step.loss for step in finished.steps)
    return len(finished.plan.stages), _plain_loop(bundle, folder, settings), losses, finished.states()


def _processes_job(folder: Path, settings: ExactnessSettings) -> JobSpec:
    model = family("gpt2", quick=settings.quick)
    sequence = int(model.args["sequence"])
    return JobSpec(
        name="exactness",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(_PROCESS_ROWS,) * settings.micro_batches,
        weighting="equal",
        threads=settings.threads,
        model=ModelSpec(recipe=model.recipe, args={**model.args, "vocab_size": 256}),
        data=made_up_text(folder, sequence, samples=40),
        optimizer=OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-2}),
        plan=PlanSpec(planner="equal_compute"),
    )


def _plain_loop(bundle: Bundle, folder: Path, settings: ExactnessSettings) -> PlainResult:
    """The plain loop on the same files, from the same initial weights."""
    import torch

    from farflung.frontends.recipes import load_recipe

    job, graph = bundle.job, bundle.graph
    assert job.model is not None
    module = load_recipe(job.model.recipe, job.model.args).train.factory().train()
    names = [state.name for state in graph.states if state.kind is StateKind.PARAMETER]
    first = get_engine("torch").initial_states(graph, job.seed, names)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(first[name]))
    order = dict(graph.meta)["inputs"].split(",")
    placeholders = {op.name: op.outputs[0] for op in graph.placeholders}
    source = open_source(job.data, folder)
    loader = Loader(job.data, source, {n: placeholders[n] for n in order}, job.micro_batch_sizes, job.seed)

    def batch(step: int, micro_batch: int) -> tuple[torch.Tensor, ...]:
        arrays = loader.batch(step, micro_batch)
        return tuple(torch.from_numpy(arrays[name]) for name in order)

    return plain_loop(
        module,
        batch,
        steps=job.steps,
        micro_batches=job.micro_batches,
        settings=PlainSettings(optimizer=job.optimizer, seed=job.seed),
    )
