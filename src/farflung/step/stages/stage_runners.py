"""Opening a stage: the engine's runners for it, one for each size of its micro-batches, over the same states."""

from __future__ import annotations

from collections.abc import Mapping

from farflung.engines.base import Engine, EngineSettings, StageRunner
from farflung.graph.cut import SubGraph
from farflung.plan.model import Plan
from farflung.schedules import orders_of, splits
from farflung.step.run_setup import RunSetup

__all__ = ["open_stage", "splits_backward"]


def splits_backward(plan: Plan, stage: int) -> bool:
    """Return whether ``stage`` computes the gradients of its parameters apart; a stage that recomputes computes all at once."""
    orders = orders_of(plan.schedule, len(plan.stages), len(plan.micro_batch_sizes))
    return splits(orders[stage]) and not plan.stages[stage].recompute


def open_stage(
    engine: Engine, device: str, setup: RunSetup, stage: int, pieces: Mapping[int, SubGraph], *, split_backward: bool = False
) -> dict[int, StageRunner]:
    """Runners that train ``stage``, by samples of the micro-batch; ``pieces``: its sub-graph by the same.

    The first one, of the largest micro-batch, owns the states, which are not there yet.

    Raises:
        FarflungError: the engine refuses the graph.
    """
    settings = EngineSettings(
        device=device,
        seed=setup.job.seed,
        precision=setup.job.precision,
        recompute=setup.plan.stages[stage].recompute,
        split_backward=split_backward,
        optimizer=setup.job.optimizer,
        budget=setup.budget,
        any_order=setup.job.sync.order == "any",
    )
    base: StageRunner | None = None
    runners: dict[int, StageRunner] = {}
    for rows in sorted(pieces, reverse=True):
        runners[rows] = engine.open(pieces[rows], settings, share=base)
        base = base or runners[rows]
    return runners
