"""A run as the broker's machine sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from farflung.job.engine_ranges import in_ranges
from farflung.protocol.members import Member

__all__ = ["MemberFailure", "Run", "RunState"]


@dataclass(frozen=True, slots=True)
class MemberFailure:
    """``reporter`` has reported a failure of ``kind`` for which ``culprit`` is to blame (empty: it was pardoned)."""

    reporter: str
    culprit: str
    kind: str


class RunState(StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    PLANNING = "planning"
    PREPARING = "preparing"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run from its submission to its end. ``workers``: how many it asks for (None: any number)."""

    run: str
    workers: int | None
    #: It survives this many losses in a row without a new step; ``lost`` counts them.
    recoveries: int = 0
    lost: int = 0
    #: The failures since the last new step for which a member was replaced.
    failures: list[MemberFailure] = field(default_factory=list)
    #: Who submitted it (empty: unknown).
    submitter: str = ""
    #: The workers whose process died while it computed for the run, in the order in which that happened, with the cause.
    crashed: list[tuple[str, str]] = field(default_factory=list)
    #: New steps since a worker's process died last.
    steps_since_crash: int = 0
    #: The workers that could not read the data of the job: the next attempt is made by others where possible.
    lacking: set[str] = field(default_factory=set)
    #: worker -> how often it was late in this run
    late: dict[str, int] = field(default_factory=dict)
    #: Whether there was a plan for it once.
    began: bool = False
    #: Whether its watchers know that it waits for more workers since its last attempt.
    announced: bool = False
    #: A run of an earlier broker process waits for this many workers, and for those that are ``expected_names``.
    expected: int = 0
    expected_names: frozenset[str] = frozenset()
    #: No plan could be made for these after a loss, so another worker must join.
    refused: frozenset[str] = frozenset()
    #: Whether the last plan was made for ``candidates`` among the free members.
    chosen: bool = False
    #: Workers that have not dropped the last attempt yet.
    awaited: set[str] = field(default_factory=set)
    state: RunState = RunState.WAITING
    #: The workers of the current plan, and those of them that have prepared and that have ended their part.
    devices: tuple[str, ...] = ()
    prepared: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    #: The number of the current attempt (0: there was none). Reports of an earlier one are ignored.
    attempts: int = 0
    #: Whether somebody has asked to stop it.
    stopping: bool = False
    #: Why its attempt ends after the current step, and the next one begins without a worker (empty: it does not).
    migrating: str = ""
    #: Who reported the loss of a peer that ended the last attempt, until the peer is found lost.
    accuser: str = ""
    #: Whether a worker has ended it before the job's end.
    unfinished: bool = False
    #: Why it failed or was stopped (empty: it was not), and the kind of error.
    cause: str = ""
    kind: str = ""
    #: Its plans are for reliable workers only; ``unreliable`` ones help them.
    helped: bool = False
    unreliable: frozenset[str] = frozenset()
    #: The limits of its job: who gets no work, and which engines do (empty: all).
    exclude: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    #: Whether it serves a model; otherwise it trains one.
    serves: bool = False
    #: Workers without a stage that help those with one.
    helpers: set[str] = field(default_factory=set)
    #: helper -> how often it failed in this attempt
    failed_helpers: dict[str, int] = field(default_factory=dict)

    def plans_for(self, member: Member) -> bool:
        """Return whether ``member`` may have a stage; otherwise it may help."""
        return not self.helped or (member.offer.reliable and member.name not in self.unreliable)

    def allowed_by(self, member: Member) -> bool:
        """Return whether the owner of ``member`` allows this kind of run."""
        return member.offer.only in ("", "serving" if self.serves else "training")

    def bars(self, member: Member) -> bool:
        """Return whether the limits of its job leave ``member`` out."""
        named = not {member.name, member.offer.region}.isdisjoint(self.exclude)
        return named or not in_ranges(member.offer.versions.get("engine", ""), self.engines)

    @property
    def source(self) -> str:
        """Whose job makes its members misbehave, if a job does: the source of their offenses."""
        return self.submitter or self.run

    @property
    def suspects(self) -> frozenset[str]:
        """The workers whose process died: the next attempt is made by others where possible."""
        return frozenset(name for name, _ in self.crashed)

    @property
    def unsettled(self) -> bool:
        """Whether its next new steps count: they show that a loss or a crash was not its job's fault."""
        return bool(self.lost or self.crashed)

    @property
    def needs(self) -> int:
        """The number of idle workers for which it waits."""
        return max(self.workers or 1, self.expected)

    @property
    def continues(self) -> bool:
        """Whether it trains, and nobody has asked for the end of its attempt."""
        return self.state is RunState.RUNNING and not (self.migrating or self.stopping or self.ended)

    def wait(self, awaited: set[str]) -> None:
        """Its attempt is over; it waits for workers once all ``awaited`` have dropped the attempt."""
        self.state, self.awaited = RunState.WAITING, awaited
        self.devices = ()
        self.prepared.clear()
        self.ended.clear()
        self.migrating, self.unfinished = "", False
