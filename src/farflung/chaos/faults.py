"""Chaos: things happen to processes while a run goes on, in an order drawn from a seed; what that cost, and what was lost.

The plan of faults is drawn first and is the same for the same seed: after which step what happens to which process. Who lets it
happen and watches is the caller's: this module decides when, measures, and judges the records that the run left.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from farflung.telemetry import RecoveryRecord, StepRecord, committed
from farflung.telemetry.records import Record

__all__ = ["KINDS", "ChaosReport", "Fault", "Recovery", "draw_faults", "judge"]

Thing = TypeVar("Thing")

#: What can happen to a process, and in words.
KINDS: Mapping[str, str] = {
    "kill": "SIGKILL; it is started again at once",
    "stop": "SIGSTOP, and SIGCONT after a while",
    "partition": "nothing reaches it and nothing comes from it, for a while",
    "one_way": "nothing comes from it, for a while",
    "corrupt": "a byte of what it sends is changed",
    "full_disk": "its disk is full, for a while",
    "clock_jump": "its wall clock is set forward",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``kind`` happens to ``victim`` when ``after_step`` is on record.

    ``moment``: or when it next comes to this point of ``telemetry.FAULT_POINTS``. ``seconds``: how long it lasts, or by how much
    a clock is set forward.
    """

    after_step: int
    victim: str
    kind: str = "kill"
    moment: str = ""
    seconds: float = 0.0


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

    def document(self) -> dict[str, Any]:
        """As a JSON object: every fault with its recovery, and the recovery times by kind and in all."""
        kinds = sorted({one.fault.kind for one in self.recoveries})
        parts = {kind: replace(self, recoveries=tuple(r for r in self.recoveries if r.fault.kind == kind)) for kind in kinds}
        return {
            "faults": [{**asdict(one.fault), "recovery_seconds": one.seconds} for one in self.recoveries],
            "recovery_seconds": {
                name: {
                    "count": len(part.recoveries),
                    "p50": part.percentile(0.5),
                    "p95": part.percentile(0.95),
                    "max": part.percentile(1.0),
                }
                for name, part in {**parts, "all": self}.items()
            },
            "pauses_seconds": list(self.pauses),
            "steps_replayed": self.replayed,
            "samples_lost": self.lost,
            "samples_repeated": self.repeated,
        }

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


def draw_faults(
    seed: int, count: int, steps: int, victims: Sequence[str], kinds: Sequence[tuple[str, float]] = (("kill", 0.0),)
) -> tuple[Fault, ...]:
    """``count`` faults over a run of ``steps`` steps, one in the first half of each of ``count`` equal parts of it.

    Each victim has its turn before any has a second one, so that a few faults already meet all kinds of processes; so has each of
    ``kinds`` (with their seconds). A full disk is the broker's, where there is one among the victims: nobody else writes.

    Raises:
        ValueError: there are more faults than steps, or nobody to kill.
    """
    if not victims or count * 2 > steps:
        raise ValueError(f"{count} faults need somebody to kill and at least {count * 2} steps, got {len(victims)} and {steps}")
    chance = random.Random(seed)
    turns = _turns(chance, list(victims), count)
    ways = _turns(chance, list(kinds), count) if len(kinds) > 1 else [kinds[0]] * count
    part = (steps - 1) // count
    return tuple(
        Fault(
            after_step=index * part + chance.randrange(max(part // 2, 1)),
            victim="broker" if ways[index][0] == "full_disk" and "broker" in victims else turns[index],
            kind=ways[index][0],
            seconds=ways[index][1],
        )
        for index in range(count)
    )


def _turns(chance: random.Random, things: list[Thing], count: int) -> list[Thing]:
    found: list[Thing] = []
    while len(found) < count:
        found += chance.sample(things, len(things))
    return found[:count]


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
