"""``isolation``: what a process of its own costs, in step time of two stages of GPT-2 with the process over without.

Both run in turn, step by step: two stages compute micro-batches each way, exchange the gradients of tied parameters as
workers do, and update. Nothing else of a step is in the figure, so it is an upper bound. The results must be equal bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from farflung.engines import EngineSettings, MicroBatch, StageRunner, get_engine
from farflung.engines.base import Array, Engine
from farflung.engines.encoded_value import arrays_of
from farflung.engines.isolated import IsolatedEngine, Zygote
from farflung.frontends.recipes import load_recipe
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, ValueRef
from farflung.job.spec import OptimizerSpec

__all__ = ["Isolation", "IsolationSettings"]

#: name -> (layers, width, heads, vocabulary)
_SIZES = {"14M": (6, 384, 6, 8192), "124M": (12, 768, 12, 50257), "tiny": (2, 32, 2, 67)}
_TARGET = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings(Settings):
    """GPT-2 by ``sizes``; ``micro_batches`` of ``rows`` windows of ``sequence`` tokens. ``pairs``: how many ratios.

    Two stages compute at once from two micro-batches on; with four they wait for each other a fifth of the time.
    """

    sizes: tuple[str, ...] = ("14M", "124M")
    micro_batches: int = 4
    rows: int = 4
    sequence: int = 128
    pairs: int = 8
    warm_up: int = bounded(2)


class Isolation:
    """Step time with a process for each stage over step time in one process."""

    name = "isolation"
    summary = "step time with a job's process of its own over without, GPT-2 14 M and 124 M, two stages"

    def settings(self, quick: bool) -> IsolationSettings:
        """Quick: a tiny model and two pairs."""
        if quick:
            return IsolationSettings(quick=True, sizes=("tiny",), micro_batches=2, rows=2, sequence=12, pairs=2, warm_up=1)
        return IsolationSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Alternate steps of both.

        Raises:
            InputError: the process that forks can't start.
        """
        assert isinstance(settings, IsolationSettings)
        with _zygote() as isolated:
            found = [_measure(size, settings, isolated, say) for size in settings.sizes]
        rows = [(one["model"], one["without"], one["with"], one["ratio"], one["equal"]) for one in found]
        checks = [_check(one, settings) for one in found]
        equal = all(one["equal"] for one in found)
        checks.append(Check(name="bits", target="equal", measured="equal" if equal else "different", passed=equal))
        columns = ("model", "step without", "step with", "ratio", "equal bits")
        return Report(figures={"models": found}, columns=columns, rows=rows, checks=tuple(checks))


def _check(found: Mapping[str, Any], settings: IsolationSettings) -> Check:
    return Check(
        name=f"with / without, {found['model']}",
        target=f"at most {_TARGET}",
        measured=f"{found['ratio']:.3f}",
        passed=None if settings.quick else found["ratio"] <= _TARGET,
    )


@contextmanager
def _zygote() -> Iterator[IsolatedEngine]:
    engine = IsolatedEngine(Zygote())
    try:
        yield engine
    finally:
        engine.end()


def _measure(size: str, settings: IsolationSettings, isolated: IsolatedEngine, say: Say) -> dict[str, Any]:
    layers, width, heads, vocabulary = _SIZES[size]
    args = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary, "sequence": settings.sequence}
    graph = load_recipe("gpt2", args).graph("train", settings.rows)
    here, there = get_engine("torch"), [isolated.attempt("cpu", 4 << 30) for _ in range(2)]
    stages = [_Stages(graph, [here, here], settings), _Stages(graph, there, settings)]
    seconds: list[list[float]] = [[], []]
    for step in range(settings.warm_up + settings.pairs):
        for number in (0, 1) if step % 2 else (1, 0):
            begin = time.perf_counter()
            stages[number].step(step)
            seconds[number].append(time.perf_counter() - begin)
    without, with_ = (values[settings.warm_up :] for values in seconds)
    ratio = median(b / a for a, b in zip(without, with_, strict=True))
    equal = all(np.array_equal(a, b) for a, b in zip(stages[0].states(), stages[1].states(), strict=True))
    found = {"model": size, "without": median(without), "with": median(with_), "ratio": ratio, "equal": equal}
    say(f"{size}: {found['without']:.4f} s without, {found['with']:.4f} s with, {ratio:.3f}")
    return found


class _Stages:
    """Two stages, each on its engine."""

    def __init__(self, graph: Graph, engines: Sequence[Engine], settings: IsolationSettings) -> None:
        bounds = [(0, len(graph.ops) // 2), (len(graph.ops) // 2, len(graph.ops))]
        self.pieces = cut(graph, bounds)
        opened = EngineSettings(optimizer=OptimizerSpec(name="adamw"), seed=settings.seed)
        self.runners: list[StageRunner] = []
        for engine, piece in zip(engines, self.pieces, strict=True):
            engine.set_threads(settings.threads)
            runner = engine.open(piece, opened)
            runner.initialize(list(piece.states))
            self.runners.append(runner)
        rng = np.random.default_rng(settings.seed)
        vocabulary = next(state.spec.shape[0] for state in graph.states if len(state.spec.shape) == 2)
        self.data = {op.name: rng.integers(0, vocabulary, op.outputs[0].shape) for op in graph.placeholders}
        self._micro_batches = settings.micro_batches

    def step(self, step: int) -> None:
        """Forward and backward of all micro-batches, and the update."""
        for number in range(self._micro_batches):
            self._train(MicroBatch(step, number))
        uses = [runner.use_gradients() for runner in self.runners]
        for number, (piece, runner) in enumerate(zip(self.pieces, self.runners, strict=True)):
            others = [part for other, part in enumerate(uses) if other != number]  # a stage has its own already
            runner.finish_gradients({use: a for part in others for use, a in part.items() if use.state in piece.states})
            runner.update([1e-3], None)

    def _train(self, key: MicroBatch) -> None:
        values = dict[ValueRef, Array]()
        for piece, runner in zip(self.pieces, self.runners, strict=True):
            wanted = {edge.value: values[edge.value] for edge in piece.takes}
            values |= arrays_of(runner.forward(key, wanted, {name: self.data[name] for name in piece.placeholders}).values)
        back: dict[ValueRef, list[Array]] = {}
        for piece, runner in zip(reversed(self.pieces), reversed(self.runners), strict=True):
            given = {edge.value: back[edge.value] for edge in piece.requires_gradients}
            for value, array in arrays_of(runner.backward(key, given, 1.0 / self._micro_batches)).items():
                back.setdefault(value, []).append(array)

    def states(self) -> list[Array]:
        """All states, in order."""
        return [array for runner in self.runners for _, array in sorted(runner.states().items())]
