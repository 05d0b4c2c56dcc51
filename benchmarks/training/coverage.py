"""``coverage``: of model configurations drawn at random, how many are captured and train like the plain loop, bit for bit?"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.inprocess import PlannedRun, run_planned
from benchmarks.training.coverage_models import Draw, draw_model
from benchmarks.training.coverage_vision import load_torchvision
from benchmarks.training.exactness import compare
from farflung.cluster import Topology
from farflung.errors import FarflungError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.planners import get_planner
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop

__all__ = ["Coverage", "CoverageSettings", "try_model"]

#: A drawn configuration with more parameters is drawn again: only its sizes' names were not known.
_MOST_PARAMETERS = 30_000_000
_SHARE, _OF = 57, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageSettings(Settings):
    """``models``: how many configurations; ``vision``: how many of them from ``torchvision`` (0 where it is not installed).

    ``stages``: into how many stages each graph is cut.
    """

    models: int = 60
    vision: int = bounded(12)
    stages: int = 2
    steps: int = 2
    micro_batches: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``result``: ``equal``, ``different``, ``refused`` (no capture), ``failed`` (no run), or ``not runnable`` by PyTorch."""

    result: str
    text: str = ""
    operators: int = 0
    seconds: float = 0.0


class Coverage:
    """Draws configurations, trains each in stages and as a plain loop, and compares losses, gradients and states."""

    name = "coverage"
    summary = "models drawn from transformers and torchvision: captured and trained like a plain loop"

    def settings(self, quick: bool) -> CoverageSettings:
        """Quick: three models, one of them of torchvision."""
        return CoverageSettings(quick=True, models=3, vision=1) if quick else CoverageSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Draw and try.

        Raises:
            InputError: the settings of a job made from them are out of range.
        """
        import torch

        assert isinstance(settings, CoverageSettings)
        before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)
        try:
            entries = list(_entries(settings, say))
        finally:
            torch.set_num_threads(before)
        counted = [entry for entry in entries if entry["result"] != "not runnable"]
        equal = sum(entry["result"] == "equal" for entry in counted)
        target = -(-len(counted) * _SHARE // _OF)
        check = Check(
            name="captured and bit-equal",
            target=f"{target} of {len(counted)}",
            measured=f"{equal} of {len(counted)}",
            passed=None if settings.quick else equal >= target,
            note="; ".join(entry["class"] for entry in counted if entry["result"] != "equal"),
        )
        kinds = list(dict.fromkeys(entry["library"] for entry in counted))
        rows = [_row(kind, [entry for entry in entries if entry["library"] == kind]) for kind in kinds]
        figures = {"models": entries, "equal": equal, "total": len(counted), "versions": _versions()}
        return Report(figures=figures, columns=("library", "models", "equal", "not runnable"), rows=rows, checks=(check,))


def _entries(settings: CoverageSettings, say: Say) -> Iterator[dict[str, Any]]:
    rng = random.Random(settings.seed)
    vision = min(settings.vision, settings.models) if load_torchvision() is not None else 0
    for number in range(settings.models):
        library = "torchvision" if number < vision else "transformers"
        while True:
            draw = draw_model(rng, library)
            outcome = try_model(draw, settings)
            text = f"{outcome.result} {outcome.text}".strip()
            say(f"{number + 1}/{settings.models} {draw.model_class} ({outcome.seconds:.1f} s): {text}")
            yield {"library": library, "class": draw.model_class, "choices": dict(draw.choices), **asdict(outcome)}
            gc.collect()
            if outcome.result != "not runnable":
                break


def try_model(draw: Draw, settings: CoverageSettings) -> Outcome:
    """Train the configuration in stages and as a plain loop."""
    began = time.monotonic()
    optimizer = OptimizerSpec(name="adamw", lr=1e-3)
    try:
        module = draw.make()
        if (size := sum(parameter.numel() for parameter in module.parameters())) > _MOST_PARAMETERS:
            return Outcome(result="not runnable", text=f"{size} parameters, at most {_MOST_PARAMETERS} are small")
        truth = plain_loop(
            draw.make(),
            draw.batch,
            steps=settings.steps,
            micro_batches=settings.micro_batches,
            settings=PlainSettings(optimizer=optimizer, seed=settings.seed),
        )
    except Exception as error:  # noqa: BLE001 - PyTorch cannot run this small configuration: whatever it raises is the reason
        return Outcome(result="not runnable", text=_first_line(error), seconds=time.monotonic() - began)
    try:
        outcome = _compared(draw, module, settings, optimizer, truth)
    except FarflungError as error:
        outcome = Outcome(result="refused", text=_first_line(error))
    except Exception as error:  # noqa: BLE001 - a defect of the product must not end the benchmark
        outcome = Outcome(result="failed", text=f"{type(error).__name__}: {_first_line(error)}")
    return Outcome(**{**asdict(outcome), "seconds": time.monotonic() - began})


def _compared(draw: Draw, module: Any, settings: CoverageSettings, optimizer: OptimizerSpec, truth: PlainResult) -> Outcome:
    from farflung.frontends.torch.ambient import batch_arrays, module_states
    from farflung.frontends.torch.capture import capture

    graph = Graph.from_json(capture(module, draw.batch(0, 0)).to_json())
    job = JobSpec(
        name="coverage",
        seed=settings.seed,
        steps=settings.steps,
        micro_batch_sizes=(1,) * settings.micro_batches,
        weighting="equal",
        threads=settings.threads,
        optimizer=optimizer,
    )
    plan = get_planner("equal_compute").plan(graph, Topology.preset(f"homogeneous-{settings.stages}"), job=job)
    order = dict(graph.meta).get("inputs", "").split(",")
    given = PlannedRun(
        graph=graph,
        plan=plan,
        job=job,
        states=module_states(module, graph),
        batches=lambda step, index: batch_arrays(draw.batch(step, index), order),
    )
    run = run_planned(given, keep_gradients=True)
    found = compare(truth, run.micro_losses, run.gradients, run.states)
    text = "" if found["equal"] else f"{found['first_difference']}, largest {found['largest']:.1e}"
    return Outcome(result="equal" if found["equal"] else "different", text=text, operators=len(graph.ops))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__


def _row(library: str, entries: list[dict[str, Any]]) -> list[object]:
    counted = [entry for entry in entries if entry["result"] != "not runnable"]
    return [library, len(counted), sum(entry["result"] == "equal" for entry in counted), len(entries) - len(counted)]


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "torchvision"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
