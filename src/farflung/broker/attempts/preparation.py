"""What workers receive before an attempt begins."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import asdict

from farflung.broker.planning.attempt_start import Start
from farflung.broker.planning.planned import Planned
from farflung.messages.commands import AttemptMessage, CopyRounds
from farflung.messages.submission import Bundle, with_plan

__all__ = ["preparation_of"]


def preparation_of(bundle: Bundle, planned: Planned, start: Start, *, submitter: str, recovered: bool) -> AttemptMessage:
    """Return what every worker of the run receives, without its own name and the addresses of its peers.

    ``recovered``: whether the run has trained before.
    """
    job = replace(bundle, files={}).to_message()
    protection = planned.protection(bundle.job)
    rounds = CopyRounds(every=protection.every, guards=dict(protection.guards), least=protection.least, budget=protection.budget)
    message = AttemptMessage(
        **asdict(job),
        first_step=start.step,
        committed=start.committed,
        attempt=start.attempt,
        states=start.source,
        checkpoint_step=start.kept[0],
        checkpoint_committed=start.kept[1],
        recovered=recovered,
        submitter=submitter,
        rounds=rounds,
    )
    return with_plan(message, planned.plan_json)
