"""``startup``: CPU time (user and system) of commands, in multiples of ``python -c "import typer"``.

``help``: ``farflung --help``. ``status``: ``farflung status`` against a broker of this machine. ``join``: ``farflung join`` until
the broker has registered the machine, which is before PyTorch is loaded. Commands run in turns, so that a change of the machine's
clock rate meets all of them. The medians are compared.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.child_processes import end_all
from farflung.errors import TrainingError

__all__ = ["Startup", "StartupSettings"]

#: Command -> the largest multiple of the baseline.
TARGETS: Mapping[str, float] = {"help": 2.0, "status": 4.0, "join": 10.0}
_BASELINE = "import typer"
_FARFLUNG = ("-m", "farflung")
_GRACE_SECONDS = 10.0


#: CPU time of a worker until it is registered, before a tensor library is loaded.
_MOST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSettings(Settings):
    """``times``: measurements of each command."""

    times: int = 15


class Startup:
    """Start-up time of commands."""

    name = "startup"
    summary = "CPU time of --help, status and join (until registered), in multiples of importing typer"

    def settings(self, quick: bool) -> StartupSettings:
        """Quick: each command once."""
        return StartupSettings(quick=True, times=1) if quick else StartupSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, StartupSettings)
        with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as (environment, ticket):
            commands: Mapping[str, Callable[[], float]] = {
                _BASELINE: partial(process_seconds, ["-c", "import typer"], environment),
                "help": partial(process_seconds, [*_FARFLUNG, "--help"], environment),
                "status": partial(process_seconds, [*_FARFLUNG, "status"], environment),
                "join": partial(_until_registered, ticket, environment),
            }
            seconds: dict[str, list[float]] = {name: [] for name in commands}
            say(f"{settings.times} rounds of {', '.join(commands)}")
            for measure in commands.values():  # the first start writes byte code and fills the page cache
                measure()
            for _ in range(settings.times):
                for name, measure in commands.items():
                    seconds[name].append(measure())
        return report_of(seconds, judged=not settings.quick)


def report_of(seconds: Mapping[str, Sequence[float]], *, judged: bool) -> Report:
    """Compare the medians of the measured ``seconds`` of commands; ``judged``: against the targets."""
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    ratios = {name: median / medians[_BASELINE] for name, median in medians.items()}
    checks = [
        Check(
            name=f"CPU time of {name}",
            target=f"{target:g} x that of {_BASELINE} at most",
            measured=f"{ratios[name]:.2f} x",
            passed=ratios[name] <= target if judged else None,
        )
        for name, target in TARGETS.items()
    ]
    checks.append(
        Check(
            name="CPU time of join until registered",
            target=f"{_MOST_SECONDS:g} s at most",
            measured=f"{medians['join']:.2f} s",
            passed=medians["join"] <= _MOST_SECONDS if judged else None,
        )
    )
    return Report(
        figures={"median_seconds": medians, "ratios": ratios, "seconds": {name: list(found) for name, found in seconds.items()}},
        columns=("command", "CPU time", "spread", "of the baseline"),
        rows=[
            (
                name,
                f"{1e3 * median:.0f} ms",
                f"{1e3 * min(seconds[name]):.0f} to {1e3 * max(seconds[name]):.0f} ms",
                f"{ratios[name]:.2f} x",
            )
            for name, median in medians.items()
        ],
        checks=checks,
    )


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - this very program, without a shell
        [sys.executable, "-u", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        text=True,
    )


def process_seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of a whole process.

    Raises:
        TrainingError: it failed; the text has its output.
    """
    process = _start(arguments, environment)
    assert process.stdout is not None
    with process.stdout as output:
        text = output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise TrainingError(f"{' '.join(arguments)} failed: {text}")
    return usage.ru_utime + usage.ru_stime


def _until_registered(ticket: str, environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of ``farflung join`` until its log says that the broker has registered it.

    Raises:
        TrainingError: it ended before; the text has its output.
    """
    command = [*_FARFLUNG, "join", ticket, "--verbose", "--name", "startup", "--listen", "127.0.0.1:0"]
    process = _start(command, environment)
    try:
        _await_line(process, r"registered with the broker")
        return cpu_seconds(process.pid)
    finally:
        process.kill()  # it loads PyTorch by now: a request to leave would wait for that
        process.communicate()


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads of a running process of this machine (clock_getcpuclockid(3): Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def _await_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    raise TrainingError(f"no line of the process matches {pattern!r}: {''.join(lines)}")


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[Mapping[str, str], str]]:
    """A broker whose home is ``folder``: the environment of its commands, and a ticket to join."""
    environment = {**os.environ, "FARFLUNG_HOME": str(folder)}
    process = _start([*_FARFLUNG, "broker", "--no-web", "--listen", "127.0.0.1:0"], environment)
    try:
        ticket = _await_line(process, r"farflung join (\S+)")[1]
        _await_line(process, r"Press Ctrl-C")
        yield environment, ticket
    finally:
        end_all((process,), _GRACE_SECONDS)
        process.communicate()
