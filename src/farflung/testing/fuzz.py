"""Fuzzing of every decoder: damaged inputs in, a named error or what was declared out (``decoders`` lists them).

Half of the inputs are payloads of a random codec and array, damaged in one to four places: fields, shape, element type, sections
(flipped, cut, extended, exchanged with another payload's), or bytes of the frame, whose checksums are then made right again,
because a hostile sender can do that too. The others are copies of state, codings of indices, messages of memories and of links
that remember samples, values and arrays on the wire, frames (whole and as a stream) and their headers. What is held against each:
no warning and no other exception than the decoder's own errors, one line of text, no more processor time of the decoding thread
than ``MAX_SECONDS`` and no more memory than ``MEMORY_FACTOR`` times what input and declared array take. The clock on the wall
says how busy the machine is, so it counts from ``MAX_WALL_SECONDS`` only, as a hang; ``hung`` is told while the decoder still
hangs. The same seed gives the same inputs.
"""

from __future__ import annotations

import threading
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farflung.clock import Clock, MonotonicClock, ThreadClock
from farflung.testing.decoders import Case, some_case
from farflung.thread_group import ThreadGroup

__all__ = ["MAX_SECONDS", "MAX_WALL_SECONDS", "MEMORY_FACTOR", "Findings", "Fuzzing", "fuzz_decoders", "summary"]

#: Seconds of the decoding thread's processor time; seconds on the wall, after which a decoder counts as hanging.
MAX_SECONDS = 5.0
MAX_WALL_SECONDS = 900.0
MEMORY_FACTOR = 40
_MEMORY_FLOOR = 1 << 20
_MOST_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzing:
    """``inputs`` of ``seed``, or as many as can be begun before ``until`` on ``clock``.

    ``processor`` tells the decoding thread's processor time. ``hung`` is called from another thread, with a line of text, once an
    input has been under way for ``MAX_WALL_SECONDS`` (None: nobody watches).
    """

    inputs: int
    seed: int = 0
    until: float = float("inf")
    clock: Clock = field(default_factory=MonotonicClock)
    processor: Clock = field(default_factory=ThreadClock)
    hung: Callable[[str], None] | None = None


@dataclass(slots=True)
class Findings:
    """What a fuzzing found: inputs, how they ended, and the first faults in words (none is what one wants)."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    decoders: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    slowest_wall_seconds: float = 0.0
    most_memory_factor: float = 0.0


class Watch:
    """Looks from beside whether an input hangs; ``look`` says so once for each input."""

    def __init__(self, fuzzing: Fuzzing) -> None:
        self._fuzzing = fuzzing
        self._under_way: tuple[int, float] | None = None
        self._over = threading.Event()

    def begin(self, number: int | None) -> None:
        """Input ``number`` begins (None: none is under way)."""
        self._under_way = None if number is None else (number, self._fuzzing.clock.now())

    def look(self) -> None:
        """Call ``hung`` if the input under way began ``MAX_WALL_SECONDS`` ago."""
        if self._under_way is None or self._fuzzing.hung is None:
            return
        number, begun = self._under_way
        if self._fuzzing.clock.now() - begun > MAX_WALL_SECONDS:
            self._under_way = None
            self._fuzzing.hung(f"seed {self._fuzzing.seed}, input {number}: fault: hangs for {MAX_WALL_SECONDS:g} s")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every some seconds, on a thread of its own."""
        if self._fuzzing.hung is None:
            yield
            return
        threads = ThreadGroup()
        threads.spawn("fuzz-watch", self._keep_looking)
        try:
            yield
        finally:
            self._over.set()
            threads.join()

    def _keep_looking(self) -> None:
        while not self._over.wait(5.0):
            self.look()


def fuzz_decoders(fuzzing: Fuzzing) -> Findings:
    """Decode damaged inputs until one of the limits of ``fuzzing``, or twenty faults."""
    findings, watch = Findings(), Watch(fuzzing)
    started = tracemalloc.is_tracing()
    if not started:
        tracemalloc.start()
    try:
        with warnings.catch_warnings(), watch.watching():
            warnings.simplefilter("error")
            for number in range(fuzzing.inputs):
                if fuzzing.clock.now() >= fuzzing.until or len(findings.faults) >= _MOST_FAULTS:
                    break
                _fuzz_one(fuzzing, number, findings, watch)
    finally:
        if not started:
            tracemalloc.stop()
    return findings


def _fuzz_one(fuzzing: Fuzzing, number: int, findings: Findings, watch: Watch) -> None:
    """Input ``number``: make it, decode it, and add what happened to ``findings``."""
    case = some_case(np.random.default_rng([fuzzing.seed, number]))
    watch.begin(number)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    wall, begin = fuzzing.clock.now(), fuzzing.processor.now()
    outcome = _decode(case)
    spent, waited = fuzzing.processor.now() - begin, fuzzing.clock.now() - wall
    used = tracemalloc.get_traced_memory()[1] - before
    factor = (used - _MEMORY_FLOOR) / (case.nbytes + case.declared + 1)
    if factor > MEMORY_FACTOR:  # a table of the interpreter may have grown just now; what an input takes, it takes each time
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        _decode(case)
        used = min(used, tracemalloc.get_traced_memory()[1] - before)
        factor = (used - _MEMORY_FLOOR) / (case.nbytes + case.declared + 1)
    watch.begin(None)
    if spent > MAX_SECONDS:
        outcome = f"fault: took {spent:.1f} s of the processor"
    elif waited > MAX_WALL_SECONDS:
        outcome = f"fault: hung for {waited:.0f} s"
    elif factor > MEMORY_FACTOR:
        outcome = f"fault: took {used} bytes for an input of {case.nbytes} that declares {case.declared}"
    findings.inputs += 1
    findings.outcomes[outcome.partition(":")[0]] += 1
    findings.decoders[case.decoder] += 1
    findings.slowest_seconds = max(findings.slowest_seconds, spent)
    findings.slowest_wall_seconds = max(findings.slowest_wall_seconds, waited)
    findings.most_memory_factor = max(findings.most_memory_factor, factor)
    if outcome.startswith("fault"):
        findings.faults.append(f"seed {fuzzing.seed}, input {number}, {case.decoder}: {outcome}")


def _decode(case: Case) -> str:
    """How it ended."""
    try:
        wrong = case.decode()
    except case.refuses as error:
        return "refused" if len(str(error).splitlines()) == 1 else f"fault: an error of several lines {error!r:.200}"
    except Exception as error:  # noqa: BLE001 - finding what else can be raised is the purpose
        return f"fault: {type(error).__name__}: {error!s:.200}"
    return f"fault: {wrong}" if wrong else "decoded"


def summary(findings: Findings) -> Mapping[str, Any]:
    """As plain values for JSON."""
    return {
        "inputs": findings.inputs,
        "outcomes": dict(sorted(findings.outcomes.items())),
        "decoders": dict(sorted(findings.decoders.items())),
        "faults": list(findings.faults),
        "slowest_seconds": findings.slowest_seconds,
        "slowest_wall_seconds": findings.slowest_wall_seconds,
        "most_memory_factor": findings.most_memory_factor,
    }
