"""``trace-cost``: what tracing every run costs: CPU time, bytes and memory of a span, and what that makes of a step.

A worker notes a span for each thing that it does, packs them with each step's report, and the broker writes them to a file. A
micro-batch on a stage with two neighbours makes twelve: forward, backward, a wait before each, and encoding, sending, receiving
and decoding one value and one gradient (a run of ``overlap`` has 197 for 16 micro-batches). Runs with and without tracing, in
turns, differ by less than they differ among themselves; so the cost is counted instead of looked for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import SpanRing, pack_spans, unpack_spans, write_spans

__all__ = ["TraceCost", "TraceCostSettings"]

_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCostSettings(Settings):
    """``spans`` in a step's report, ``rounds`` of them; ``per_micro_batch``: spans that a worker notes for one; ``seconds``: the
    computing of a micro-batch of which tracing may be a hundredth."""

    spans: int = 2000
    rounds: int = 15
    per_micro_batch: int = 12
    seconds: float = 0.02


class TraceCost:
    """Cost of a span."""

    name = "trace-cost"
    summary = "CPU time, bytes and memory that the trace of a run costs"

    def settings(self, quick: bool) -> TraceCostSettings:
        """Quick: few spans."""
        return TraceCostSettings(quick=True, spans=100, rounds=3) if quick else TraceCostSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, TraceCostSettings)
        count = settings.spans
        say(f"{settings.rounds} rounds of {count} spans")
        spans, _ = _noted(count).drain()
        names, packed = pack_spans(spans)
        with tempfile.TemporaryDirectory() as folder:
            costs = {
                "note": _microseconds(settings, lambda: _noted(count)),
                "pack": _microseconds(settings, lambda: pack_spans(spans)),
                "broker": _microseconds(settings, lambda: write_spans(Path(folder), "a", unpack_spans(names, packed))),
            }
        worker = costs["note"] + costs["pack"]
        share = settings.per_micro_batch * worker * 1e-6 / settings.seconds
        figures = {
            "microseconds": costs,
            "wire_bytes": len(packed) / count,
            "memory_bytes": _memory(count),
            "share": share,
            "one_percent_at_seconds": settings.per_micro_batch * worker * 1e-6 / _SHARE,
        }
        rows: Sequence[tuple[object, ...]] = [
            *((name, f"{cost:.2f} us of a span") for name, cost in costs.items()),
            ("wire", f"{figures['wire_bytes']:.0f} bytes"),
            ("memory until the report", f"{figures['memory_bytes']:.0f} bytes"),
        ]
        check = Check(
            name=f"a micro-batch of {1e3 * settings.seconds:g} ms",
            target=f"{_SHARE:.0%} of its time at most",
            measured=f"{share:.2%}",
            passed=None if settings.quick else share <= _SHARE,
        )
        return Report(figures=figures, columns=("part", "cost"), rows=rows, checks=(check,))


def _noted(count: int) -> SpanRing:
    ring = SpanRing(capacity=count)
    for number in range(count):
        begin = ring.now()
        ring.note(SpanKind.COMPUTE, "F", begin, stage=1, micro_batch=number % 64, step=number // 64)
    return ring


def _microseconds(settings: TraceCostSettings, work: Callable[[], object]) -> float:
    """CPU time of ``work`` for each span, the median of all rounds."""
    found = []
    for _ in range(settings.rounds):
        begin = time.thread_time()
        work()
        found.append((time.thread_time() - begin) / settings.spans * 1e6)
    return statistics.median(found)


def _memory(count: int) -> float:
    """Bytes that a span holds in the ring."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ring = _noted(count)
        held = tracemalloc.get_traced_memory()[0] - before
        del ring
        return held / count
    finally:
        tracemalloc.stop()
