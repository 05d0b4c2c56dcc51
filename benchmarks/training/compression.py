"""``compression``: how much shorter a step gets on slow links, and how near it comes to what computing alone takes.

Four worker processes in two emulated regions train a byte-level GPT. Runs take turns: dense, AdaTopK, and dense without the
emulated links, which is what computing (and sending inside one machine) alone takes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.clusters import bundle_of
from farflung.chaos.local_cluster import Finished, LocalCluster
from farflung.cluster import Topology
from farflung.ids import new_id
from farflung.job.spec import CheckpointSpec, CodecSpec, DataSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle

__all__ = ["Compression", "CompressionSettings", "gpt_job", "with_codec"]

_SHORTER = 5.0
_OF_COMPUTE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings(Settings):
    """A GPT of ``layers`` and ``width`` on links of ``topology``; ``rounds`` times each run of ``steps`` (less ``warm_up``)."""

    layers: int = 2
    width: int = 256
    heads: int = 4
    sequence: int = 128
    rows: int = 8
    micro_batches: int = 4
    steps: int = 8
    warm_up: int = bounded(2)
    rounds: int = 2
    ratio: float = 100.0
    topology: str = "local4-two-regions"
    planner: str = "equal_number"


class Compression:
    """Median step time: dense, AdaTopK, and without the slow links."""

    name = "compression"
    summary = "step time of AdaTopK against dense, four workers, 8 Mbit/s between two regions"

    def settings(self, quick: bool) -> CompressionSettings:
        """Quick: one round of three small steps."""
        if quick:
            return CompressionSettings(quick=True, width=64, sequence=32, rows=2, micro_batches=2, steps=3, warm_up=1, rounds=1)
        return CompressionSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Start processes and measure.

        Raises:
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, CompressionSettings)
        topology = Topology.preset(settings.topology)
        seconds: dict[str, list[list[float]]] = {"dense": [], "adatopk": [], "compute only": []}
        last: dict[str, Finished] = {}
        with tempfile.TemporaryDirectory(prefix="farflung-bench-") as name:
            folder = Path(name)
            base = bundle_of(_job(settings), base=folder, topology=topology, emulate=True)
            parameters = sum(state.spec.numel for state in base.graph.parameters)
            with LocalCluster(folder / "cluster", topology.names, data=folder) as cluster:
                for turn in range(settings.rounds):
                    for kind, found in seconds.items():
                        last[kind] = cluster.run(_variant(base, kind, settings))
                        times = [step.seconds for step in last[kind].steps[settings.warm_up :]]
                        found.append(times)
                        say(f"round {turn}: {kind}: {median(times):.2f} s per step")
        return _report(settings, seconds, last, parameters)


def _report(
    settings: CompressionSettings, seconds: Mapping[str, Sequence[Sequence[float]]], last: Mapping[str, Finished], parameters: int
) -> Report:
    typical = {kind: median(time for times in rounds for time in times) for kind, rounds in seconds.items()}
    turns = [{kind: median(rounds[turn]) for kind, rounds in seconds.items()} for turn in range(settings.rounds)]
    shorter = median(turn["dense"] / turn["adatopk"] for turn in turns)
    allowed = median(turn["dense"] / turn["compute only"] for turn in turns)
    reach = median(turn["compute only"] / turn["adatopk"] for turn in turns)
    check = Check(
        name="AdaTopK against dense",
        target=f"{_SHORTER:g} x shorter, or {_OF_COMPUTE} of what computing alone allows",
        measured=f"{shorter:.2f} x shorter; computing alone would be {allowed:.2f} x; reached {reach:.2f} of it",
        passed=None if settings.quick else shorter >= _SHORTER or reach >= _OF_COMPUTE,
    )
    sent = {kind: sum(step.total_bytes for step in run.steps) / len(run.steps) for kind, run in last.items()}
    rows = [(kind, typical[kind], typical["dense"] / typical[kind], sent[kind] / 1e6) for kind in typical]
    figures: dict[str, Any] = {
        "parameters": parameters,
        "seconds_per_step": typical,
        "rounds": {kind: [list(times) for times in rounds] for kind, rounds in seconds.items()},
        "times_shorter": shorter,
        "computing_alone_allows": allowed,
        "reached_of_computing_alone": reach,
        "bytes_per_step": sent,
        "predicted_seconds": {kind: run.steps[-1].predicted_seconds for kind, run in last.items()},
        "busy_seconds": {kind: dict(run.steps[-1].busy_seconds) for kind, run in last.items()},
        "codecs": {kind: [f"{x.source}->{x.target}: {x.activations}" for x in run.plan.links] for kind, run in last.items()},
    }
    return Report(figures=figures, columns=("run", "s/step", "x shorter", "MB/step"), rows=rows, checks=(check,))


def gpt_job(args: Mapping[str, int], rows: Sequence[int], data: DataSpec) -> JobSpec:
    """A byte-level GPT on text."""
    return JobSpec(
        name="bench-gpt",
        micro_batch_sizes=tuple(rows),
        model=ModelSpec(recipe="gpt", args=dict(args)),
        data=data,
        optimizer=OptimizerSpec(name="adamw", lr=1e-3, clip_norm=1.0),
        checkpoint=CheckpointSpec(at_end=False),
    )


def with_codec(bundle: Bundle, codec: CodecSpec, *, emulate: bool) -> Bundle:
    """The same job under another codec, as a run of its own."""
    job = bundle.job.model_copy(update={"codec": codec})
    return replace(bundle, run=new_id("run"), job=job, emulate=emulate)


def _job(settings: CompressionSettings) -> JobSpec:
    args = {"layers": settings.layers, "width": settings.width, "heads": settings.heads, "sequence": settings.sequence, "tied": 0}
    data = DataSpec(kind="text", path="{stdlib}", glob="*.py", sequence=settings.sequence)
    job = gpt_job(args, (settings.rows,) * settings.micro_batches, data)
    return job.model_copy(
        update={
            "steps": settings.steps,
            "threads": settings.threads,
            "seed": settings.seed,
            "plan": PlanSpec(planner=settings.planner),
        }
    )


def _variant(base: Bundle, kind: str, settings: CompressionSettings) -> Bundle:
    codec = CodecSpec(name="adatopk", ratio=settings.ratio) if kind == "adatopk" else CodecSpec()
    return with_codec(base, codec, emulate=kind != "compute only")
