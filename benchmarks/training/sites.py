"""``sites``: steps per second of one site of two ranks over those of FSDP2 on the same two cores, GPT with AdamW.

All run in turn, step by step: FSDP2 (one batch on each rank), a site in the job's order of additions, a site in any order, a site
whose ranks divide the parameters, and one process that computes the two micro-batches one after the other. A step is forward,
backward, exchange and update. The site's weights in the job's order must be those of the one process, bit by bit.

The step times of the sites are compared with the estimate for the speed and the exchanges that were measured before, and the
largest memory of a rank beyond that of an idle one with its part of the estimate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.training.fsdp_peer import FsdpSettings
from farflung.cluster import Device, Topology
from farflung.engines import ComputeDevice, EngineSettings, MicroBatch, StageRunner, get_engine
from farflung.engines.base import Array, DeviceReport, Engine
from farflung.engines.isolated import Zygote
from farflung.engines.site import SiteEngine, SiteRunner
from farflung.frontends.recipes import load_recipe
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, OptimizerSpec, SyncSpec
from farflung.plan import Estimate, Plan, Stage, estimate
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["Sites", "SitesSettings"]

_TARGET = 0.95
#: The median error of predicted step times, and how much more memory than planned a rank may take.
_ERROR, _MEMORY = 0.07, 1.0
_ROOM = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesSettings(Settings):
    """GPT of ``layers`` and ``width``; each rank computes ``rows`` windows of ``sequence`` tokens in each of the ``steps``."""

    ranks: int = bounded(2)
    layers: int = 6
    width: int = 384
    vocabulary: int = 8192
    rows: int = 4
    sequence: int = 128
    steps: int = 12
    warm_up: int = bounded(2)

    @property
    def model(self) -> dict[str, int]:
        """Arguments of the recipe."""
        heads = max(1, self.width // 64)
        own = {"vocab": self.vocabulary, "sequence": self.sequence, "layers": self.layers, "width": self.width, "heads": heads}
        return own | {"tied": 0}


class Sites:
    """Steps per second of a site over those of FSDP2."""

    name = "sites"
    summary = "steps per second of a site of two ranks over FSDP2 on the same cores, GPT 14 M"

    def settings(self, quick: bool) -> SitesSettings:
        """Quick: a tiny model and two steps."""
        if quick:
            return SitesSettings(quick=True, layers=2, width=64, vocabulary=67, rows=2, sequence=16, steps=2, warm_up=1)
        return SitesSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Alternate the steps of all.

        Raises:
            InputError: the ranks can't start.
        """
        assert isinstance(settings, SitesSettings)
        graph = load_recipe("gpt", settings.model).graph("train", settings.rows)
        with ExitStack() as opened:
            zygote = Zygote()
            site = SiteEngine(zygote, [ComputeDevice(name="cpu")] * settings.ranks)
            opened.callback(site.end)
            site.set_threads(settings.threads)
            report = site.measure("cpu")
            locals_ = {}
            for name, kind in _SITES.items():
                before = _leaves(zygote.pid)
                attempt = site.attempt("cpu", _ROOM)
                ranks = [psutil.Process(pid) for pid in _leaves(zygote.pid) - before]
                locals_[name] = _Local(graph, attempt, settings, ranks=ranks, **kind)
            ordered = locals_["site, job's order"]
            single = _Local(graph, get_engine("torch"), settings)
            runs: dict[str, Callable[[int], None]] = {
                "FSDP2": opened.enter_context(_fsdp(settings)),
                **{name: one.step for name, one in locals_.items()},
                "one process": single.step,
            }
            seconds = _alternate(runs, settings, say)
            peaks = {name: one.peak() for name, one in locals_.items()}
            equal = all(
                np.array_equal(a, b)
                for one in (ordered, locals_["site, divided"])
                for a, b in zip(one.states(), single.states(), strict=True)
            )
        planned = {name: _predicted(graph, settings, report, **kind) for name, kind in _SITES.items()}
        errors = {name: abs(found.step_seconds / median(seconds[name]) - 1.0) for name, found in planned.items()}
        memory = {name: peaks[name] / (found.devices[0].memory_bytes / settings.ranks) for name, found in planned.items()}
        for name, found in planned.items():
            say(f"{name}: predicted {found.step_seconds:.4f} s; a rank took {memory[name]:.2f} of its planned memory")
        rates = {name: 1.0 / median(values) for name, values in seconds.items()}
        ratios = {name: median(f / s for f, s in zip(seconds["FSDP2"], values, strict=True)) for name, values in seconds.items()}
        rows = [(name, f"{rates[name]:.2f}", f"{ratios[name]:.3f}") for name in runs]
        checks = [
            Check(
                name=f"{name} / FSDP2",
                target=f"at least {_TARGET}",
                measured=f"{ratios[name]:.3f}",
                passed=None if settings.quick else ratios[name] >= _TARGET,
            )
            for name in ("site, job's order", "site, any order")
        ]
        error, most = median(errors.values()), max(memory.values())
        checks += [
            Check(name="bits", target="equal", measured="equal" if equal else "different", passed=equal),
            Check(
                name="error of predicted steps (median)",
                target=f"at most {_ERROR:.0%}",
                measured=f"{error:.1%}",
                passed=None if settings.quick else error <= _ERROR,
            ),
            Check(
                name="memory of a rank / planned",
                target=f"at most {_MEMORY}",
                measured=f"{most:.2f}",
                passed=None if settings.quick else most <= _MEMORY,
            ),
        ]
        figures = {"steps_per_second": rates, "ratios": ratios, "seconds": seconds, "equal": equal} | {
            "predicted": {name: found.step_seconds for name, found in planned.items()},
            "errors": errors,
            "memory": memory,
            "rank_rate": report.rank_rate,
            "rank_latency": report.rank_latency,
        }
        return Report(figures=figures, columns=("", "steps/s", "ratio"), rows=rows, checks=tuple(checks))


