"""Exactness through real processes: broker and workers over TLS against a plain loop over the same files and initializers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.models import family
from benchmarks.harness.text_model import made_up_text
from farflung.chaos.local_cluster import LocalCluster
from farflung.data import Loader, open_source
from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.graph.ir import StateKind
from farflung.job.spec import JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop

if TYPE_CHECKING:
    from benchmarks.training.exactness import ExactnessSettings

__all__ = ["compare_processes"]

_ROWS = 2


def compare_processes(
    folder: Path, workers: int, settings: ExactnessSettings
) -> tuple[int, PlainResult, tuple[float, ...], dict[str, Array]]:
    """Train GPT-2 on text from ``folder``: (number of stages, the plain loop, losses, states of the checkpoint).

    Raises:
        FarflungError: a process ends early, or the run fails.
    """
    job = _job(folder, settings)
    bundle = bundle_of(job, base=folder)
    with LocalCluster(folder / "cluster", [f"worker-{i}" for i in range(workers)], data=folder) as cluster:
        finished = cluster.run(bundle)
    losses = tuple(step.loss for step in finished.steps)
    return len(finished.plan.stages), _plain(bundle, folder, settings), losses, finished.states()


def _job(folder: Path, settings: ExactnessSettings) -> JobSpec:
    model = family("gpt2", quick=settings.quick)
    sequence = int(model.args["sequence"])
    return JobSpec(
        name="exactness",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(_ROWS,) * settings.micro_batches,
        weighting="equal",
        threads=settings.threads,
        model=ModelSpec(recipe=model.recipe, args={**model.args, "vocab_size": 256}),
        data=made_up_text(folder, sequence, samples=40),
        optimizer=OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-2}),
        plan=PlanSpec(planner="equal_compute"),
    )


def _plain(bundle: Bundle, folder: Path, settings: ExactnessSettings) -> PlainResult:
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
