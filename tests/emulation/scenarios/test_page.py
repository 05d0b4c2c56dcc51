"""The commands and the Python of docs/emulation.md, run as they stand there. Needs root."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands.job_files import LIBRARY, job_text

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "emulation.md").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the page's files, and ``farflung`` and ``python3`` of this environment."""
    text = (DOCS / "network.md").read_text(encoding="utf-8")
    (machines,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "machines.toml").write_text(machines)
    (tmp_path / "job.toml").write_text(job_text(steps=2, workers=3, data=LIBRARY, plan={"planner": "equal_number"}))
    (tmp_path / "farflung").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m farflung "$@"\n')
    (tmp_path / "farflung").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    return tmp_path


def typed(place: Path, begins: str) -> subprocess.CompletedProcess[str]:
    """The page's line that begins so, typed by root (who needs no ``sudo``)."""
    (line,) = re.findall(rf'^sudo env "PATH=[$]PATH" ({begins}.*)$', PAGE, flags=re.MULTILINE)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "FARFLUNG_HOME": str(place / "home")}
    return subprocess.run(line, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_a_program_on_the_network(place: Path) -> None:
    done = typed(place, "farflung emulate two-laptops")
    assert (done.returncode, done.stdout) == (0, "I am laptop-fast at 10.77.0.1\n"), done.stderr


@pytest.mark.timeout(300)
def test_a_cluster_on_the_network(place: Path) -> None:
    done = typed(place, "farflung emulate machines.toml --cluster")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished after 2 steps" in done.stdout
    assert re.search(r"^attic-pc +spot-0 +\S+ k?B", done.stderr, flags=re.MULTILINE), done.stderr


def test_the_page_s_python(place: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "connected from 10.77.0.2\n" in done.stdout
    assert re.search(r"^spot-0 attic-pc [1-9]", done.stdout, flags=re.MULTILINE), done.stdout
