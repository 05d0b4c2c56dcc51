"""``fuzz-decoders``: inputs for every decoder, which libFuzzer (atheris) chooses by the code that they reach.

The decoders take turns. Each turn is a process of its own, which a fault ends: an exception that is none of farflung's, a crash,
a hang, or more memory than an input may take (``decoders.fuzzer``). The inputs that reach new code stay in a folder, which later
turns begin with. A decoder with a fault has no further turns until it takes the input of the fault: each round begins with the
code as it is then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.faults.decoders.catalog import TARGETS
from benchmarks.faults.fuzz_graphs import describe_end
from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.child_processes import end_all
from farflung.clock import Clock, MonotonicClock
from farflung.errors import InputError, TrainingError

__all__ = ["FuzzDecoders", "FuzzDecodersSettings"]

#: Seconds on the wall of a busy machine, after which an input hangs. Its limit on the processor is lower.
_HANG = 300
_RUNS = re.compile(r"Done (\d+) runs|^#(\d+)", re.MULTILINE)
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzDecodersSettings(Settings):
    """``minutes`` in all, ``turn``: seconds of a turn. ``only``: the targets (none: all). ``corpus``: the folder of inputs to
    begin with and to add to (empty: a temporary one)."""

    minutes: float = 60.0
    turn: float = 60.0
    only: tuple[str, ...] = ()
    corpus: str = ""


@dataclass(slots=True)
class _Tally:
    """What is known of one target: ``open`` and ``mended``: faults, in words."""

    inputs: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    edges: int = 0
    features: int = 0
    open: dict[Path, str] = field(default_factory=dict)
    mended: list[str] = field(default_factory=list)


class FuzzDecoders:
    """Inputs, reached code and faults of each decoder."""

    name = "fuzz-decoders"
    summary = "coverage-guided fuzzing of every decoder of foreign bytes: exceptions, crashes, hangs, memory"

    def __init__(self, clock: Clock | None = None, program: Sequence[str] = ("-m", "benchmarks.faults.decoders.fuzzer")) -> None:
        """``program``: what Python runs in the child."""
        self._clock, self._program = clock or MonotonicClock(), program

    def settings(self, quick: bool) -> FuzzDecodersSettings:
        """Quick: two targets, 3 seconds each."""
        if quick:
            return FuzzDecodersSettings(quick=True, minutes=0.1, turn=3.0, only=("payload", "plan"))
        return FuzzDecodersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Fuzz until the time is over.

        Raises:
            InputError: atheris is not installed, or a target is unknown.
        """
        assert isinstance(settings, FuzzDecodersSettings)
        if find_spec("atheris") is None:
            raise InputError("fuzz-decoders needs atheris: pip install 'farflung[fuzz]'")
        if unknown := sorted(set(settings.only) - TARGETS.keys()):
            raise InputError(f"unknown target {unknown[0]!r}: known are {', '.join(TARGETS)}")
        tallies = {name: _Tally() for name in settings.only or TARGETS}
        begin = self._clock.now()
        with tempfile.TemporaryDirectory(prefix="farflung-fuzz-") as temporary:
            corpus = Path(settings.corpus or temporary)
            _write_seeds(corpus, tallies)
            rounds = 0
            while begin + 60.0 * settings.minutes - self._clock.now() > 1.0:
                with self._fuzzer(corpus) as fuzzer:
                    for name, tally in tallies.items():
                        _replay(fuzzer, name, tally, say)
                        left = begin + 60.0 * settings.minutes - self._clock.now()
                        if left > 1.0 and not tally.open:
                            self._turn(fuzzer, name, tally, [min(left, settings.turn), settings.seed + 1 + rounds], say)
                rounds += 1
            with self._fuzzer(corpus) as fuzzer:
                for name, tally in tallies.items():
                    _replay(fuzzer, name, tally, say)
        return _report(tallies, self._clock.now() - begin)

    @contextmanager
    def _fuzzer(self, corpus: Path) -> Iterator[_Fuzzer]:
        words = [sys.executable, *self._program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (corpus / "fuzzer.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter
                words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        with process:  # which closes its pipes
            fuzzer = _Fuzzer(process, corpus)
            try:
                fuzzer.answer()  # it has imported the decoders
                yield fuzzer
            finally:
                end_all([process], 5.0)

    def _turn(self, fuzzer: _Fuzzer, name: str, tally: _Tally, limits: Sequence[float], say: Say) -> None:
        """Fuzz one target for ``limits[0]`` seconds with the seed ``limits[1]``."""
        kept = fuzzer.corpus / "faults" / name
        kept.mkdir(parents=True, exist_ok=True)
        begin = self._clock.now()
        words = [f"-max_total_time={max(int(limits[0]), 1)}", f"-seed={int(limits[1])}", f"-artifact_prefix={kept}/"]
        status, processor, text = fuzzer.run(name, [str(fuzzer.corpus / name), *words, f"-timeout={_HANG}", "-rss_limit_mb=4096"])
        tally.seconds += self._clock.now() - begin
        tally.processor_seconds += processor
        tally.inputs += max((int(done or at) for done, at in _RUNS.findall(text)), default=0)
        for edges, features in _COVERAGE.findall(text)[-1:]:
            tally.edges, tally.features = max(tally.edges, int(edges)), max(tally.features, int(features))
        if status:
            newest = max(kept.iterdir(), key=lambda path: path.stat().st_mtime, default=kept / "none")
            tally.open[newest] = describe_end(status, text)
            say(f"{name}: {tally.open[newest]}, input {newest}")


@dataclass(frozen=True, slots=True)
class _Fuzzer:
    """The process ``decoders.fuzzer``, and the folder of inputs."""

    process: subprocess.Popen[str]
    corpus: Path

    def run(self, name: str, words: Sequence[str]) -> tuple[int, float, str]:
        """Let libFuzzer run with ``words`` over the target ``name``; return its status, its seconds of the processor, and what it
        printed."""
        log = self.corpus / "turn.log"
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, str(log), *words]) + "\n")
        self.process.stdin.flush()
        status, processor = self.answer().split()
        return int(status), float(processor), log.read_text(encoding="utf-8", errors="replace")

    def answer(self) -> str:
        """Return the next line that the process prints.

        Raises:
            TrainingError: it has ended.
        """
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        if not found:
            raise TrainingError(f"the process that fuzzes ended; {self.corpus / 'fuzzer.log'} says why")
        return found


