"""Chaos: processes are killed while a run goes on, in an order drawn from a seed; what that cost, and whether anything was lost.

The plan of faults is drawn first and is the same for the same seed: after which step which process gets its SIGKILL. Who kills,
starts again and watches is the caller's: this module decides when, measures, and judges the records that the run left.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farflung.telemetry import RecoveryRecord, StepRecord, committed
from farflung.telemetry.records import Record

__all__ = ["ChaosReport", "Fault", "Recovery", "draw_faults", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``victim`` is killed when ``after_step`` is on record."""

    after_step: int
    victim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A fault, and the seconds from it until the next step was on record; ``source``: what the run went on from."""

    fault: Fault
    seconds: float
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """What became of a run under faults.

    ``lost`` and ``repeated``: samples of the job's steps that no counted record has, and that several have. ``replayed``: steps
    that were made again. ``pauses``: seconds that the broker measured from each loss until training went on.
    """

    recoveries: tuple[Recovery, ...]
    lost: int
    repeated: int
    replayed: int
    pauses: tuple[float, ...]

    def percentile(self, share: float, victims: Sequence[str] | None = None) -> float | None:
        """The recovery time that ``share`` (0 to 1) of the faults do not pass (None: there was none)."""
        found = sorted(one.seconds for one in self.recoveries if victims is None or one.fault.victim in victims)
        if not found:
            return None
        return (
            found[-1]
            if len(found) == 1 or share >= 1.0
            else statistics.quantiles(found, n=100, method="inclusive")[max(round(share * 100) - 1, 0)]
        )


def draw_faults(seed: int, count: int, steps: int, victims: Sequence[str]) -> tuple[Fault, ...]:
    """``count`` faults over a run of ``steps`` steps, one in the first half of each of ``count`` equal parts of it.

    Each victim has its turn before any has a second one, so that a few faults already meet all kinds of processes.

    Raises:
        ValueError: there are more faults than steps, or nobody to kill.
    """
    if not victims or count * 2 > steps:
        raise ValueError(f"{count} faults need somebody to kill and at least {count * 2} steps, got {len(victims)} and {steps}")
    chance = random.Random(seed)
    turns: list[str] = []
    while len(turns) < count:
        turns += chance.sample(list(victims), len(victims))
    part = (steps - 1) // count
    return tuple(
        Fault(after_step=index * part + chance.randrange(max(part // 2, 1)), victim=turns[index]) for index in range(count)
    )


def judge(records: Sequence[Record], recoveries: Sequence[Recovery], *, steps: int, samples: int) -> ChaosReport:
    """Count what the ``records`` of a run of ``steps`` steps of ``samples`` samples say."""
    counted = [record.step for record in committed(records) if isinstance(record, StepRecord)]
    found = [record for record in records if isinstance(record, RecoveryRecord)]
    return ChaosReport(
        recoveries=tuple(recoveries),
        lost=samples * len(set(range(steps)) - set(counted)),
        repeated=samples * (len(counted) - len(set(counted))),
        replayed=sum(record.replayed for record in found),
        pauses=tuple(record.pause for record in found),
    )
