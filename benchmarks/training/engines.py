"""``engines``: the JAX engine against the PyTorch engine: gradients, seconds of a stage, and a run that has both.

Both engines compute the same stage in turn, in one process with one thread. The figure of a stage is the quotient of the medians
of a forward and a backward. The run alternates the stages of a pipeline between the engines. Its losses stand beside those of a
run with PyTorch alone.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.inprocess import PlannedRun, run_planned
from benchmarks.harness.mixed import MixedEngine
from farflung.cluster import Topology
from farflung.engines import Engine, EngineSettings, MicroBatch, StageRunner, get_engine
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import CheckpointSpec, JobSpec, OptimizerSpec
from farflung.planners import get_planner

__all__ = ["Engines", "EnginesSettings", "deviation"]

_TOLERANCE, _RATIO, _LOSS = 2e-5, 1.1, 0.01
_SMALL = {"vocab_size": 256, "sequence": 64}
_BLOCKS = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
#: Recipe, its arguments, and rows of a micro-batch.
_MODELS: Mapping[str, tuple[str, dict[str, Any], int]] = {
    "gpt2": ("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, **_SMALL}, 4),
    "llama": ("llama", {**_BLOCKS, **_SMALL}, 4),
    "bert": ("bert", {**_BLOCKS, **_SMALL}, 4),
    "resnet18": ("resnet18", {"size": 8}, 16),  # rounding moves activations of larger images across zero: decision 48
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesSettings(Settings):
    """``models``: those whose gradients are compared. ``layers`` and ``width``: of the transformer whose stage is timed.

    ``text``: a file of text for the run of ``steps`` steps (empty: the source of a module of Python).
    """

    models: tuple[str, ...] = tuple(_MODELS)
    layers: int = 6
    width: int = 128
    repeats: int = bounded(15)
    steps: int = bounded(200)
    text: str = ""


class Engines:
    """JAX against PyTorch."""

    name = "engines"
    summary = "the JAX engine against the PyTorch engine: gradients, seconds of a stage, a run with both"

    def settings(self, quick: bool) -> EnginesSettings:
        """Quick: one model, a small stage and few steps."""
        if quick:
            return EnginesSettings(quick=True, models=("gpt2",), layers=1, width=32, repeats=3, steps=4)
        return EnginesSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure all three.

        Raises:
            InputError: JAX is not installed, or a model is unknown.
        """
        assert isinstance(settings, EnginesSettings)
        engines = {name: get_engine(name) for name in ("torch", "jax")}
        for engine in engines.values():
            engine.set_threads(settings.threads)
        checks, rows = [], []
        deviations: dict[str, float] = {}
        for name in settings.models:
            if name not in _MODELS:
                raise InputError(f"unknown model {name!r}: known are {', '.join(_MODELS)}")
            recipe, args, size = _MODELS[name]
            found = deviations[name] = _deviation(load_recipe(recipe, args).graph("train", size), engines, settings.seed)
            say(f"{name}: gradients deviate by {found:.1e}")
            rows.append((f"gradients of {name}", found, _TOLERANCE))
            checks.append(_check(f"gradients, {name}", found, _TOLERANCE, passed=found <= _TOLERANCE))
        seconds = _stage_seconds(settings, engines, say)
        ratio = seconds["jax"] / seconds["torch"]
        rows.append(("stage, JAX / PyTorch", ratio, _RATIO))
        checks.append(_check("stage, JAX / PyTorch", ratio, _RATIO, passed=None if settings.quick else ratio <= _RATIO))
        runs = {"torch": engines["torch"], "mixed": _mixed(engines)}
        losses = {name: _losses(settings, engine, say) for name, engine in runs.items()}
        apart = abs(losses["mixed"][-1] / losses["torch"][-1] - 1)
        rows.append(("final loss, mixed against PyTorch", apart, _LOSS))
        checks.append(_check("final loss, mixed / PyTorch - 1", apart, _LOSS, passed=apart <= _LOSS))
        figures = {"deviations": deviations, "stage_seconds": seconds, "ratio": ratio, "losses": losses, "apart": apart}
        return Report(figures=figures, columns=("figure", "measured", "at most"), rows=rows, checks=tuple(checks))


def _check(name: str, measured: float, most: float, *, passed: bool | None) -> Check:
    note = "" if passed is not None else "a tiny stage is all overhead"
    return Check(name=name, target=f"at most {most:g}", measured=f"{measured:.2g}", passed=passed, note=note)


