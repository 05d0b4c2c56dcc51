"""The benchmarks by name."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from benchmarks.harness.base import Benchmark
from farflung.registry import Registry

__all__ = ["BENCHMARKS"]

#: Benchmarks by name; installed packages add theirs under the entry-point group ``farflung.benchmarks``.
BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "benchmarks")


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"benchmarks.{module}"), name)()


for _module, _name in {
    "planning.auto": "AutoBench",
    "planning.chain": "ChainBench",
    "network.changing": "Changing",
    "faults.chaos": "Chaos",
    "training.codecs": "Codecs",
    "training.compression": "Compression",
    "training.architectures": "Architectures",
    "training.coverage": "Coverage",
    "training.crawl": "Crawl",
    "papers.dreamddp": "DreamDdp",
    "papers.dtfm": "Dtfm",
    "network.emulator": "Emulator",
    "training.engines": "Engines",
    "training.environments": "Environments",
    "training.exactness": "Exactness",
    "papers.fusionllm": "FusionLlm",
    "training.fusionllm_loss": "FusionLlmLoss",
    "papers.hybrid_ps": "HybridPsBench",
    "faults.fuzz": "Fuzz",
    "faults.fuzz_decoders": "FuzzDecoders",
    "faults.fuzz_graphs": "FuzzGraphs",
    "planning.grid": "Grid",
    "faults.hostile": "Hostile",
    "faults.hybrid": "Hybrid",
    "training.isolation": "Isolation",
    "faults.joining": "Joining",
    "faults.kept": "Kept",
    "commands.launchers": "Launchers",
    "training.loss": "Loss",
    "training.loss_study.loss_study": "LossStudy",
    "commands.members": "Members",
    "training.memory": "Memory",
    "network.messages": "Messages",
    "network.nat": "Nat",
    "training.overhead": "Overhead",
    "network.overlap": "Overlap",
    "network.pipeline": "Pipeline",
    "planning.planners": "Planners",
    "planning.planning": "Planning",
    "planning.prediction": "Prediction",
    "network.profile": "Profile",
    "network.replicas": "Replicas",
    "network.serving": "Serving",
    "planning.shared_cores": "SharedCores",
    "planning.simulator": "SimulatorBench",
    "faults.resume": "Resume",
    "faults.silent_connections": "SilentConnections",
    "training.sites": "Sites",
    "training.sync_loss": "SyncLoss",
    "training.sync_memory": "SyncMemory",
    "commands.startup": "Startup",
    "network.sync_network": "SyncNetwork",
    "training.sync_speeds": "SyncSpeeds",
    "planning.sync_schedule": "SyncSchedule",
    "faults.takeover": "Takeover",
    "training.tiers": "Tiers",
    "training.trace_cost": "TraceCost",
    "training.trackers": "Trackers",
    "network.transport": "Transport",
    "training.sync_strategies": "SyncStrategies",
    "faults.verification": "Verification",
    "commands.web": "Web",
}.items():
    BENCHMARKS.add(_module.rpartition(".")[2].replace("_", "-"), partial(_load, _module, _name))
