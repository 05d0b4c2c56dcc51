"""Runs whose links cache samples."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

from farflung.plan.model import CodecChoice, LinkPlan
from tests.support.steps.executor_threads import (
    BatchFunction,
    Case,
    calm_tangle,
    job_of,
    random_batches,
)

SIZES = [4, 2, 3]
LIMIT = 1 << 20
BITS = (("bits", 4), ("block", 8), ("rotate", 1))
CODEC = CodecChoice(name="quantized", params=BITS)
BOTH = (replace(CODEC, memory="difference"), replace(CODEC, memory="error_feedback"))


def every_link(stages: int, there: CodecChoice, back: CodecChoice) -> list[LinkPlan]:
    return [LinkPlan(source=a, target=b, activations=there, gradients=back) for a, b in combinations(range(stages), 2)]


def again(every: int) -> BatchFunction:
    """The same samples in each ``every`` steps, in other micro-batches' places."""
    plain = random_batches([max(SIZES)] * len(SIZES))

    def batch(step: int, index: int) -> tuple[Any, ...]:
        step = max(step, 0)
        found = plain(step % every, (index + step // every) % len(SIZES))
        return tuple(part[: SIZES[index]] for part in found)

    return batch


def case_of(**changes: Any) -> Case:
    job = job_of(steps=6, micro_batch_sizes=SIZES, codec={"name": "int4", "memory": "both"}, checkpoint={"every": 3, "keep": 9})
    given: dict[str, Any] = {"devices": ("a", "b"), "make": calm_tangle, "cut_seed": 3, "batch": again(2)}
    given["links"] = every_link(2, *BOTH)
    return Case(**{"job": job, **given, **changes})