#: Sites, by what differs in their settings.
_SITES: dict[str, dict[str, bool]] = {
    "site, job's order": {},
    "site, any order": {"any_order": True},
    "site, divided": {"divided": True},
}


def _leaves(pid: int) -> set[int]:
    """Processes under ``pid`` that have no children: the ranks of all attempts."""
    return {one.pid for one in psutil.Process(pid).children(recursive=True) if not one.children()}


def _predicted(
    graph: Graph, settings: SitesSettings, report: DeviceReport, *, any_order: bool = False, divided: bool = False
) -> Estimate:
    """The estimate of one stage on a site as it was measured."""
    device = Device(
        name="site",
        memory=Bytes(_ROOM),
        speed=FlopsPerSecond(report.flops_per_second),
        overhead=Seconds(report.launch_seconds),
        convolution=report.convolution,
        ranks=settings.ranks,
        rank_latency=Seconds(report.rank_latency),
        rank_rate=BytesPerSecond(report.rank_rate),
    )
    sizes = (settings.rows,) * settings.ranks
    stage = Stage(index=0, start=0, stop=len(graph.ops), device="site", shard="parameters" if divided else "none")
    schedule = f"1f1b@{settings.ranks}"
    plan = Plan(graph_hash=graph.hash, planner="by hand", stages=(stage,), micro_batch_sizes=sizes, schedule=schedule)
    sync = SyncSpec(order="any" if any_order else "job")
    job = JobSpec(micro_batch_sizes=sizes, optimizer=OptimizerSpec(name="adamw"), sync=sync)
    alone = Topology.from_matrices(np.zeros((1, 1)), np.full((1, 1), np.inf), [device])
    return estimate(graph, plan, alone, job)


def _alternate(runs: dict[str, Callable[[int], None]], settings: SitesSettings, say: Say) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(settings.warm_up + settings.steps):
        for name in runs if step % 2 else reversed(runs):
            begin = time.perf_counter()
            runs[name](step)
            if step >= settings.warm_up:
                seconds[name].append(time.perf_counter() - begin)
    for name, values in seconds.items():
        say(f"{name}: {median(values):.4f} s")
    return seconds


class _Local:
    """The whole model as one stage of an engine, with a micro-batch for each rank."""

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        settings: SitesSettings,
        *,
        any_order: bool = False,
        divided: bool = False,
        ranks: Sequence[psutil.Process] = (),
    ) -> None:
        """``ranks``: the processes of a site."""
        adamw = OptimizerSpec(name="adamw")
        opened = EngineSettings(optimizer=adamw, seed=settings.seed, any_order=any_order, sharded=divided)
        self._ranks = [(one, one.memory_info().rss) for one in ranks]
        (piece,) = cut(graph, [(0, len(graph.ops))])
        engine.set_threads(settings.threads)
        self.runner: StageRunner = engine.open(piece, opened)
        self.runner.initialize(list(piece.states))
        rng = np.random.default_rng(settings.seed)
        self._data = [
            {op.name: rng.integers(0, settings.vocabulary, op.outputs[0].shape) for op in graph.placeholders}
            for _ in range(settings.ranks)
        ]

    def step(self, step: int) -> None:
        """Forward and backward of all micro-batches, and the update."""
        runner, keys = self.runner, [MicroBatch(step, index) for index in range(len(self._data))]
        weight = 1.0 / len(keys)
        if isinstance(runner, SiteRunner):
            runner.begin_forwards([(key, {}, data) for key, data in zip(keys, self._data, strict=True)])
        for key, data in zip(keys, self._data, strict=True):
            runner.forward(key, {}, data)
        if isinstance(runner, SiteRunner):
            runner.begin_backwards([(key, {}, weight) for key in keys])
        for key in keys:
            runner.backward(key, {}, weight)
        runner.close_part(last=True)
        runner.finish_gradients({})
        runner.update([1e-3], None)

    def peak(self) -> float:
        """The most bytes that a rank has taken since it was idle."""
        return max(_highest(one) - idle for one, idle in self._ranks)

    def states(self) -> list[Array]:
        """All states, in order."""
        return [array for _, array in sorted(self.runner.states().items())]


def _highest(process: psutil.Process) -> int:
    """The largest resident memory that a process has had, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@contextmanager
def _fsdp(settings: SitesSettings) -> Iterator[Callable[[int], None]]:
    """A function that lets the ranks of FSDP2 compute a step."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        ranks = []
        for rank in range(settings.ranks):
            own = FsdpSettings(
                rank=rank,
                ranks=settings.ranks,
                store=str(Path(folder) / "ranks"),
                model=settings.model,
                rows=settings.rows,
                threads=settings.threads,
                seed=settings.seed,
            )
            words = [sys.executable, "-m", "benchmarks.training.fsdp_peer", json.dumps(asdict(own))]
            one = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)  # noqa: S603
            opened.callback(one.wait)
            opened.callback(one.terminate)
            ranks.append(one)

        def step(_: int) -> None:
            for one in ranks:
                assert one.stdin is not None
                one.stdin.write("step\n")
                one.stdin.flush()
            answers()

        def answers() -> None:
            for one in ranks:
                assert one.stdout is not None
                if not one.stdout.readline():
                    raise RuntimeError("a rank of FSDP2 has ended: its error is above")

        answers()
        yield step
