"""Run folders made by hand: what a broker would have written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.cluster import Device, Topology
from farflung.graph.ir import Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef
from farflung.job import JobSpec, to_json
from farflung.job.spec import CodecSpec, OptimizerSpec
from farflung.plan import CodecChoice, LinkPlan, Plan, Stage
from farflung.telemetry import EvaluationRecord, RunFolder, RunResult, StepRecord
from farflung.units import Bytes, FlopsPerSecond

MakeRun = Callable[..., Path]


def graph() -> Graph:
    """x -> linear -> linear -> loss, two parameters."""
    spec = TensorSpec(dtype="float32", shape=(4, 8))
    weight = TensorSpec(dtype="float32", shape=(8, 8))
    linear = "aten.linear.default"
    return Graph(
        name="tiny",
        ops=(
            Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(spec,)),
            Op(
                name="a",
                kind=OpKind.PARAMETRIC,
                target=linear,
                args=(ValueRef("x"), StateRef("a.w")),
                outputs=(spec,),
                module="a",
            ),
            Op(
                name="b",
                kind=OpKind.PARAMETRIC,
                target=linear,
                args=(ValueRef("a"), StateRef("b.w")),
                outputs=(spec,),
                module="b",
            ),
            Op(
                name="loss",
                kind=OpKind.LOSS,
                target="aten.mean.default",
                args=(ValueRef("b"),),
                outputs=(TensorSpec(dtype="float32", shape=()),),
            ),
        ),
        states=tuple(State(name=f"{n}.w", kind=StateKind.PARAMETER, spec=weight, trainable=True) for n in "ab"),
        outputs=(("loss", ValueRef("loss")),),
    )


def plan() -> Plan:
    codec = CodecChoice(name="topk", params=(("ratio", 100.0),))
    return Plan(
        graph_hash="0" * 64,
        planner="op_fence",
        stages=(
            Stage(index=0, start=0, stop=2, device="laptop"),
            Stage(index=1, start=2, stop=4, device="office", recompute=True),
        ),
        links=(LinkPlan(source=0, target=1, activations=codec, gradients=codec),),
        micro_batch_sizes=(4, 4, 2),
    )


def topology() -> Topology:
    devices = tuple(
        Device(name=name, memory=Bytes(8e9), speed=FlopsPerSecond(1e11), region=region)
        for name, region in (("laptop", "home"), ("office", "town"))
    )
    return Topology(devices=devices, alpha=[[0, 0.02], [0.03, 0]], beta=[[1, 1e6], [2e6, 1]])  # type: ignore[arg-type]


def records(steps: int, seconds: float, nbytes: int) -> list[StepRecord]:
    return [
        StepRecord(
            step=i,
            loss=2.0 + 2.0 * math.exp(-i / 20) + 0.05 * math.sin(i * 1.7),
            seconds=seconds * (1.0 + 0.1 * math.sin(i)),
            elapsed=seconds * (i + 1),
            samples=10,
            tokens=1280,
            learning_rate=0.1,
            predicted_seconds=seconds * 0.9,
            link_bytes={(0, 1): nbytes, (1, 0): nbytes // 2},
            dense_bytes={(0, 1): 100_000, (1, 0): 100_000},
            busy_seconds={0: seconds * 0.3, 1: seconds * 0.5},
        )
        for i in range(steps)
    ]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, steps=, seconds=, nbytes=, without=()) writes a run folder and returns it."""

    def make(
        name: str = "run",
        *,
        steps: int = 60,
        seconds: float = 0.5,
        nbytes: int = 2_000,
        without: tuple[str, ...] = (),
        job_name: str = "tiny",
        sample: str = "",
    ) -> Path:
        folder = RunFolder(tmp_path / name)
        folder.root.mkdir()
        job = JobSpec(
            name=job_name,
            steps=60,
            micro_batch_sizes=(4, 4, 2),
            optimizer=OptimizerSpec(name="adamw", lr=0.1),
            codec=CodecSpec(name="adatopk", ratio=100.0),
        )
        folder.job.write_text(to_json(job))
        folder.plan.write_text(plan().to_json())
        folder.graph.write_text(graph().to_json())
        folder.topology.write_text(topology().to_json())
        folder.metrics.write_text("")
        for record in records(steps, seconds, nbytes):
            folder.append(record)
            if record.step % 20 == 19:
                folder.append(
                    EvaluationRecord(step=record.step + 1, elapsed=record.elapsed, loss=record.loss + 0.1, perplexity=9.5)
                )
        folder.result.write_text(
            RunResult(status="finished", steps=steps, seconds=seconds * steps, checkpoint="ckpt/60", sample=sample).to_json()
        )
        for gone in without:
            (folder.root / gone).unlink()
        return folder.root

    return make
