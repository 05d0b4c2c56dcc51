"""Who lies about a unit of work: a decision from digests that workers committed to and from what verifiers computed.

| first verifier against the worker's digests       | decision                                                             |
| ------------------------------------------------- | -------------------------------------------------------------------- |
| same inputs, same results                         | verified, if the other ends of its links report the same digests     |
| same inputs, other results; a second verifier     | the second one computes the unit, too; who is alone lies             |
| same inputs, other results; no second verifier    | a dispute of two                                                     |
| other inputs, or none                             | a dispute of two: nobody knows what was sent                         |
| the second verifier comes too late to compute     | a dispute of the worker and the first verifier                       |

A dispute names nobody. Cost: the digests of the steps that are retained, and a few comparisons for each unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.messages.conversions.step_reports import StepReport
from farflung.plan.model import Plan
from farflung.plan.verification import Audit, Digests, Transfer, TransferKind, Unit, verifiers

__all__ = ["Disputed", "Finding", "Forged", "SecondOpinion", "UnitVerdicts"]

#: Steps whose digests are retained.
_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """The results of ``name`` for ``unit`` differ from those of the others, which are equal."""

    name: str
    unit: Unit
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disputed:
    """One of ``names`` lies about ``unit``, and nobody knows which one."""

    names: tuple[str, ...]
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """``name`` should compute ``unit``, too, with the inputs that ``verifier`` has."""

    name: str
    unit: Unit
    verifier: str


Finding = Forged | Disputed | SecondOpinion


@dataclass(frozen=True, slots=True)
class _Commitment:
    """What one worker gave and took in a step, by its report."""

    gave: Digests
    took: Digests


class UnitVerdicts:
    """The units of one attempt by ``plan``. Not thread-safe."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        #: step -> worker -> its digests
        self._commitments: dict[int, dict[str, _Commitment]] = {}
        #: What verifiers found for units without a decision.
        self._audits: dict[Unit, dict[str, Audit]] = {}
        #: Units of which a second opinion was asked for.
        self._asked: set[Unit] = set()
        #: Units that were verified and equal.
        self.verified = 0

    def report(self, name: str, report: StepReport) -> list[Finding]:
        """Take the digests and audits in the step report of ``name``; return what follows."""
        self._commitments.setdefault(report.step, {})[name] = _Commitment(report.gave, report.took)
        for old in sorted(self._commitments)[:-_STEPS]:
            del self._commitments[old]
            self._audits = {unit: found for unit, found in self._audits.items() if unit.step != old}
        for audit in report.audits:
            if audit.unit.step in self._commitments and name in self._verifiers(audit.unit):
                self._audits.setdefault(audit.unit, {})[name] = audit
        due = [unit for unit in self._audits if len(self._commitments[unit.step]) == len(self._plan.devices)]
        return [finding for unit in due for finding in self._judge(unit)]

    def _verifiers(self, unit: Unit) -> tuple[str, ...]:
        known = unit.stage < len(self._plan.stages) and unit.micro_batch < len(self._plan.micro_batch_sizes)
        return verifiers(self._plan, unit)[:2] if known else ()

    def _judge(self, unit: Unit) -> list[Finding]:
        """Decide about ``unit``, of whose step all reports are here."""
        worker, (first, *second) = self._worker(unit), self._verifiers(unit)
        own, audits = self._of_unit(unit), self._audits[unit]
        audit = audits.get(first)
        if audit is None:
            del self._audits[unit]  # nobody has asked the second one
            return []
        if audit.took != own.took:
            return self._end(unit, Disputed(names=(worker, first), unit=unit))
        if audit.gave == own.gave:
            return self._end(unit, *self._links(unit, own))
        if not second:
            return self._end(unit, Disputed(names=(worker, first), unit=unit))
        other = audits.get(second[0])
        if other is None:
            asked = unit in self._asked
            self._asked.add(unit)
            return [] if asked else [SecondOpinion(name=second[0], unit=unit, verifier=first)]
        if not other.gave:  # it has no inputs, or no states of that step any more
            return self._end(unit, Disputed(names=(worker, first), unit=unit))
        if other.took != own.took:
            return self._end(unit, Disputed(names=(first, second[0]), unit=unit))
        if other.gave == own.gave:
            return self._end(unit, Forged(name=first, unit=unit, others=(worker, second[0])))
        if other.gave == audit.gave:
            return self._end(unit, Forged(name=worker, unit=unit, others=(first, second[0])))
        return self._end(unit, Disputed(names=(worker, first, second[0]), unit=unit))

    def _end(self, unit: Unit, *findings: Finding) -> list[Finding]:
        del self._audits[unit]
        self._asked.discard(unit)
        self.verified += not findings
        return list(findings)

    def _links(self, unit: Unit, own: _Commitment) -> list[Finding]:
        """Compare what the worker of ``unit`` gave and took with what the other ends of its links report."""
        found: list[Finding] = []
        for transfers, other_end in ((own.took, _giver), (own.gave, _taker)):
            for transfer, digest in transfers.items():
                if transfer.kind is TransferKind.PART:
                    continue
                peer = self._plan.device_of(other_end(transfer), unit.micro_batch)
                theirs = self._commitments[unit.step][peer]
                said = (theirs.gave if other_end is _giver else theirs.took).get(transfer)
                if said != digest:
                    found.append(Disputed(names=(self._worker(unit), peer), unit=unit))
        return found[:1]

    def _worker(self, unit: Unit) -> str:
        return self._plan.device_of(unit.stage, unit.micro_batch)

    def _of_unit(self, unit: Unit) -> _Commitment:
        """Return what the worker of ``unit`` reports of it."""
        both = self._commitments[unit.step][self._worker(unit)]

        def own(digests: Mapping[Transfer, bytes], stage: str) -> dict[Transfer, bytes]:
            return {at: d for at, d in digests.items() if at.micro_batch == unit.micro_batch and getattr(at, stage) == unit.stage}

        return _Commitment(own(both.gave, "source"), own(both.took, "target"))


def _giver(transfer: Transfer) -> int:
    return transfer.source


def _taker(transfer: Transfer) -> int:
    return transfer.target
