"""The broker's decisions as a pure state machine: events in, commands out; no clock, no socket, no file.

A run is *waiting* (for workers), *planning*, *preparing*, *running*, then *done*, *stopped* or *failed*. A member works on at
most one run. The parts of the machine share ``ClusterState``:

- ``membership``: members join, leave and are lost.
- ``run_queue``: which waiting run gets which members.
- ``attempts``: an attempt from its plan to its end, a loss or a better plan.
- ``hybrid``: which unreliable members help which run.
- ``conduct``: members that misbehave; ``standing``: what that costs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farflung.protocol.attempts import Attempts
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.conduct import Conduct
from farflung.protocol.events import (
    BetterPlan,
    Command,
    Event,
    HelperMoves,
    HostMeasured,
    MemberJoined,
    MemberLate,
    MemberLied,
    MemberLost,
    MemberMeasured,
    MemberReset,
    MemberSlowed,
    MemberSpoilt,
    MemberWants,
    PlanMade,
    RunAdvanced,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    RunRestored,
    RunStalled,
    RunSubmitted,
    StopRequested,
    WaitedEnough,
)
from farflung.protocol.hybrid.helper_pool import HelperPool
from farflung.protocol.members import Gone, Member
from farflung.protocol.membership import Membership
from farflung.protocol.run_queue import RunQueue
from farflung.protocol.runs import Run, RunState
from farflung.protocol.standing import StandingRecord

__all__ = ["BrokerMachine", "Member", "Run", "RunState"]


class BrokerMachine:
    """Members and runs; ``handle`` is the only way to change them."""

    def __init__(self) -> None:
        self._state = state = ClusterState()
        self._helpers = helpers = HelperPool(state)
        attempts = Attempts(state, helpers)
        self._queue = queue = RunQueue(state, attempts)
        conduct = Conduct(state, attempts)
        self._membership = membership = Membership(state, attempts, helpers)
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            MemberJoined: membership.joined,
            MemberLost: membership.lost,
            MemberMeasured: membership.measured,
            HostMeasured: membership.host_measured,
            MemberSlowed: membership.slowed,
            MemberWants: membership.wants,
            RunSubmitted: queue.submitted,
            RunRestored: queue.restored,
            WaitedEnough: queue.waited,
            RunAdvanced: attempts.advanced,
            BetterPlan: attempts.better,
            PlanMade: attempts.planned,
            RunPrepared: attempts.prepared,
            RunDropped: attempts.dropped,
            RunEnded: attempts.ended,
            RunFailed: conduct.failed,
            StopRequested: attempts.stop,
            MemberLied: conduct.lied,
            MemberLate: conduct.late,
            MemberSpoilt: conduct.spoilt,
            RunStalled: conduct.stalled,
            MemberReset: conduct.reset,
            HelperMoves: helpers.moved,
        }

    @property
    def members(self) -> dict[str, Member]:
        """The present members by name."""
        return self._state.members

    @property
    def runs(self) -> dict[str, Run]:
        """All runs by name, in the order of submission."""
        return self._state.runs

    @property
    def gone(self) -> dict[str, Gone]:
        """The members that were lost recently, the latest last."""
        return self._state.gone

    def handle(self, event: Event) -> list[Command]:
        """Take one event; the commands are to be carried out in order.

        Raises:
            InputError: the event names a run that does not exist, or a name that is taken.
        """
        commands = self._handlers[type(event)](event)
        # in this order: a helper that is released may be assigned to a waiting run, and only then leave
        commands += self._helpers.release_unneeded()
        commands += self._queue.start()
        commands += self._helpers.ask()
        commands += self._membership.dismiss()
        self._state.validate()
        return commands

    def waiting(self) -> list[Run]:
        """See ``ClusterState.waiting``."""
        return self._state.waiting()

    def absent(self, run: Run) -> list[str]:
        """See ``ClusterState.absent``."""
        return self._state.absent(run)

    def barred(self, *, serves: bool) -> list[str]:
        """See ``ClusterState.barred``."""
        return self._state.barred(serves=serves)

    def may_take(self, run: str, member: Member, restored: Sequence[Run] | None = None) -> bool:
        """See ``ClusterState.may_take``."""
        return self._state.may_take(run, member, restored)

    def may_help(self, run: str) -> list[Member]:
        """Return the members that help ``run``, or may help it when it trains."""
        return self._helpers.able(self._state.runs[run])

    def restored(self) -> list[Run]:
        """See ``ClusterState.restored``."""
        return self._state.restored()

    def standing(self, name: str) -> str:
        """Return why the member ``name`` is planned last or not at all, or lost points, for people (empty: it did not)."""
        return self._state.standing.text(name)

    def planned_last(self, name: str) -> bool:
        """See ``Standing.last``."""
        return self._state.standing.last(name)

    def standing_changes(self) -> dict[str, StandingRecord | None]:
        """See ``Standing.changes``."""
        return self._state.standing.changes()

    def restore_standing(self, records: Mapping[str, StandingRecord]) -> None:
        """See ``Standing.restore``."""
        self._state.standing.restore(records)

    def restore_gone(self, gone: Mapping[str, Gone]) -> None:
        """See ``ClusterState.restore_gone``."""
        self._state.restore_gone(gone)

    def forget(self, run: str) -> None:
        """See ``ClusterState.forget``."""
        self._state.forget(run)

    def validate(self) -> None:
        """See ``ClusterState.validate``."""
        self._state.validate()
