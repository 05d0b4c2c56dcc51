"""Why a worker is idle, as a text for ``farflung status``.

The wishes of its owner come first, then runs that wait for more workers, then running runs, the newest first: what the last
search for a better plan found (``attempts.replanner``), or why there was no search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.protocol.members import Member
from farflung.units import counted

__all__ = ["RunFacts", "idle_reason"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run that is not over, as one idle worker sees it.

    ``needs``: idle workers that it waits for (0: it does not wait, or not for this one). ``absent``: the workers of its plan that
    have not returned since the broker restarted. ``trains``: it trains now. ``replans``:
    its job allows better plans. ``gives_stage``: this worker may have a stage. ``findings``: why searches left workers idle, by
    name.
    """

    run: str
    needs: int
    trains: bool
    replans: bool
    gives_stage: bool
    findings: Mapping[str, str]
    absent: Sequence[str] = ()


def idle_reason(member: Member, runs: Sequence[RunFacts]) -> str:
    """Return why ``member`` is idle (empty: it is not). ``runs``: the runs that are not over, the oldest first."""
    if member.run is not None:
        return ""
    if member.parting:
        return "it leaves"
    if member.paused:
        return "paused by its owner"
    waiting = next((one for one in runs if one.needs), None)
    if waiting is not None and waiting.absent:
        return f"{waiting.run} waits for {', '.join(waiting.absent)} to return"
    if waiting is not None:
        return f"{waiting.run} waits for {counted(waiting.needs, 'idle worker')}"
    training = next((one for one in reversed(runs) if one.trains), None)
    if training is None:
        return f"waiting for a job (join --only {member.offer.only})" if member.offer.only else "waiting for a job"
    return _unused_by(member, training)


def _unused_by(member: Member, run: RunFacts) -> str:
    if not run.gives_stage:
        return f"{run.run} gives no stage to unreliable workers"
    if not run.replans:
        return f"{run.run} keeps its plan (plan.again = false)"
    return f"{run.run}: {run.findings.get(member.name) or 'a plan with it is being looked for'}"
