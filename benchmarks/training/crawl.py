"""``benchmarks crawl``: does a worker stay within the plan's memory while its down-link crawls?

Three workers on an emulated network train a pipeline of three stages, with fast links and then with down-links of ``mbps``: each
could be far ahead of the next one then, so whatever is not held back piles up. What a worker takes that trains next to nothing
is told first: the plan's figure is for stages.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.training.memory import estimate_of, figures
from farflung.cluster import Topology
from farflung.job.load import make_job
from farflung.job.spec import JobSpec

__all__ = ["Crawl", "CrawlSettings"]

_DEVICE = '[[device]]\nname = "{0}"\nregion = "{0}"\nmemory = "8 GB"\nspeed = "20 GFLOP/s"\n{1}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlSettings(Settings):
    """A GPT by ``layers`` and ``width``; ``mbps``: Mbit/s of the down-links that crawl, ``fast``: of the same ones beforehand."""

    layers: int = 3
    width: int = 1536
    heads: int = 12
    sequence: int = 128
    rows: int = 4
    micro_batches: int = 10
    steps: int = 2
    mbps: float = 8.0
    fast: float = 1000.0


class Crawl:
    """(Peak resident memory - that of a worker with a tiny model) / the plan's figure, for every worker."""

    name = "crawl"
    summary = "peak memory of workers against the plan's figure while their down-links crawl (root)"

    def settings(self, quick: bool) -> CrawlSettings:
        """Quick: a small model."""
        return CrawlSettings(quick=True, width=64, heads=2, sequence=32, micro_batches=4, steps=1) if quick else CrawlSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train on fast links and on slow ones, and read what the workers took.

        Raises:
            FarflungError: a process ends early, or the system does not tell memory.
        """
        assert isinstance(settings, CrawlSettings)
        say("a tiny model")
        process = max(
            item["peak"] for item in _trained(replace(settings, width=48, sequence=16, micro_batches=2), settings.fast)[0]
        )
        say("training on fast links")
        before, _ = _trained(settings, settings.fast)
        say("training while all down-links crawl")
        found, seconds = _trained(settings, settings.mbps)
        for item in (*before, *found):
            item["ratio"] = (item["peak"] - process) / item["plan"]
        worst = max(item["ratio"] for item in found)
        check = Check(
            name="(peak - tiny model's) / plan",
            target="at most 1 on each worker",
            measured=", ".join(f"{item['worker']} {item['ratio']:.2f}" for item in found),
            passed=None if settings.quick else worst <= 1.0,
            note="a small model drowns in what a process takes anyway" if settings.quick else "",
        )
        columns = ("worker", "tiny model MB", "peak MB", "peak on fast links MB", "plan MB", "ratio", "ratio on fast links")
        fast = {item["worker"]: item for item in before}
        rows = [
            (
                item["worker"],
                process / 1e6,
                item["peak"] / 1e6,
                fast[item["worker"]]["peak"] / 1e6,
                item["plan"] / 1e6,
                item["ratio"],
                fast[item["worker"]]["ratio"],
            )
            for item in sorted(found, key=lambda item: _NAMES.index(item["worker"]))
        ]
        body: dict[str, Any] = {"process": process, "workers": found, "on_fast_links": before, "step_seconds": seconds}
        return Report(figures=body, columns=columns, rows=rows, checks=(check,))


def _trained(settings: CrawlSettings, mbps: float) -> tuple[list[dict[str, Any]], list[float]]:
    """What the workers took, and the seconds of each step."""
    job = _job(settings)
    with tempfile.TemporaryDirectory() as base:
        bundle = bundle_of(job, base=Path(base))
    with EmulatedCluster(Topology.from_text(_network(mbps)), probe=True) as cluster:
        finished = cluster.run(bundle)
        predicted = estimate_of(finished, job)
        cluster.end()
        found = [figures(cluster.probe_file(name), predicted, name, len(_NAMES)) for name in finished.plan.devices]
    return found, [record.seconds for record in finished.steps]


def _network(mbps: float) -> str:
    devices = [_DEVICE.format(name, f'downlink = "{mbps} Mbit/s"') for name in _NAMES]
    return 'name = "crawl"\n[default]\nlatency = "10 ms"\nbandwidth = "1 Gbit/s"\n' + "".join(devices)


_NAMES = ("one", "two", "three")


def _job(settings: CrawlSettings) -> JobSpec:
    model = {"vocab": 256, "sequence": settings.sequence, "layers": settings.layers, "width": settings.width}
    return make_job(
        {
            "name": "crawl",
            "seed": settings.seed,
            "steps": settings.steps,
            "micro_batch_sizes": [settings.rows] * settings.micro_batches,
            "threads": settings.threads,
            "workers": len(_NAMES),
            "model": {"recipe": "gpt", "args": {**model, "heads": settings.heads}},
            "data": {
                "kind": "text",
                "path": "{stdlib}",
                "glob": "json/*.py",
                "tokenizer": "bytes",
                "sequence": settings.sequence,
            },
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "plan": {"planner": "equal_number"},
            "checkpoint": {"at_end": False, "recover_every": 0},
        }
    )
