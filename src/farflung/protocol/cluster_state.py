"""Members and runs, and which member works on which run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farflung.errors import InputError
from farflung.protocol.members import Gone, Member
from farflung.protocol.runs import Run, RunState
from farflung.protocol.standing import Standing

__all__ = ["ClusterState"]

#: A run is not planned for a member that was late in so many of its attempts.
_LATE = 2
#: Lost members that are remembered.
_MOST_GONE = 50


class ClusterState:
    """The state that the parts of the broker's machine share. Not thread-safe."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.runs: dict[str, Run] = {}
        #: The members that were lost recently, the latest last.
        self.gone: dict[str, Gone] = {}
        self.standing = Standing()

    def run(self, name: str) -> Run:
        """Return the run ``name``.

        Raises:
            InputError: there is no such run.
        """
        try:
            return self.runs[name]
        except KeyError:
            known = ", ".join(self.runs) or "none"
            raise InputError(f"there is no run {name!r}; known runs: {known}") from None

    def serves(self, name: str, run: Run) -> bool:
        """Return whether the member ``name`` works on ``run``."""
        member = self.members.get(name)
        return member is not None and member.run == run.run

    def workers_of(self, run: Run) -> list[str]:
        """Return the devices of the plan of ``run`` that work on it."""
        return [name for name in run.devices if self.serves(name, run)]

    def release(self, run: Run, name: str) -> None:
        """The member ``name`` works on ``run`` no more. It may have left, come back and work on another run."""
        if self.serves(name, run):
            self.members[name].run = None

    def release_all(self, run: Run) -> None:
        """Nobody works on ``run`` any more."""
        for name in self.members:
            self.release(run, name)

    def may_take(self, name: str, member: Member, restored: Sequence[Run] | None = None) -> bool:
        """Return whether ``member`` is free for the run ``name``: it is ready, its owner allows the run, and no restored run
        waits for it.

        A restored run has the first right to the members that it expects by name, and to all members if it expects none.
        ``restored``: what ``restored`` returned, for callers that ask often.
        """
        run = self.runs[name]
        if self.standing.quarantined(member.name) or run.late.get(member.name, 0) >= _LATE or not run.allowed_by(member):
            return False
        if not member.ready or member.name in run.expected_names:
            return member.ready
        others = (one for one in (self.restored() if restored is None else restored) if one is not run and one.allowed_by(member))
        return not any(member.name in one.expected_names or not (one.expected_names or run.expected) for one in others)

    def restored(self) -> list[Run]:
        """Return the restored runs that wait for their workers."""
        return [one for one in self.runs.values() if one.expected and one.state is RunState.WAITING]

    def left_out(self, run: Run) -> bool:
        """Return whether a free member was left out of the plan of ``run`` because of its standing, its data, or a crash."""
        outside = [one for name, one in self.members.items() if name not in run.devices and self.may_take(run.run, one)]
        return any(run.crashed or one.name in run.lacking or self.standing.last(one.name) for one in outside)

    def waiting(self) -> list[Run]:
        """Return the runs that wait for workers, in the order of submission."""
        return [one for one in self.runs.values() if one.state is RunState.WAITING]

    def absent(self, run: Run) -> list[str]:
        """Return the workers that the restored ``run`` waits for by name, and that are not back and ready."""
        expected = run.expected_names if run.state is RunState.WAITING else ()
        return sorted(name for name in expected if name not in self.members or not self.members[name].ready)

    def barred(self, *, serves: bool) -> list[str]:
        """Return the idle members whose owners allow no run that serves, or (``serves`` is false) that trains."""
        kind = "serving" if serves else "training"
        return sorted(name for name, one in self.members.items() if one.ready and one.offer.only not in ("", kind))

    def lose(self, name: str, cause: str) -> Member | None:
        """Remove the member ``name`` and return it (None: there is none)."""
        member = self.members.pop(name, None)
        if member is not None:
            self.restore_gone({name: Gone(name=name, generation=member.generation, cause=cause)})
        return member

    def restore_gone(self, gone: Mapping[str, Gone]) -> None:
        """Remember ``gone``, of earlier lives of the broker too; the latest stay."""
        self.gone |= {name: one for name, one in gone.items() if name not in self.members}
        while len(self.gone) > _MOST_GONE:
            del self.gone[next(iter(self.gone))]

    def forget(self, run: str) -> None:
        """Forget a run that is over."""
        if run in self.runs:
            assert self.runs[run].state.over, f"{run} is not over"
            del self.runs[run]

    def validate(self) -> None:
        """Check the machine's own invariants (a failure is a defect of this package)."""
        for member in self.members.values():
            assert member.run is None or not self.runs[member.run].state.over, f"{member.name} serves a run that is over"
        for run in self.runs.values():
            assert run.prepared <= set(run.devices), f"{run.run}: prepared workers outside the plan"
            assert run.ended <= set(run.devices), f"{run.run}: workers outside the plan have ended it"
            if run.state in (RunState.PREPARING, RunState.RUNNING):
                for name in set(run.devices) - run.ended:
                    assert name in self.members, f"{run.run} runs on {name}, who is gone"
                    assert self.members[name].run == run.run, f"{run.run} runs on {name}, who serves {self.members[name].run}"
            assert not run.helpers & set(run.devices), f"{run.run}: a helper has a part in the plan"
            assert all(self.serves(name, run) for name in run.helpers), f"{run.run}: a helper is gone, or serves another run"