def _mixed(engines: Mapping[str, Engine]) -> Engine:
    return MixedEngine(tuple(engines.values()))


def _data(graph: Graph, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        op.name: random.integers(0, 10, op.outputs[0].shape)
        if op.outputs[0].dtype == "int64"
        else random.standard_normal(op.outputs[0].shape).astype(op.outputs[0].dtype)
        for op in graph.placeholders
    }


def _opened(graph: Graph, engine: Engine, seed: int) -> StageRunner:
    return engine.open(cut(graph, [(0, len(graph.ops))])[0], EngineSettings(seed=seed))


def deviation(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """Return the largest difference of a gradient, as a share of the largest element of its array.

    Gradients below a ten-thousandth of the largest one are rounding: those of attention's key biases.
    """
    floor = 1e-4 * max(float(np.abs(array).max()) for array in expected.values())
    return max(
        float(np.abs(found[name] - array).max()) / max(float(np.abs(array).max()), floor) for name, array in expected.items()
    )


def _deviation(graph: Graph, engines: Mapping[str, Engine], seed: int) -> float:
    data = _data(graph, seed)
    runners = {name: _opened(graph, engine, seed) for name, engine in engines.items()}
    runners["torch"].initialize([state.name for state in graph.states])
    runners["jax"].load(runners["torch"].states([state.name for state in graph.states]))
    found: dict[str, Mapping[str, Array]] = {}
    for name, runner in runners.items():
        runner.forward(MicroBatch(0, 0), {}, data)
        runner.backward(MicroBatch(0, 0), {}, 1.0)
        runner.finish_gradients({})
        found[name] = runner.gradients()
    return deviation(found["jax"], found["torch"])


def _stage_seconds(settings: EnginesSettings, engines: Mapping[str, Engine], say: Say) -> dict[str, float]:
    args = {"vocab": 256, "sequence": 128, "layers": settings.layers, "width": settings.width, "heads": 4}
    graph = load_recipe("gpt", args).graph("train", 8)
    data = _data(graph, settings.seed)
    runners = {name: _opened(graph, engine, settings.seed) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for runner in runners.values():
        runner.initialize([state.name for state in graph.states])
    for number in range(settings.repeats + 2):
        for name, runner in runners.items():
            begin = time.perf_counter()
            runner.forward(MicroBatch(0, number), {}, data)
            runner.backward(MicroBatch(0, number), {}, 1.0)
            times[name].append(time.perf_counter() - begin)
            runner.discard()
    found = {name: median(seconds[2:]) for name, seconds in times.items()}
    say(", ".join(f"{name}: {1e3 * seconds:.0f} ms a micro-batch" for name, seconds in found.items()))
    return found


def _losses(settings: EnginesSettings, engine: Engine, say: Say) -> list[float]:
    """The loss of each step of a pipeline of two stages."""
    sequence, rows = 64, 4
    text = np.frombuffer(Path(settings.text or typing.__file__).read_bytes(), np.uint8)
    args = {"vocab": 256, "sequence": sequence, "layers": 2, "width": 64, "heads": 4, "dropout": 0.1}
    graph = load_recipe("gpt", args).graph("train", rows)
    job = JobSpec(
        steps=settings.steps,
        threads=settings.threads,
        seed=settings.seed,
        micro_batch_sizes=(rows, rows),
        optimizer=OptimizerSpec(name="adamw", lr=1e-3, clip_norm=1.0),
        checkpoint=CheckpointSpec(at_end=False),
    )
    plan = get_planner("equal_compute").plan(graph, Topology.preset("homogeneous-2"), job=job)
    names = [op.name for op in graph.placeholders]

    def batch(step: int, micro_batch: int) -> dict[str, Array]:
        random = np.random.default_rng([settings.seed, step, micro_batch])
        starts = random.integers(0, len(text) - sequence - 1, rows)
        windows = np.stack([text[start : start + sequence + 1] for start in starts]).astype(np.int64)
        return dict(zip(names, (windows[:, :-1], windows[:, 1:]), strict=True))

    states = get_engine("torch").initial_states(graph, settings.seed, [s.name for s in graph.states if s.init])
    found = run_planned(PlannedRun(graph=graph, plan=plan, job=job, states=states, batches=batch, rows=rows), engine=engine)
    say(f"{engine.version()}: loss {found.losses[-1]:.4f} after {settings.steps} steps")
    return list(found.losses)
