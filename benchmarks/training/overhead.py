"""``overhead``: what the machinery costs when there is one worker, against a loop that anyone would write.

A worker runs on a thread of this process and is held at each step until the plain loop has made a step too, so that both see
the same noise. The figure is the median of the ratios of neighbouring steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.inprocess import PlannedRun, run_planned
from farflung.api import capture
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.job.spec import CheckpointSpec, JobSpec, OptimizerSpec
from farflung.messages.conversions.step_reports import StepReport
from farflung.planners import get_planner

if TYPE_CHECKING:
    import torch

__all__ = ["Overhead", "OverheadSettings"]

#: name -> (layers, width, heads, vocabulary)
_SIZES = {"14M": (6, 384, 6, 8192), "124M": (12, 768, 12, 50257), "tiny": (2, 32, 2, 67)}
_TARGET = 0.95
_WAIT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadSettings(Settings):
    """GPT-2 by ``sizes``; micro-batches of ``rows`` windows of ``sequence`` tokens. ``pairs``: how many ratios."""

    sizes: tuple[str, ...] = ("14M", "124M")
    rows: int = 4
    sequence: int = 128
    pairs: int = 10
    warm_up: int = bounded(2)
    optimizer: str = "adamw"


class Overhead:
    """Steps per second of one worker over those of the plain loop."""

    name = "overhead"
    summary = "steps per second of one worker against a plain loop, GPT-2 14 M and 124 M"

    def settings(self, quick: bool) -> OverheadSettings:
        """Quick: a tiny model and three pairs."""
        if quick:
            return OverheadSettings(quick=True, sizes=("tiny",), rows=2, sequence=12, pairs=3, warm_up=1)
        return OverheadSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Alternate steps of both.

        Raises:
            FarflungError: the worker fails.
        """
        import torch

        assert isinstance(settings, OverheadSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            found = [_measure(size, settings, say) for size in settings.sizes]
        finally:
            torch.set_num_threads(before)
        checks = tuple(
            Check(
                name=f"one worker / plain loop, {item['model']}",
                target=f"at least {_TARGET}",
                measured=f"{item['ratio']:.3f}",
                passed=None if settings.quick else item["ratio"] >= _TARGET,
                note="tiny models are all overhead" if settings.quick else "",
            )
            for item in found
        )
        columns = ("model", "parameters M", "plain s/step", "worker s/step", "ratio", "ratios from", "to")
        rows = [
            (
                item["model"],
                item["parameters"] / 1e6,
                item["plain_seconds"],
                item["worker_seconds"],
                item["ratio"],
                min(item["ratios"]),
                max(item["ratios"]),
            )
            for item in found
        ]
        return Report(figures={"models": found}, columns=columns, rows=rows, checks=checks)


def _measure(size: str, settings: OverheadSettings, say: Say) -> dict[str, Any]:
    import torch

    from farflung.frontends.recipes import load_recipe
    from farflung.frontends.torch.ambient import module_states

    layers, width, heads, vocabulary = _SIZES[size]
    args = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary, "sequence": settings.sequence}
    say(f"{size}: capture")
    module = load_recipe("gpt2", args).train.factory().train()
    tokens = torch.randint(0, vocabulary, (settings.rows, settings.sequence))
    graph = capture(module, (tokens, tokens), name=size)
    job = JobSpec(
        steps=settings.warm_up + settings.pairs,
        threads=settings.threads,
        seed=settings.seed,
        optimizer=OptimizerSpec.model_validate({"name": settings.optimizer, "lr": 1e-4}),
        checkpoint=CheckpointSpec(at_end=False),
    )
    plan = get_planner("equal_compute").plan(graph, Topology.preset("homogeneous-1"), job=job)
    arrays = {op.name: tokens.numpy() for op in graph.placeholders}
    gate = _Gate(arrays)
    given = PlannedRun(graph=graph, plan=plan, job=job, states=module_states(module, graph), batches=gate.batch)
    worker = threading.Thread(target=gate.work, args=(given,), name="bench-worker", daemon=True)
    worker.start()
    plain = _Plain(module, tokens, job)
    times: list[tuple[float, float]] = []
    for number in range(job.steps):
        # The first of a pair changes, so that whatever the order does to either is shared.
        if number % 2:
            second, first = gate.step(), plain.step()
        else:
            first, second = plain.step(), gate.step()
        times.append((first, second))
        say(f"{size}: step {number}: plain {first:.3f} s, worker {second:.3f} s")
    worker.join(_WAIT)
    measured = times[settings.warm_up :]
    ratios = [first / second for first, second in measured]
    return {
        "model": size,
        "parameters": sum(state.spec.numel for state in graph.parameters),
        "plain_seconds": median(first for first, _ in measured),
        "worker_seconds": median(second for _, second in measured),
        "ratio": median(ratios),
        "ratios": ratios,
        "plain": [first for first, _ in measured],
        "worker": [second for _, second in measured],
    }


class _Plain:
    """The loop that anyone would write."""

    def __init__(self, module: torch.nn.Module, tokens: torch.Tensor, job: JobSpec) -> None:
        import torch

        self._module = module
        self._tokens = tokens
        kind = torch.optim.AdamW if job.optimizer.name == "adamw" else torch.optim.SGD
        self._optimizer = kind(module.parameters(), lr=job.optimizer.lr)

    def step(self) -> float:
        begin = time.perf_counter()
        loss = self._module(self._tokens, self._tokens)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        float(loss.detach())
        return time.perf_counter() - begin


class _Gate:
    """RetainedRun a worker at the beginning of each step until ``step`` is called, which returns the seconds that it took."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._failed: BaseException | None = None

    def work(self, given: PlannedRun) -> None:
        """The worker's thread."""
        try:
            run_planned(given, on_step=self._report)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the measuring thread raises it
            self._failed = error
            self._done.release()

    def batch(self, step: int, micro_batch: int) -> Mapping[str, Array]:
        """The worker asks for data: the step begins."""
        self._go.acquire()
        return self._arrays

    def step(self) -> float:
        """Let the worker make one step."""
        begin = time.perf_counter()
        self._go.release()
        self._done.acquire(timeout=_WAIT)
        seconds = time.perf_counter() - begin
        if self._failed is not None:
            raise self._failed
        return seconds

    def _report(self, report: StepReport) -> None:
        self._done.release()
