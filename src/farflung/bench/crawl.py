"""``farflung bench crawl``: does a worker stay within the plan's memory while its down-link crawls?

Three workers on an emulated network train a pipeline of three stages; all that reaches the one in the middle comes at ``mbps``.
Those before and after it are soon far ahead, so whatever is not held back piles up, at them or at it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.bench.base import Check, Report, Say, Settings
from farflung.bench.emulated import EmulatedCluster
from farflung.bench.memory import estimate_of, figures
from farflung.bench.processes import bundle_of
from farflung.cluster import Topology
from farflung.job.load import make_job
from farflung.job.spec import JobSpec

__all__ = ["Crawl", "CrawlSettings"]

_DEVICE = '[[device]]\nname = "{0}"\nregion = "{0}"\nmemory = "8 GB"\nspeed = "20 GFLOP/s"\n{1}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlSettings(Settings):
    """A GPT by ``layers`` and ``width``; ``mbps``: Mbit/s of the down-link that crawls."""

    layers: int = 3
    width: int = 768
    heads: int = 12
    sequence: int = 128
    rows: int = 4
    micro_batches: int = 16
    steps: int = 2
    mbps: float = 8.0


class Crawl:
    """(Peak resident memory - that after imports) / the plan's figure, for every worker."""

    name = "crawl"
    summary = "peak memory of workers against the plan's figure while one down-link crawls (root)"

    def settings(self, quick: bool) -> CrawlSettings:
        """Quick: a small model."""
        return CrawlSettings(quick=True, width=64, heads=2, sequence=32, micro_batches=4, steps=1) if quick else CrawlSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Train on slow links, and read what the workers took.

        Raises:
            FarflungError: a process ends early, or the system does not tell memory.
        """
        assert isinstance(settings, CrawlSettings)
        topology = Topology.from_text(_network(settings))
        job = _job(settings)
        say("capture")
        with tempfile.TemporaryDirectory() as base:
            bundle = bundle_of(job, base=Path(base))
        with EmulatedCluster(topology, probe=True) as cluster:
            say("training")
            finished = cluster.run(bundle)
            predicted = estimate_of(finished, job)
            cluster.end()
            found = [figures(cluster.probe_file(name), predicted, name, 3) for name in finished.plan.devices]
        seconds = [record.seconds for record in finished.steps]
        worst = max(item["ratio"] for item in found)
        check = Check(
            name="peak / plan",
            target="at most 1 on each worker",
            measured=", ".join(f"{item['worker']} {item['ratio']:.2f}" for item in found),
            passed=None if settings.quick else worst <= 1.0,
            note="a small model drowns in what a process takes anyway" if settings.quick else "",
        )
        columns = ("worker", "after imports MB", "peak MB", "plan MB", "ratio")
        rows = [(f["worker"], f["after_imports"] / 1e6, f["peak"] / 1e6, f["plan"] / 1e6, f["ratio"]) for f in found]
        body: dict[str, Any] = {"workers": found, "step_seconds": seconds}
        return Report(figures=body, columns=columns, rows=rows, checks=(check,))


def _network(settings: CrawlSettings) -> str:
    devices = [_DEVICE.format(name, f'downlink = "{settings.mbps} Mbit/s"' if name == "middle" else "") for name in _NAMES]
    return 'name = "crawl"\n[default]\nlatency = "10 ms"\nbandwidth = "1 Gbit/s"\n' + "".join(devices)


_NAMES = ("first", "middle", "last")


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
        }
    )
