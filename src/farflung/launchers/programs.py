"""Programs that providers call (ssh, sbatch, kubectl ...): several at once, without a shell, with one clear error."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO

from farflung.child_processes import end_all
from farflung.errors import FarflungError, InputError

__all__ = ["Finished", "Program", "run_all", "run_one", "show_all"]

#: Seconds that a program has to end when a command is interrupted.
_END_SECONDS = 2.0
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run. ``words``: the command line. ``given``: its standard input.

    ``place``: what errors name, such as a host. ``environment``: variables beside those of this process. Secrets may be in the
    input and in variables, which other users cannot read. ``fine``: exit codes beside 0 of a program that has done its work.
    """

    words: Sequence[str]
    place: str
    given: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    fine: Collection[int] = ()

    def judged(self, code: int) -> int:
        """Return ``code``, or 0 if it is fine."""
        return 0 if code in self.fine else code


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a program left: its exit code (0: it did its work), and what it printed to both streams."""

    program: Program
    code: int
    printed: str
    errors: str

    @property
    def reason(self) -> str:
        """The last line of its errors, or the last that it printed."""
        lines = [line.strip() for line in (self.errors or self.printed).splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with the code {self.code} and printed nothing"


def run_all(programs: Sequence[Program]) -> list[Finished]:
    """Run all ``programs`` at once. Return what each left, in their order.

    Raises:
        InputError: one of them is not installed on this machine.
    """
    with ExitStack() as stack:
        running = [_start(program, stack, errors=subprocess.PIPE) for program in programs]
        for process, program in zip(running, programs, strict=True):
            _give(process, program.given)
        found = []
        for process, program in zip(running, programs, strict=True):
            printed, errors = process.communicate()
            found.append(Finished(program=program, code=program.judged(process.returncode), printed=printed, errors=errors))
        return found


def run_one(program: Program) -> str:
    """Run ``program``, and return what it prints.

    Raises:
        InputError: it is not installed on this machine.
        FarflungError: it failed; the text ends with the last line of its errors.
    """
    finished = run_all([program])[0]
    if finished.code:
        raise FarflungError(f"{program.place}: {program.words[0]} failed: {finished.reason}")
    return finished.printed


def show_all(programs: Mapping[str, Program], show: Callable[[str, str], None]) -> dict[str, int]:
    """Run all ``programs`` at once until they end. ``show`` gets each line that one prints, with the program's key.

    Returns the exit codes by key (0: the program did its work).

    Raises:
        InputError: one of them is not installed on this machine.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as waiting:
        running = {}
        for key, program in programs.items():
            process = running[key] = _start(program, stack, errors=subprocess.STDOUT)
            _give(process, program.given)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            waiting.register(process.stdout, selectors.EVENT_READ, (key, bytearray()))
        while waiting.get_map():
            for entry, _ in waiting.select():
                key, begun = entry.data
                stream: IO[str] = entry.fileobj  # type: ignore[assignment]
                read = stream.buffer.read1(_BLOCK)  # type: ignore[attr-defined]
                begun += read
                *lines, rest = bytes(begun).split(b"\n") if read or not begun else [bytes(begun), b""]
                begun[:] = rest
                for line in lines:
                    show(key, line.decode("utf-8", "replace"))
                if not read:
                    waiting.unregister(stream)
        return {key: programs[key].judged(process.wait()) for key, process in running.items()}


def _start(program: Program, stack: ExitStack, *, errors: int) -> subprocess.Popen[str]:
    if shutil.which(program.words[0]) is None:
        raise InputError(f"this machine has no command {program.words[0]!r}: install it, or choose another provider")
    process = subprocess.Popen(  # noqa: S603 - no shell: the words are those of the cluster file
        program.words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        env={**os.environ, **program.environment} if program.environment else None,
    )
    stack.callback(end_all, [process], _END_SECONDS)
    return process


def _give(process: subprocess.Popen[str], text: str) -> None:
    """Write the whole input: less than a pipe holds, so that this never waits for the program."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and its exit code says why
        process.stdin.write(text)
    with suppress(BrokenPipeError):  # also after a failure: a file that stays open is flushed at its end, which fails again
        process.stdin.close()
    process.stdin = None  # communicate() must not flush a closed file
