"""A stage whose optimizer states are on a disk gets a file, once; a worker without a disk says what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.engines.base import EngineSettings
from farflung.engines.state_file import DiskSpace
from farflung.errors import DiskFull, InputError
from farflung.graph.cut import cut
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.optim import file_bytes
from farflung.plan import Plan, Stage
from farflung.step.run_setup import RunSetup
from farflung.step.stages.stage_runners import open_stage
from tests.support.plans.chains import chain


class Opened:
    """An engine that keeps the settings of the runners that it opens."""

    def __init__(self) -> None:
        self.settings: list[EngineSettings] = []

    def open(self, subgraph: Any, settings: EngineSettings, share: object = None) -> object:
        self.settings.append(settings)
        return self


def setup() -> RunSetup:
    graph = chain([64, 64, 64])
    stage = Stage(index=0, start=0, stop=len(graph.ops), device="a", offload="optimizer")
    plan = Plan(graph_hash=graph.hash, planner="equal_number", stages=(stage,), micro_batch_sizes=(4, 2))
    job = JobSpec(micro_batch_sizes=(4, 2), optimizer=OptimizerSpec(name="adamw"))
    return RunSetup(run="run", device="a", job=job, plan=plan, graphs={4: graph, 2: graph})


def opened(given: RunSetup) -> list[EngineSettings]:
    engine: Any = Opened()
    (piece,) = cut(given.graph, given.plan.bounds)
    open_stage(engine, "cpu", given, 0, {4: piece, 2: piece})
    settings: list[EngineSettings] = engine.settings
    return settings


def test_the_runner_that_has_the_optimizer_gets_the_file(tmp_path: Path) -> None:
    given = replace(setup(), disk=DiskSpace(tmp_path, 1_000_000))
    first, second = opened(given)
    assert first.offload is not None
    assert first.offload.nbytes == file_bytes(given.job.optimizer, given.graph, given.subgraphs[0].states)
    assert second.offload is None


def test_a_stage_that_divides_its_parameters_knows_where_parts_of_the_sum_end() -> None:
    given = setup()
    stage = replace(given.plan.stages[0], offload="none", shard="parameters")
    (first, second) = opened(replace(given, plan=replace(given.plan, stages=(stage,))))
    assert (first.sharded, first.part_ends, second.sharded) == (True, (), True)
    job = given.job.model_copy(update={"micro_batch_sizes": (4, 4, 2, 2), "virtual_replicas": 2})
    plan = replace(given.plan, stages=(stage,), micro_batch_sizes=job.micro_batch_sizes)
    assert opened(replace(given, plan=plan, job=job))[0].part_ends == (2, 4)


def test_a_worker_without_a_disk_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"states of stage 0 on the disk of a, which offers none: join with --disk, or set"):
        opened(setup())
    with pytest.raises(DiskFull, match=r"this worker offers 1 kB of its disk"):
        opened(replace(setup(), disk=DiskSpace(tmp_path, 1000)))
