"""Programs that providers call."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

from farflung.errors import FarflungError, InputError
from farflung.launchers.programs import Program, run_all, run_one, show_all


def python(code: str, given: str = "") -> Program:
    return Program(words=[sys.executable, "-c", code], place="here", given=given)


def test_programs_run_at_once_and_answer_in_order() -> None:
    # each waits for the other's file of a pipe: they end only if both run
    found = run_all([python("print(input())", "a\n"), python("print(input())", "b\n")])
    assert [one.printed for one in found] == ["a\n", "b\n"]


def test_a_program_may_ignore_its_input() -> None:
    assert [one.code for one in run_all([python("pass", "x" * 60_000)] * 3)] == [0, 0, 0]


def test_a_program_may_end_before_its_input_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    assert [one.code for one in run_all([python("pass", "x" * 60_000)] * 3)] == [0, 0, 0]
    gc.collect()


def test_the_last_line_of_errors_is_the_reason() -> None:
    failing = "import sys; print('printed'); sys.stderr.write('first\\nlast\\n\\n'); sys.exit(3)"
    with pytest.raises(FarflungError, match=r"^here: .*python.* failed: last$"):
        run_one(python(failing))
    silent = run_all([python("import sys; sys.exit(4)")])[0]
    assert (silent.code, silent.reason) == (4, "it ended with the code 4 and printed nothing")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(InputError, match="this machine has no command 'no-such-program': install it, or choose another provider"):
        run_one(Program(words=["no-such-program"], place="here"))


def test_lines_are_shown_whole_and_with_their_program() -> None:
    shown: list[tuple[str, str]] = []
    long = "z" * 200_000
    programs = {
        "a": python("import sys; sys.stdout.write('one\\ntw'); sys.stdout.flush(); sys.stdout.write('o'); sys.exit(2)"),
        "b": python(f"print('{long[:10]}' * 20_000)"),
    }
    codes = show_all(programs, lambda key, line: shown.append((key, line)))
    assert codes == {"a": 2, "b": 0}
    assert [line for key, line in shown if key == "a"] == ["one", "two"]
    assert [line for key, line in shown if key == "b"] == [long]
