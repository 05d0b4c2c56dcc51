"""``fuzz``: damaged inputs into every decoder for some minutes; see ``farflung.testing.fuzz`` for what counts as a fault."""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import dataclass

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from farflung.clock import Clock, MonotonicClock
from farflung.testing.fuzz import Fuzzing, fuzz_decoders, summary

__all__ = ["Fuzz", "FuzzSettings"]

_MANY = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzSettings(Settings):
    """``minutes`` of fuzzing, or ``inputs`` if that ends earlier (0: no limit)."""

    minutes: float = 10.0
    inputs: int = bounded(0)


class Fuzz:
    """Inputs, how they ended, faults."""

    name = "fuzz"
    summary = "damaged inputs into every decoder: crashes, hangs, memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()

    def settings(self, quick: bool) -> FuzzSettings:
        """Quick: 300 inputs."""
        return FuzzSettings(quick=True, inputs=300) if quick else FuzzSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Fuzz until the time is over or twenty faults are found."""
        assert isinstance(settings, FuzzSettings)
        least = f"{settings.inputs} inputs or " if settings.inputs else ""
        say(f"fuzzing for {least}{settings.minutes:g} minutes, seed {settings.seed}")
        begin = self._clock.now()
        end = begin + 60.0 * settings.minutes
        limits = Fuzzing(inputs=settings.inputs or _MANY, seed=settings.seed, until=end, clock=self._clock, hung=_hung)
        findings = fuzz_decoders(limits)
        figures = {**summary(findings), "seconds": self._clock.now() - begin}
        check = Check(
            name=f"faults in {findings.inputs} damaged inputs",
            target="none",
            measured=str(len(findings.faults)),
            passed=not findings.faults,
            note=findings.faults[0] if findings.faults else "",
        )
        rows = [(name, count) for name, count in [*sorted(findings.outcomes.items()), *sorted(findings.decoders.items())]]
        return Report(figures=figures, columns=("outcome or decoder", "inputs"), rows=rows, checks=(check,))


def _hung(text: str) -> None:
    """Nothing else ends a decoder that hangs: say which, where it stands, and end the process."""
    sys.stderr.write(text + "\n")
    faulthandler.dump_traceback(file=2)
    os._exit(3)
