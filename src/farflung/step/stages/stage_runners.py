"""Opening a stage: the engine's runners for it, one for each size of its micro-batches, over the same states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from farflung.engines.base import Engine, EngineSettings, StageRunner
from farflung.engines.state_file import StateFile
from farflung.errors import InputError
from farflung.graph.cut import SubGraph
from farflung.optim import file_bytes
from farflung.plan.model import Plan
from farflung.schedules import orders_of, splits
from farflung.step.reduction.orders import PartEnd, add_order
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.device_codings import codings_of

__all__ = ["open_stage", "splits_backward"]


def splits_backward(plan: Plan, stage: int) -> bool:
    """Return whether ``stage`` computes the gradients of its parameters apart; a stage that recomputes computes all at once."""
    orders = orders_of(plan.schedule, len(plan.stages), len(plan.micro_batch_sizes))
    return splits(orders[stage]) and not plan.stages[stage].recompute


def open_stage(
    engine: Engine, device: str, setup: RunSetup, stage: int, pieces: Mapping[int, SubGraph], *, scheduled: bool = False
) -> dict[int, StageRunner]:
    """Runners that train ``stage``, by samples of the micro-batch; ``pieces``: its sub-graph by the same.

    ``scheduled``: the plan's schedule runs them, so the backward may be split, and the engine may encode what leaves for links.
    The first one, of the largest micro-batch, owns the states, which are not there yet.

    Raises:
        FarflungError: the engine refuses the graph.
        DiskFull: the disk has no space for the optimizer states, which the plan puts there.
    """
    shard = setup.plan.stages[stage].shard
    settings = EngineSettings(
        device=device,
        seed=setup.job.seed,
        precision=setup.job.precision,
        recompute=setup.plan.stages[stage].recompute,
        split_backward=scheduled and splits_backward(setup.plan, stage),
        optimizer=setup.job.optimizer,
        budget=setup.budget,
        any_order=setup.job.sync.order == "any",
        offload=_state_file(setup, stage),
        sharded=shard == "parameters",
        tensor=shard == "tensor",
        part_ends=_part_ends(setup, stage) if shard == "parameters" else (),
        codings=codings_of(setup, stage, device) if scheduled else (),
    )
    base: StageRunner | None = None
    runners: dict[int, StageRunner] = {}
    for rows in sorted(pieces, reverse=True):
        runners[rows] = engine.open(pieces[rows], settings, share=base)
        base = base or runners[rows]
        settings = replace(settings, offload=None)  # the first one has the optimizer
    return runners


def _part_ends(setup: RunSetup, stage: int) -> tuple[int, ...]:
    """The micro-batches of ``stage`` here before which a part of the sum of gradients ends."""
    order = add_order(setup)
    own = next(replica for replica in setup.plan.replicas_of(stage) if replica.device == setup.device)
    return tuple(index + 1 for index in own.micro_batches if order.ends(stage, index) is not PartEnd.NONE)


def _state_file(setup: RunSetup, stage: int) -> StateFile | None:
    """The file for the optimizer states of ``stage`` (None: they are in memory)."""
    if setup.plan.stages[stage].offload == "none":
        return None
    if setup.disk is None:
        raise InputError(
            f"the plan puts the optimizer states of stage {stage} on the disk of {setup.device}, which offers none: "
            'join with --disk, or set plan.offload = "none"'
        )
    return setup.disk.file(file_bytes(setup.job.optimizer, setup.graph, setup.subgraphs[stage].states))
