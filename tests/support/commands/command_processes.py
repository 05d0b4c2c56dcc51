"""Commands of farflung as processes, with their output line by line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 90.0
#: Where the system has it: programs are killed with the tests, so a killed pytest leaves no brokers behind.
_WITH_THE_TESTS = [found, "--pdeathsig", "KILL"] if (found := shutil.which("setpriv")) else []


class Program:
    """One ``farflung`` command; its output goes to a file."""

    def __init__(self, place: Path, name: str, *arguments: str, python: str = sys.executable) -> None:
        self.log = place / f"{name}.log"
        environment = {**os.environ, "FARFLUNG_HOME": str(place / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        # a shell's background job would hand down "ignored"
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*_WITH_THE_TESTS, python, "-u", "-m", "farflung", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=place,
                start_new_session=True,
            )
        signal.signal(signal.SIGINT, before)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text}"
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.text}"
            time.sleep(0.05)
        return found

    def kill(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ends(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"does not end:\n{self.text}")

    def ends_cleanly(self, code: int, seconds: float = PATIENCE) -> str:
        """Its output, after it has ended with ``code`` and without a traceback."""
        assert self.ends(seconds) == code, self.text
        assert "Traceback" not in self.text
        return self.text
