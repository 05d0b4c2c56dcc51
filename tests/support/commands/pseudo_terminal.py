"""Commands of farflung on a real pseudo-terminal: what they draw, keys, and the size of the window."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.support.commands.command_processes import PATIENCE

__all__ = ["Terminal"]

_ENTER, _LEAVE, _HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """One command on a pseudo-terminal of its own, which is also its controlling terminal."""

    def __init__(self, place: Path, *arguments: str, rows: int = 40, columns: int = 120, **variables: str) -> None:
        self.out, self._decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        self._end, end = os.openpty()
        self.resize(rows, columns)
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CI", "COLUMNS", "LINES")}
        environment |= {"FARFLUNG_HOME": str(place / "home"), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", **variables}
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would hand down "ignored"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SESSION, *arguments],
            stdin=end,
            stdout=end,
            stderr=end,
            env=environment,
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, before)
        os.close(end)

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        """Type ``keys``: control characters become signals, as in any terminal."""
        os.write(self._end, keys)

    @property
    def modes(self) -> list[object]:
        """The settings of the terminal, which a program has to leave as they were."""
        return termios.tcgetattr(self._end)[:4]

    @property
    def drawing(self) -> bool:
        """Whether the live screen is shown now."""
        return self.out.rfind(_ENTER) > self.out.rfind(_LEAVE)

    @property
    def frame(self) -> list[str]:
        """The newest whole picture of the live screen, line by line."""
        pictures = self.out[self.out.rfind(_ENTER) :].partition(_LEAVE)[0].split(_HOME)
        return [line.rstrip() for line in _CONTROL.sub("", pictures[-2] if len(pictures) > 1 else "").splitlines()]

    @property
    def lines(self) -> list[str]:
        """The lines outside of the live screen."""
        parts = re.split(re.escape(_ENTER) + ".*?" + re.escape(_LEAVE), self.out, flags=re.DOTALL)
        return _CONTROL.sub("", "".join(parts)).replace("\r", "").splitlines()

    def until(self, pattern: str, *, drawn: bool = False, seconds: float = PATIENCE) -> None:
        """Read until ``pattern`` is there; ``drawn``: on one picture of the live screen."""
        end = time.monotonic() + seconds
        while re.search(pattern, "\n".join(self.frame) if drawn else self.out) is None:
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.out[-5000:]}"
            assert self.read(), f"it ended without {pattern!r}:\n{self.out[-5000:]}"

    def read(self) -> bool:
        """Read what has come, at most for a moment. Return whether more can come."""
        if not select.select([self._end], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._end, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self.out += self._decoder.decode(data)
        return bool(data)

    def ends(self, seconds: float = PATIENCE) -> int:
        """Read to the end. Return the exit status."""
        end = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < end, f"it does not end:\n{self.out[-5000:]}"
        return self.process.wait(seconds)

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._end)


#: The controlling terminal of the new session is its standard input.
_SESSION = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "farflung"
from farflung.__main__ import main
main()
"""
