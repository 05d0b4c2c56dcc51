"""Figures of a run: rates, remaining time, utilization of devices, traffic and codec errors of links.

Figures of a run in progress cover its newest steps. Step time and rates of a run that is over cover all steps, as its report.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farflung.plan import Plan
from farflung.units import counted
from farflung.web.sources.live_run import LiveRun

__all__ = ["LinkUse", "Pace", "device_use", "link_uses", "pace", "smoothed", "traffic"]

_PACE = ("step", "seconds", "predicted", "samples", "tokens")
#: Steps of which figures of a run in progress are medians, and losses of which the smoothed loss is the mean.
_RECENT = 20
_SMOOTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run is. ``covers``: the steps of which ``step_seconds`` and ``ratio`` are medians, in words.

    ``ratio``: measured by predicted step time (``None``: nothing was predicted). ``remaining``: seconds (``None``: not known, or
    the run is over).
    """

    covers: str
    step_seconds: float
    ratio: float | None
    samples_per_second: float
    tokens_per_second: float
    remaining: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """One direction of a link between stages, means of the newest steps.

    ``nbytes``: per step. ``dense``: what it would be without a codec. ``share``: of the step during which the bytes occupy the
    link at its measured bandwidth (``None``: bandwidth unknown). ``error``: relative error of the codec (``None``: no codec, or
    not measured). ``codec``: its name (empty: none).
    """

    stages: tuple[int, int]
    source: str
    target: str
    nbytes: float
    dense: float
    share: float | None = None
    error: float | None = None
    codec: str = ""


def pace(run: LiveRun) -> Pace | None:
    """Return how fast the run is, ``None`` before the first step."""
    count = len(run.series)
    if not count:
        return None
    begin = 0 if run.result is not None else max(0, count - _RECENT)
    columns = {name: np.array(run.series.columns[name][begin:count]) for name in _PACE}
    seconds = float(np.median(columns["seconds"]))
    ratios = columns["seconds"] / np.where(columns["predicted"] > 0, columns["predicted"], np.nan)
    ratios = ratios[np.isfinite(ratios)]
    left = None if run.job is None or run.result is not None else max(run.job.steps - float(columns["step"][-1]), 0.0)
    return Pace(
        covers="median" if run.result is not None else f"newest {counted(count - begin, 'step')}",
        step_seconds=seconds,
        ratio=float(np.median(ratios)) if ratios.size else None,
        samples_per_second=float(columns["samples"].mean()) / seconds if seconds > 0 else 0.0,
        tokens_per_second=float(columns["tokens"].mean()) / seconds if seconds > 0 else 0.0,
        remaining=None if left is None else left * seconds,
    )


def smoothed(losses: Sequence[float], row: int) -> float:
    """Return the mean of the losses that end at ``row`` and are numbers."""
    known = [loss for loss in losses[max(0, row + 1 - _SMOOTH) : row + 1] if math.isfinite(loss)]
    return statistics.fmean(known) if known else math.nan


def device_use(run: LiveRun) -> Mapping[str, float]:
    """Return the share of the newest steps during which each device computed; of replicas of a stage, the busiest counts."""
    plan, recent = run.plan, run.series.recent
    total = sum(record.seconds for record in recent)
    if plan is None or total <= 0:
        return {}
    use = dict.fromkeys(plan.devices, 0.0)
    for record in recent:
        for stage, seconds in record.busy_seconds.items():
            for device in _devices(plan, stage):
                use[device] += seconds / total
    return {device: min(share, 1.0) for device, share in use.items()}


def link_uses(run: LiveRun) -> list[LinkUse]:
    """Return the use of each direction of each link, by stages."""
    plan, recent = run.plan, run.series.recent
    if plan is None or not recent:
        return []
    steps, seconds = len(recent), sum(record.seconds for record in recent)
    pairs = sorted({pair for record in recent for pair in record.link_bytes})
    codecs = {(link.source, link.target): str(link.activations) for link in plan.links}
    codecs |= {(link.target, link.source): str(link.gradients) for link in plan.links}
    found = []
    for pair in pairs:
        nbytes = sum(record.link_bytes.get(pair, 0) for record in recent) / steps
        errors = [use.error for record in recent if (use := record.codecs.get(pair)) and use.error is not None]
        source, target = (_devices(plan, stage)[:1] for stage in pair)
        ends = (source[0] if source else "", target[0] if target else "")
        beta = _bandwidth(run, *ends)
        codec = codecs.get(pair, "")
        found.append(
            LinkUse(
                stages=pair,
                source=ends[0],
                target=ends[1],
                nbytes=nbytes,
                dense=sum(record.dense_bytes.get(pair, record.link_bytes.get(pair, 0)) for record in recent) / steps,
                share=None if beta is None or seconds <= 0 else min(nbytes * steps / beta / seconds, 1.0),
                error=statistics.fmean(errors) if errors else None,
                codec="" if codec == "identity" else codec,
            )
        )
    return found


def traffic(run: LiveRun) -> Mapping[tuple[str, str], float]:
    """Return bytes per second between devices now; bytes of replicas count for the primary of their stage."""
    recent = run.series.recent
    seconds = sum(record.seconds for record in recent)
    if seconds <= 0 or run.result is not None:
        return {}
    found: dict[tuple[str, str], float] = {}
    for use in link_uses(run):
        if use.source != use.target:
            pair = (use.source, use.target)
            found[pair] = found.get(pair, 0.0) + use.nbytes * len(recent) / seconds
    return found


def _devices(plan: Plan, stage: int) -> tuple[str, ...]:
    return plan.stages[stage].devices if stage < len(plan.stages) else ()


def _bandwidth(run: LiveRun, source: str, target: str) -> float | None:
    topology = run.topology
    if topology is None or source == target or not {source, target} <= set(topology.names):
        return None
    return float(topology.link(source, target).bandwidth)
