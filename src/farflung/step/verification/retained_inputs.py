"""Inputs of units of the last steps, for the workers that verify them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.plan.verification import Unit
from farflung.step.verification.unit_inputs import UnitInputArrays

__all__ = ["RetainedInputs"]

#: Steps whose inputs are retained. No worker is more than one step ahead of another; the rest is for slow links.
_STEPS = 4
#: Inputs of units of other workers that are retained, in case that a second verifier decides.
_VERIFIED = 8


class RetainedInputs:
    """Any thread may call. ``send`` answers the worker ``peer`` and never waits."""

    def __init__(self, send: Callable[[str, Unit, UnitInputArrays | None], None]) -> None:
        self._send = send
        #: Guards all fields below. Answers are sent after it was released: the outbox has a lock of its own.
        self._lock = threading.Lock()
        self._own: dict[Unit, UnitInputArrays] = {}
        self._verified: dict[Unit, UnitInputArrays] = {}
        #: Who asked for what before the step was reported.
        self._early: set[tuple[str, Unit]] = set()
        #: Each worker gets the inputs of a unit once.
        self._answered: set[tuple[str, Unit]] = set()
        self._reported = -1

    def of(self, unit: Unit) -> UnitInputArrays:
        """Return the inputs of a unit that is computed here now; the caller adds to them (compute thread)."""
        with self._lock:
            return self._own.setdefault(unit, UnitInputArrays())

    def verified(self, unit: Unit, inputs: UnitInputArrays) -> None:
        """Retain the inputs of a unit of another worker."""
        with self._lock:
            self._verified[unit] = inputs
            while len(self._verified) > _VERIFIED:
                del self._verified[next(iter(self._verified))]

    def reported(self, step: int) -> None:
        """The digests of ``step`` are on their way to the broker: from now on its inputs are given away (compute thread)."""
        with self._lock:
            self._reported = step
            self._own = {unit: inputs for unit, inputs in self._own.items() if unit.step > step - _STEPS}
            self._answered = {one for one in self._answered if one[1].step > step - 8 * _STEPS}
            due = sorted(one for one in self._early if one[1].step <= step)
            self._early.difference_update(due)
        for peer, unit in due:  # ``wanted`` takes the lock
            self.wanted(peer, unit)

    def wanted(self, peer: str, unit: Unit) -> None:
        """``peer`` asks for the inputs of ``unit``. Before the step is reported, the answer waits."""
        with self._lock:
            if (peer, unit) in self._answered or unit.step > self._reported + _STEPS:
                return
            if unit.step > self._reported and unit not in self._verified:
                self._early.add((peer, unit))
                return
            self._answered.add((peer, unit))
            inputs = self._own.get(unit) or self._verified.get(unit)
        self._send(peer, unit, inputs)
