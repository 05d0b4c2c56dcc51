"""``simulator``: events per second of the simulator, and the speeds of the codecs that it reckons with."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.cluster import Topology
from farflung.codecs import decode_payload, get_codec
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.planners import get_planner
from farflung.simulator import CODEC_SPEEDS, SimulationSettings, Simulator

__all__ = ["SimulatorBench", "SimulatorSettings"]

_CODECS = {"fp16": {}, "bf16": {}, "int8": {}, "topk": {"ratio": 100.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings(Settings):
    """A chain of ``layers`` linear layers on ``devices`` equal devices, ``micro_batches`` in a step, ``steps`` steps."""

    layers: int = 64
    devices: int = 32
    micro_batches: int = 64
    steps: int = 125
    rounds: int = 3
    codec_bytes: int = 4_000_000


class SimulatorBench:
    """Events per second; seconds for a million."""

    name = "simulator"
    summary = "events per second of the simulator; seconds for a million events; speeds of the codecs"

    def settings(self, quick: bool) -> SimulatorSettings:
        """Quick: a few thousand events."""
        if quick:
            return SimulatorSettings(quick=True, layers=8, devices=4, micro_batches=4, steps=5, rounds=1, codec_bytes=100_000)
        return SimulatorSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, SimulatorSettings)
        graph = _chain(settings.layers)
        job = JobSpec(micro_batch_sizes=(8,) * settings.micro_batches)
        topology = Topology.preset(f"homogeneous-{settings.devices}")
        plan = get_planner("equal_number").plan(graph, topology, job=job)
        simulator = Simulator(graph, topology, job, SimulationSettings(steps=settings.steps))
        runs: list[dict[str, Any]] = []
        for number in range(settings.rounds):
            say(f"simulation {number + 1} of {settings.rounds}")
            begin, cpu = time.perf_counter(), time.process_time()
            found = simulator.run(plan)
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
            runs.append({"events": found.events, "seconds": wall, "cpu_seconds": cpu})
        events = runs[0]["events"]
        million = statistics.median(run["seconds"] / run["events"] for run in runs) * 1e6
        codecs = {name: _codec_speed(name, settings.codec_bytes) for name in _CODECS}
        figures = {"runs": runs, "events": events, "seconds_per_million_events": million, "codec_bytes_per_second": codecs}
        judged = not settings.quick
        check = Check(
            name="a million events",
            target="within 10 s",
            measured=f"{million:.2f} s ({events} events, lowering included)",
            passed=million <= 10.0 if judged else None,
        )
        rows: list[tuple[object, ...]] = [("events", events), ("seconds per million", million)]
        for name, speed in codecs.items():
            used = CODEC_SPEEDS.get(name)
            told = f" (the simulator takes {used.encode / 1e9:g} / {used.decode / 1e9:g})" if used else ""
            rows.append((name, f"encode / decode {speed['encode'] / 1e9:.2f} / {speed['decode'] / 1e9:.2f} GB/s{told}"))
        return Report(figures=figures, columns=("figure", "value"), rows=rows, checks=(check,))


def _chain(layers: int) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (8, 64))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=64, out_features=64)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (8, 64)))
    return builder.build()


def _codec_speed(name: str, nbytes: int) -> dict[str, float]:
    """Dense bytes per second, best of five."""
    codec = get_codec(name, **_CODECS[name])
    array = np.random.default_rng(0).standard_normal(nbytes // 4).astype(np.float32)
    encode, decode = [], []
    for _ in range(5):
        begin = time.perf_counter()
        payload = codec.encode(array)
        middle = time.perf_counter()
        decode_payload(payload)
        encode.append(middle - begin)
        decode.append(time.perf_counter() - middle)
    return {"encode": nbytes / min(encode), "decode": nbytes / min(decode)}
