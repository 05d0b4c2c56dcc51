"""``planning``: a 70 B model captured on the meta device and planned for 64 described machines, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.probe import peak_bytes
from farflung.cluster import Topology
from farflung.errors import TrainingError
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.plan import check_memory, check_plan, estimate
from farflung.planners import get_planner

__all__ = ["Planning", "PlanningSettings", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings(Settings):
    """A Llama configuration and a topology preset (or file). Micro-batches are one window of ``sequence`` tokens."""

    layers: int = 80
    width: int = 8192
    inner: int = 28672
    heads: int = 64
    groups: int = 8
    vocabulary: int = 128256
    sequence: int = 512
    micro_batches: int = 8
    topology: str = "regions-64"
    planner: str = "op_fence"


class Planning:
    """Seconds and peak resident memory of capture and plan."""

    name = "planning"
    summary = "capture and plan of a Llama-70B configuration for 64 devices: seconds and memory"

    def settings(self, quick: bool) -> PlanningSettings:
        """Quick: two layers for four devices."""
        if quick:
            return PlanningSettings(
                quick=True,
                layers=2,
                width=64,
                inner=128,
                heads=4,
                groups=2,
                vocabulary=256,
                sequence=32,
                topology="homogeneous-4",
            )
        return PlanningSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure in a fresh process, so that nothing else counts.

        Raises:
            TrainingError: the process failed; the text has its last words.
        """
        assert isinstance(settings, PlanningSettings)
        say(f"capture and plan: {settings.layers} layers, {settings.topology}, {settings.planner}")
        command = [sys.executable, "-m", "benchmarks.planning.planning", json.dumps(asdict(settings))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise TrainingError(f"planning ended with {done.returncode}: {done.stderr[-500:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        total = figures["import_seconds"] + figures["capture_seconds"] + figures["plan_seconds"]
        judged = not settings.quick
        checks = (
            Check(
                name="capture and plan",
                target="under 120 s",
                measured=f"{total:.1f} s",
                passed=total < 120 if judged else None,
                note=f"{figures['cpu_seconds']:.1f} s of processor time",
            ),
            Check(
                name="peak resident memory",
                target="under 2 GB",
                measured=f"{figures['peak_bytes'] / 1e9:.2f} GB",
                passed=figures["peak_bytes"] < 2e9 if judged else None,
            ),
        )
        rows = [(name, figures[name]) for name in figures]
        return Report(figures=figures | {"total_seconds": total}, columns=("figure", "value"), rows=rows, checks=checks)


def measure(settings: PlanningSettings) -> dict[str, Any]:
    """Capture and plan here: seconds of each part, sizes, and this process's peak of resident bytes."""
    begin = time.perf_counter()
    from farflung.frontends.recipes import load_recipe

    args = {
        "num_hidden_layers": settings.layers,
        "hidden_size": settings.width,
        "intermediate_size": settings.inner,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.groups,
        "vocab_size": settings.vocabulary,
        "sequence": settings.sequence,
    }
    recipe = load_recipe("llama", args)
    loaded = time.perf_counter()
    graph = recipe.graph("train", 1)
    captured = time.perf_counter()
    topology = _topology(settings.topology)
    job = JobSpec(
        name="planning",
        micro_batch_sizes=(1,) * settings.micro_batches,
        optimizer=OptimizerSpec(name="adamw"),
    )
    plan = get_planner(settings.planner).plan(graph, topology, job=job)
    pieces = check_plan(plan, graph, topology, job)
    predicted = estimate(graph, plan, topology, job, subgraphs=pieces)
    check_memory(predicted)
    planned = time.perf_counter()
    return {
        "import_seconds": loaded - begin,
        "capture_seconds": captured - loaded,
        "plan_seconds": planned - captured,
        "cpu_seconds": time.process_time(),
        "peak_bytes": peak_bytes(),
        "parameters": sum(state.spec.numel for state in graph.parameters),
        "operators": len(graph.ops),
        "devices": len(topology),
        "stages": len(plan.stages),
        "devices_used": len(plan.devices),
        "stages_recomputing": sum(stage.recompute for stage in plan.stages),
        "graph_json_bytes": len(graph.to_json()),
        "predicted_step_seconds": predicted.step_seconds,
        "bound_by": predicted.bound_by,
    }


def _topology(text: str) -> Topology:
    return Topology.from_toml(text) if text.endswith(".toml") else Topology.preset(text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(PlanningSettings(**json.loads(sys.argv[1])))) + "\n")
