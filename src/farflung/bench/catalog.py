"""The benchmarks by name."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from farflung.bench.base import Benchmark
from farflung.registry import Registry

__all__ = ["BENCHMARKS"]

#: Benchmarks by name; installed packages add theirs under the entry-point group ``farflung.benchmarks``.
BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "benchmarks")


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"farflung.bench.{module}"), name)()


for _module, _name in {
    "auto": "AutoBench",
    "chain": "ChainBench",
    "changing": "Changing",
    "chaos": "Chaos",
    "codecs": "Codecs",
    "compression": "Compression",
    "crawl": "Crawl",
    "emulator": "Emulator",
    "exactness": "Exactness",
    "fusionllm": "FusionLlm",
    "fuzz": "Fuzz",
    "grid": "Grid",
    "hybrid": "Hybrid",
    "joining": "Joining",
    "kept": "Kept",
    "loss": "Loss",
    "loss_study": "LossStudy",
    "memory": "Memory",
    "overhead": "Overhead",
    "overlap": "Overlap",
    "pipeline": "Pipeline",
    "planning": "Planning",
    "prediction": "Prediction",
    "profile": "Profile",
    "simulator": "SimulatorBench",
    "sync_loss": "SyncLoss",
    "sync_memory": "SyncMemory",
    "sync_network": "SyncNetwork",
    "sync_speeds": "SyncSpeeds",
    "sync_schedule": "SyncSchedule",
    "trace_cost": "TraceCost",
    "transport": "Transport",
    "sync_strategies": "SyncStrategies",
}.items():
    BENCHMARKS.add(_module.replace("_", "-"), partial(_load, _module, _name))
