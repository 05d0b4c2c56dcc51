"""Members: they join, are measured, leave and are lost.

A member that wants to leave, or to be left out for a while, ends the attempt after the current step with a checkpoint, and the
next attempt begins without it. That is no loss. A member that drains serves its run to the end.
"""

from __future__ import annotations

from dataclasses import replace

from farflung.errors import InputError
from farflung.protocol.attempts import Attempts
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import (
    Command,
    DismissMember,
    HostMeasured,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberSlowed,
    MemberWants,
)
from farflung.protocol.hybrid.helper_pool import HelperPool
from farflung.protocol.members import Member, Parting
from farflung.protocol.runs import RunState

__all__ = ["Membership"]

#: A member counts as at most this many times slower than measured.
_MOST_SLOWDOWN = 100.0


class Membership:
    """Decides about members."""

    def __init__(self, state: ClusterState, attempts: Attempts, helpers: HelperPool) -> None:
        self._state, self._attempts, self._helpers = state, attempts, helpers

    def joined(self, event: MemberJoined) -> list[Command]:
        """A worker has opened its session."""
        if event.name in self._state.members:
            raise InputError(f"a worker called {event.name!r} is connected already; choose another name with --name")
        self._state.gone.pop(event.name, None)
        member = Member(name=event.name, address=event.address, offer=event.offer, generation=event.generation)
        self._state.members[event.name] = member
        return [] if event.wants is None else self.wants(event.wants)

    def wants(self, event: MemberWants) -> list[Command]:
        """The owner of a worker has other wishes."""
        member = self._state.members.get(event.name)
        if member is None:
            return []
        member.paused, member.parting = event.paused, Parting(event.parting)
        member.dismissed = member.dismissed and bool(member.parting)
        if event.memory is not None:
            member.offer = replace(member.offer, memory=event.memory)
        if not member.withdraws or member.run is None:
            return []
        run = self._state.runs[member.run]
        if member.name in run.helpers:
            return self._helpers.withdraw(run, member.name, "its owner wants it back")
        return self._attempts.leave_out(run, f"worker {member.name} {'leaves' if member.parting else 'is paused'}")

    def dismiss(self) -> list[Command]:
        """Dismiss the members that want to leave and that nobody needs."""
        free = [one for one in self._state.members.values() if one.parting and one.run is None and not one.dismissed]
        for member in free:
            member.dismissed = True
        return [DismissMember(name=member.name) for member in free]

    def measured(self, event: MemberMeasured) -> list[Command]:
        """A member has measured its device."""
        member = self._state.members.get(event.name)
        if member is not None:
            member.offer = replace(
                member.offer, speed=event.speed, factor=event.factor, overhead=event.overhead, convolution=event.convolution
            )
            member.drift = 1.0
        return []

    def host_measured(self, event: HostMeasured) -> list[Command]:
        """Members of one host have measured their devices at the same time."""
        for member in (self._state.members[name] for name in event.names if name in self._state.members):
            member.capacity, member.measured_with = event.capacity, len(event.names)
        return []

    def slowed(self, event: MemberSlowed) -> list[Command]:
        """The step times of a member count until it is measured again. It never counts as faster than measured."""
        member = self._state.members.get(event.name)
        if member is not None:
            member.drift = min(max(1.0, member.drift * event.times), _MOST_SLOWDOWN)
        return []

    def lost(self, event: MemberLost) -> list[Command]:
        """A worker's session is over."""
        member = self._state.lose(event.name, event.cause)
        for waiting in self._state.runs.values():
            waiting.refused -= {event.name}  # if it comes back, it may have more to offer
        if member is None or member.run is None:
            return []
        run = self._state.runs[member.run]
        if run.accuser and run.accuser != event.name:  # it was right
            self._state.standing.pardon(run.accuser, 1, run.source)
            run.accuser = ""
        if event.name in run.helpers:
            return self._helpers.lose(run, event.name, event.cause)
        if run.state is RunState.WAITING:
            self._attempts.free(run, event.name)
            return []
        if event.name in run.ended:
            return []  # its part is done; nobody needs it any more
        if run.state is RunState.PLANNING:  # nothing was sent yet
            self._attempts.wait(run)
            return []
        return self._attempts.lose(run, f"worker {event.name} is gone: {event.cause.removeprefix(f'lost {event.name}: ')}")
