"""States that workers retain of a run after a loss, and the step from which the run continues: data and choices, no I/O.

Source: two-phase commit. A worker is *ready* with a step when its gradients are complete and retained. It applies the step only
once all workers are ready. So workers are at most one step apart, and a worker behind one that has applied the step can apply it,
too. Nobody needs a second copy to undo a step. Differences: there is no coordinator of the commit (see
``step.two_phase_commit``), and the choice after a loss uses what is left, whichever worker died. Cost of a choice:
O(retained_states x states).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

__all__ = ["Decision", "Resume", "RetainedState", "ahead", "believable", "choose", "moves"]

#: Steps by which a worker may be ahead of what others have reported: it is one step ahead, and one report is on its way.
_UNREPORTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a step ended: ``applied`` (otherwise it was skipped), and the factor that clipped its gradients (None: unclipped)."""

    applied: bool = True
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedState:
    """``states`` (names; their optimizer slots belong to them) as they are after ``step`` steps, ``committed`` of which count.

    ``ready``: the next step's gradients are retained, so that step can be applied. ``decision``: how the last step before
    ``step`` ended. ``copied``: it is a copy of another worker's stage, or an older state of its own stage.
    """

    step: int
    committed: int
    states: frozenset[str]
    ready: bool = False
    decision: Decision | None = None
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The run continues after ``step`` steps, ``committed`` of which count. ``holders``: state -> workers that have it then.

    ``decision``: how workers that are ready end the step before. ``copied``: some state exists as a copy only.
    """

    step: int
    committed: int
    decision: Decision | None = None
    copied: bool = False
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def choose(held: Mapping[str, Sequence[RetainedState]], needed: Iterable[str]) -> Resume | None:
    """Return the newest step whose ``needed`` states the workers in ``held`` retain together (None: there is none)."""
    wanted = frozenset(needed)
    everything = [(name, retained_state) for name, retained_states in held.items() for retained_state in retained_states]
    for step in sorted({retained_state.step for _, retained_state in everything}, reverse=True):
        outright = [retained_state for _, retained_state in everything if retained_state.step == step]
        decision = next((retained_state.decision for retained_state in outright if retained_state.decision is not None), None)
        holders: dict[str, list[str]] = {}
        original: set[str] = set()
        for name, retained_state in everything:
            if retained_state.step == step or (retained_state.ready and retained_state.step == step - 1 and decision is not None):
                for state in retained_state.states & wanted:
                    holders.setdefault(state, [])
                    if name not in holders[state]:
                        holders[state].append(name)
                if not retained_state.copied:
                    original |= retained_state.states
        if wanted <= set(holders):
            return Resume(
                step=step,
                committed=outright[0].committed,
                decision=decision,
                copied=not wanted <= original,
                holders={state: tuple(names) for state, names in holders.items()},
            )
    return None


def believable(held: Mapping[str, Sequence[RetainedState]], reached: Mapping[str, int]) -> dict[str, list[RetainedState]]:
    """Return those of ``held`` that somebody else confirms: no worker is more than a step ahead of another one.

    ``reached``: worker of the last plan -> the number of steps that it has reported, which may be fewer than it has made.
    """
    found: dict[str, list[RetainedState]] = {}
    for name, states in held.items():
        others = [count for other, count in reached.items() if other != name]
        others += [one.step + one.ready for other, claims in held.items() if other != name for one in claims]
        limit = max(others) + _UNREPORTED if others else None  # a plan of one worker has no witness
        found[name] = [one for one in states if limit is None or one.step <= limit]
    return found


def moves(resume: Resume, wants: Mapping[str, Iterable[str]], sizes: Mapping[str, int]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return which states move: device -> worker that has them -> states. A device keeps the states that it has.

    ``wants``: device -> the states of its stages. ``sizes``: bytes of each state. Of several workers that have a state, the one
    that sends least sends it.
    """
    given: dict[str, int] = {}
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for device, states in wants.items():
        parts: dict[str, list[str]] = {}
        for state in sorted(set(states) & set(resume.holders), key=lambda state: (-sizes.get(state, 0), state)):
            holders = resume.holders[state]
            if device not in holders:
                holder = min(holders, key=lambda name: (given.get(name, 0), name))
                given[holder] = given.get(holder, 0) + sizes.get(state, 0)
                parts.setdefault(holder, []).append(state)
        found[device] = {holder: tuple(names) for holder, names in parts.items()}
    return found


def ahead(retained_state: RetainedState, decision: Decision) -> RetainedState:
    """Return ``retained_state`` after the step with which it was ready."""
    committed = retained_state.committed + decision.applied
    return replace(retained_state, step=retained_state.step + 1, committed=committed, ready=False, decision=decision)
