"""Sums over the steps of each attempt of a run. An attempt is one plan; a loss of a machine begins a new one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from farflung.cluster import Topology
from farflung.ledger.documents import parsed
from farflung.plan import Plan
from farflung.telemetry import RecoveryRecord, RunFolder, StepRecord
from farflung.telemetry.records import Link

__all__ = ["AttemptSums", "attempt_sums"]


@dataclass(slots=True, kw_only=True)
class AttemptSums:
    """One attempt. Seconds count from the begin of the run.

    ``plan``: ``None`` where the folder does not tell by which plan these steps were made (an older version wrote it).
    ``samples``: in steps that count. ``wasted``: in steps that were repeated after a loss, or whose loss was not a number.
    ``busy``: computing seconds by stage (of the busiest replica). ``sent``: bytes by link. Both include repeated steps.
    ``helped``: samples of steps that count, computing seconds, and seconds of the steps, by (stage, helper).
    ``pause``: seconds without training before the next attempt. ``cause``: what ended it (empty: the end of the run).
    """

    number: int
    plan: Plan | None
    topology: Topology | None
    begin: float
    end: float = 0.0
    pause: float = 0.0
    cause: str = ""
    steps: int = 0
    samples: int = 0
    wasted: int = 0
    tokens: int = 0
    busy: dict[int, float] = field(default_factory=dict)
    sent: dict[Link, int] = field(default_factory=dict)
    helped: dict[tuple[int, str], tuple[int, float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Step:
    """A step whose place among the sums may still change: a later recovery can repeat it."""

    step: int
    samples: int
    tokens: int
    attempt: AttemptSums
    helped: Mapping[tuple[int, str], tuple[int, float]]


def attempt_sums(folder: RunFolder) -> list[AttemptSums]:
    """Return the sums of all attempts that trained, in order.

    Raises:
        DataError: a file is missing or damaged.
    """
    records = list(folder.records()) if folder.metrics.is_file() else []
    found = _attempts(folder, [record for record in records if isinstance(record, RecoveryRecord)])
    if not found:
        return []
    begins = [attempt.begin for attempt in found]
    counted: list[_Step] = []
    last = 0.0
    for record in records:
        last = max(last, record.elapsed)
        if isinstance(record, RecoveryRecord):
            while counted and counted[-1].step >= record.step:
                _waste(counted.pop())
        if isinstance(record, StepRecord):
            attempt = found[max(bisect_left(begins, record.elapsed) - 1, 0)]
            _count(record, attempt)
            if record.skipped:
                attempt.wasted += record.samples
            else:
                attempt.steps += 1
                attempt.samples += record.samples
                attempt.tokens += record.tokens
                counted.append(_Step(record.step, record.samples, record.tokens, attempt, record.helped))
    result = folder.read_result()
    found[-1].end = max(last, found[-1].begin) if result is None else max(result.seconds, last)
    return found


def _count(record: StepRecord, attempt: AttemptSums) -> None:
    for stage, seconds in record.busy_seconds.items():
        attempt.busy[stage] = attempt.busy.get(stage, 0.0) + seconds
    for link, nbytes in record.link_bytes.items():
        attempt.sent[link] = attempt.sent.get(link, 0) + nbytes
    for key, (samples, seconds) in record.helped.items():
        before = attempt.helped.get(key, (0, 0.0, 0.0))
        attempt.helped[key] = before[0] + samples * (not record.skipped), before[1] + seconds, before[2] + record.seconds


def _waste(step: _Step) -> None:
    step.attempt.steps -= 1
    step.attempt.samples -= step.samples
    step.attempt.tokens -= step.tokens
    step.attempt.wasted += step.samples
    for key, (samples, _) in step.helped.items():
        before = step.attempt.helped[key]
        step.attempt.helped[key] = before[0] - samples, before[1], before[2]


def _attempts(folder: RunFolder, recoveries: Sequence[RecoveryRecord]) -> list[AttemptSums]:
    """Return the attempts with their times, without sums."""
    written = folder.read_attempts()
    found = [
        AttemptSums(
            number=one.number,
            plan=parsed(folder.attempts, one.plan, Plan.from_json),
            topology=parsed(folder.attempts, one.topology, Topology.from_json),
            begin=one.elapsed,
        )
        for one in written
    ]
    if not found:
        found = _without_file(folder, recoveries)
    known = {recovery.attempt: recovery for recovery in recoveries}
    for attempt, following in pairwise(found):
        attempt.end = following.begin
        if (recovery := known.get(following.number)) is not None:
            attempt.pause, attempt.cause = min(recovery.pause, attempt.end - attempt.begin), recovery.cause
    return found


def _without_file(folder: RunFolder, recoveries: Sequence[RecoveryRecord]) -> list[AttemptSums]:
    """Return the attempts of a folder without ``attempts.jsonl``: only the plan of the last one is known."""
    if not folder.plan.is_file():
        return []
    unknown = [AttemptSums(number=0, plan=None, topology=None, begin=0.0)] if recoveries else []
    begin, number = (recoveries[-1].elapsed, recoveries[-1].attempt) if recoveries else (0.0, 1)
    topology = parsed(folder.topology, None, Topology.from_json) if folder.topology.is_file() else None
    return [
        *unknown,
        AttemptSums(number=number, plan=parsed(folder.plan, None, Plan.from_json), topology=topology, begin=begin),
    ]
