"""Shell completion as a shell asks for it: the script, and what Tab completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FARFLUNG = f"{sys.executable} -m farflung"


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FARFLUNG_HOME": str(home / "farflung"), "HOME": str(home), **more}


def typed(home: Path, line: str) -> list[str]:
    """What bash is told when Tab follows ``line``."""
    words = {"_FARFLUNG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    command = [sys.executable, "-m", "farflung"]
    found = subprocess.run(command, env=environment(home, **words), capture_output=True, text=True, timeout=60, check=False)
    assert found.stderr == ""
    return found.stdout.split()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two runs of this machine's broker, one of another broker, and two workers."""
    for number, run in enumerate(("broker/runs/run-old", "broker/runs/run-new", "other/runs/run-other")):
        place = tmp_path / "farflung" / run
        place.mkdir(parents=True)
        os.utime(place, (number, number))
    members = tmp_path / "farflung" / "members"
    members.mkdir()
    for name in ("attic", "desk"):
        (members / f"{name}.json").write_text(json.dumps({}))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("farflung watch run-", ["run-new", "run-old"]),
        ("farflung stop run-o", ["run-old"]),
        ("farflung submit --resume run-n", ["run-new"]),
        ("farflung checkpoint export run-n", ["run-new"]),
        ("farflung generate run-n", ["run-new"]),
        ("farflung report run-old run-", ["run-new", "run-old"]),
        ("farflung pause at", ["attic"]),
        ("farflung generat", ["generate"]),
    ],
)
def test_names_are_completed(home: Path, line: str, expected: list[str]) -> None:
    assert typed(home, line) == expected


def test_runs_of_another_brokers_folder(home: Path) -> None:
    assert typed(home, f"farflung watch --home {home}/farflung/other run-") == ["run-other"]
    assert typed(home, f"farflung watch --home {home}/nowhere run-") == []


def in_bash(home: Path, option: str) -> str:
    """The output of ``farflung`` with ``option``, started by a bash."""
    command = ["bash", "--norc", "-c", f"{FARFLUNG} {option}; exit $?"]
    found = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_script_is_shown_and_installed(home: Path) -> None:
    script = in_bash(home, "--show-completion")
    assert "_FARFLUNG_COMPLETE=complete_bash" in script
    assert "-F _farflung_completion farflung" in script
    assert "bash completion installed in" in in_bash(home, "--install-completion")
    (installed,) = [path for path in home.rglob("*.sh") if "complet" in str(path)]
    assert "_FARFLUNG_COMPLETE=complete_bash" in installed.read_text()
    assert str(installed) in (home / ".bashrc").read_text()


#: What each shell does when Tab follows "farflung watch run-". Functions stand in where a shell needs a terminal.
TAB = {
    "bash": (
        "source {script}; COMP_WORDS=(farflung watch run-); COMP_CWORD=2; _farflung_completion farflung; "
        'printf "%s\\n" "${{COMPREPLY[@]}}"'
    ),
    "zsh": (
        'compdef() {{ }}; _arguments() {{ print -l -- "$@" }}; source {script}; words=(farflung watch run-); CURRENT=3; '
        "_farflung_completion"
    ),
    "fish": "source {script}; complete -C 'farflung watch run-'",
}


@pytest.mark.parametrize("shell", TAB)
def test_a_real_shell_completes_names(home: Path, shell: str) -> None:
    """The command as it is installed: a program on the path."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    program = home / "bin" / "farflung"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {FARFLUNG} "$@"\n')
    program.chmod(0o755)
    around = environment(home, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    script = home / "script"
    shown = subprocess.run(
        [sys.executable, "-m", "farflung"],
        env={**around, "_FARFLUNG_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    script.write_text(shown.stdout)
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [found, *plain, "-c", TAB[shell].format(script=script)],
        env=around,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert {name for name in ("run-new", "run-old", "run-other") if name in done.stdout} == {"run-new", "run-old"}, done.stdout