def _write_seeds(corpus: Path, names: Iterable[str]) -> None:
    for name in names:
        folder = corpus / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in TARGETS[name].seed_bytes():
            (folder / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)


def _replay(fuzzer: _Fuzzer, name: str, tally: _Tally, say: Say) -> None:
    """Try the inputs of faults again; those that the decoder takes by now are mended."""
    for path in list(tally.open):
        if path.exists() and not fuzzer.run(name, [str(path)])[0]:
            tally.mended.append(tally.open.pop(path))
            say(f"{name}: mended: {tally.mended[-1]}")


def _report(tallies: dict[str, _Tally], seconds: float) -> Report:
    inputs = sum(tally.inputs for tally in tallies.values())
    faults = [f"{name}: {text}" for name, tally in tallies.items() for text in tally.open.values()]
    mended = [f"{name}: {text}" for name, tally in tallies.items() for text in tally.mended]
    idle = [name for name, tally in tallies.items() if not tally.inputs]
    check = Check(
        name="open faults",
        target="none",
        measured=str(len(faults)),
        passed=not faults and inputs > 0,
        note="; ".join(faults) or (f"not reached: {', '.join(idle)}" if idle else ""),
    )
    figures = {
        "minutes": seconds / 60.0,
        "fuzzing_minutes": sum(tally.seconds for tally in tallies.values()) / 60.0,
        "processor_minutes": sum(tally.processor_seconds for tally in tallies.values()) / 60.0,
        "inputs": inputs,
        "edges": sum(tally.edges for tally in tallies.values()),
        "features": sum(tally.features for tally in tallies.values()),
        "faults": faults,
        "mended": mended,
        "targets": {
            name: {"inputs": one.inputs, "seconds": one.seconds, "edges": one.edges, "features": one.features}
            for name, one in tallies.items()
        },
    }
    rows = [(name, one.inputs, f"{one.seconds:.0f}", one.edges, one.features, len(one.open)) for name, one in tallies.items()]
    return Report(figures=figures, columns=("target", "inputs", "s", "edges", "features", "faults"), rows=rows, checks=(check,))
