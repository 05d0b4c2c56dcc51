"""Commands of another minor version of farflung, as processes, against a broker of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farflung.version import __version__
from tests.support.commands.command_processes import Program

MAJOR, MINOR, _ = (int(part) for part in __version__.split("."))
NEWER, OLDER = f"{MAJOR}.{MINOR + 1}.0", f"{MAJOR}.{MINOR - 1}.0"


def claiming(place: Path, version: str) -> str:
    """A PYTHONPATH under which farflung has the version ``version``."""
    folder = place / version
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import farflung.version\nfarflung.version.__version__ = {version!r}\n")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_they_are_refused_with_the_upgrade_to_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Program(tmp_path, "broker", "broker", "--listen", "127.0.0.1:0", "--no-web", "--home", str(tmp_path / "home"))
    try:
        tickets = {"join": broker.until(r"farflung join (\S+)")[1], "status": broker.until(r"--ticket (\S+)")[1]}
        commands = {"join": ["join", tickets["join"], "--name", "w"], "status": ["status", "--ticket", tickets["status"]]}
        for version, machine, install in ((NEWER, "the broker's machine", NEWER), (OLDER, "the other machine", __version__)):
            monkeypatch.setenv("PYTHONPATH", claiming(tmp_path, version))
            for name, words in commands.items():
                said = Program(tmp_path, f"{name}-{version}", *words).ends_cleanly(9)
                assert f"the other side is farflung {version} (protocol " in said
                assert f"run on {machine}: pip install farflung=={install}" in said
                assert len(said.strip().splitlines()) <= 2
    finally:
        broker.process.terminate()
        broker.ends()
