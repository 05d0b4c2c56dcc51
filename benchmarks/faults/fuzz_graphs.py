"""``fuzz-graphs``: graphs of one operator each, with arguments that libFuzzer chooses by the code that they reach (atheris).

Each input is trained for one micro-batch in a child process. A fault is a crash, a hang, an exception that is none of farflung's,
or more memory than ``memory_bytes``. The operator of a fault is left out for the rest of the time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.child_processes import end_all
from farflung.clock import Clock, MonotonicClock
from farflung.errors import InputError

__all__ = ["Fault", "FuzzGraphs", "FuzzGraphsSettings", "describe_end"]

#: Seconds that a child may take beyond its time: it ends between two inputs.
_GRACE = 60.0
#: How many times as long as on the processor an input may take on the wall of a busy machine.
_BUSY = 15
_RUNS = re.compile(r"Done (\d+) runs|^#(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzGraphsSettings(Settings):
    """``seconds`` in all. ``hang_seconds``: of the processor, for one input. ``corpus``: the folder of inputs to begin with
    and to add to (empty: a temporary one). ``keep``: the folder for the inputs of faults (empty: they are removed)."""

    seconds: float = 600.0
    hang_seconds: float = 60.0
    memory_bytes: int = 4 << 30
    corpus: str = ""
    keep: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What ended a child: ``operator`` was under way."""

    operator: str
    text: str


class FuzzGraphs:
    """Inputs and faults."""

    name = "fuzz-graphs"
    summary = "coverage-guided fuzzing of operators and their arguments: crashes, hangs, memory"

    def __init__(self, clock: Clock | None = None, program: Sequence[str] = ("-m", "benchmarks.faults.graph_fuzzer")) -> None:
        """``program``: what Python runs in the child."""
        self._clock, self._program = clock or MonotonicClock(), program

    def settings(self, quick: bool) -> FuzzGraphsSettings:
        """Quick: 20 seconds."""
        return FuzzGraphsSettings(quick=True, seconds=20.0) if quick else FuzzGraphsSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Fuzz until the time is over.

        Raises:
            InputError: atheris is not installed.
        """
        assert isinstance(settings, FuzzGraphsSettings)
        if find_spec("atheris") is None:
            raise InputError("fuzz-graphs needs atheris: pip install 'farflung[fuzz]'")
        begin, inputs, faults = self._clock.now(), 0, list[Fault]()
        with tempfile.TemporaryDirectory(prefix="farflung-fuzz-") as folder:
            while (left := begin + settings.seconds - self._clock.now()) > 1.0:
                tried, fault = self._child(settings, Path(folder), int(left), faults)
                inputs += tried
                if fault is not None:
                    faults.append(fault)
                    say(f"after {self._clock.now() - begin:.0f} s: {fault.operator}: {fault.text}")
        measured = "; ".join(f"{fault.operator}: {fault.text}" for fault in faults)
        check = Check(name="faults", target="none", measured=str(len(faults)), passed=not faults and inputs > 0, note=measured)
        figures = {"inputs": inputs, "faults": [[fault.operator, fault.text] for fault in faults], "seconds": settings.seconds}
        rows = [(fault.operator, fault.text) for fault in faults]
        return Report(figures=figures, columns=("operator", "fault"), rows=rows, checks=(check,))

    def _child(
        self, settings: FuzzGraphsSettings, folder: Path, seconds: int, faults: Sequence[Fault]
    ) -> tuple[int, Fault | None]:
        """Run one child for at most ``seconds``, without the operators of ``faults``; return its inputs, and the fault that
        ended it."""
        present, without = folder / "operator", ",".join(sorted({fault.operator for fault in faults}))
        corpus = Path(settings.corpus) if settings.corpus else folder / "corpus"
        keep = Path(settings.keep) if settings.keep else folder / "faults"
        for needed in (corpus, keep):
            needed.mkdir(parents=True, exist_ok=True)
        present.unlink(missing_ok=True)  # else a fault before the first operator would have the name of the last fault's
        limits = [f"-max_total_time={seconds}", f"-timeout={_BUSY * settings.hang_seconds:.0f}"]
        limits += [f"-rss_limit_mb={settings.memory_bytes >> 20}", f"-artifact_prefix={keep}/"]
        limits += [f"-seed={settings.seed + 1 + len(faults)}"]  # another seed for each child: the same one tries the same inputs
        words = [sys.executable, *self._program, str(present), without, str(settings.hang_seconds), str(corpus), *limits]
        environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        child = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # noqa: S603
        try:
            _, text = child.communicate(timeout=seconds + _BUSY * settings.hang_seconds + _GRACE)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # libFuzzer then stores the input and prints the stack
            return 0, Fault(operator=_operator(present), text=f"hangs, and its own watch does not end it; {_last_words(child)}")
        finally:
            end_all([child], 5.0)
        if child.returncode == -signal.SIGPROF and present.exists():
            (keep / "hang").write_bytes(present.read_bytes())
        counts = [int(done or at) for done, at in _RUNS.findall(text)]
        tried = max(counts, default=0)
        return tried, None if child.returncode == 0 else Fault(
            operator=_operator(present), text=describe_end(child.returncode, text)
        )


def _last_words(child: subprocess.Popen[str]) -> str:
    """How a child that was aborted ended, in one line."""
    try:
        _, text = child.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        return "it does not answer SIGABRT either"
    return describe_end(child.returncode, text)


def _operator(present: Path) -> str:
    """The first word of the file: the input comes after it."""
    return next(iter(present.read_text().split()), "") if present.exists() else "before the first operator"


def describe_end(status: int, text: str) -> str:
    """What ended a child that exited with ``status`` and wrote ``text``, in one line."""
    summary = [line for line in text.splitlines() if line.startswith("SUMMARY:") or re.match(r"\w*(Error|Exception)\b", line)]
    named = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"{named}: {summary[0][:300] if summary else text.strip().splitlines()[-1][:300] if text.strip() else 'no words'}"
