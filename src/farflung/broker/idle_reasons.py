"""Why a worker is idle, in words for ``status``.

Its owner's wishes come first, then runs that wait for more workers, then running runs, the newest first: what the last search for
a better plan found (``broker.replanning``), or why there was none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.protocol.members import Member
from farflung.units import counted

__all__ = ["RunFacts", "idle_reason"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What there is to know of a run that is not over. ``needs``: idle workers that it waits for (0: it does not wait).

    ``runs``: it trains. ``looks``: a better plan is searched for while it runs. ``takes``: it may give this worker a stage.
    ``findings``: what searches found about workers that they left idle, by name.
    """

    run: str
    needs: int
    runs: bool
    looks: bool
    takes: bool
    findings: Mapping[str, str]


def idle_reason(member: Member, runs: Sequence[RunFacts]) -> str:
    """Why ``member`` is idle (empty: it is not). ``runs``: those that are not over, the oldest first."""
    if member.run is not None:
        return ""
    if member.parting:
        return "it leaves"
    if member.paused:
        return "paused by its owner"
    waiting = next((one for one in runs if one.needs), None)
    if waiting is not None:
        return f"{waiting.run} waits for {counted(waiting.needs, 'idle worker')}"
    training = next((one for one in reversed(runs) if one.runs), None)
    return "waiting for a job" if training is None else _beside(member, training)


def _beside(member: Member, run: RunFacts) -> str:
    if not run.takes:
        return f"{run.run} gives no stage to unreliable workers"
    if not run.looks:
        return f"{run.run} keeps its plan (plan.again = false)"
    return f"{run.run}: {run.findings.get(member.name) or 'a plan with it is being looked for'}"
