"""Commands that read work on a disk without one free byte, with a real broker and a real file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Write until nothing goes in."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    assert shutil.disk_usage(disk).free == 0
    return filler


def farflung(disk: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FARFLUNG_HOME": str(disk)}
    command = [sys.executable, "-m", "farflung", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)


@pytest.mark.timeout(300)
def test_reading_commands_need_no_space(disk: Path) -> None:
    command = [sys.executable, "-m", "farflung", "broker", "--no-web", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "FARFLUNG_HOME": str(disk), "PYTHONUNBUFFERED": "1"}
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert broker.stdout is not None
    try:
        assert any("Press Ctrl-C to stop the broker" in line for line in broker.stdout)
        filler = fill(disk)
        for words in (["status"], ["status", "--json"], ["ticket", "list"]):
            found = farflung(disk, *words)
            assert (found.returncode, found.stderr) == (0, ""), words
        assert "0 runs" in farflung(disk, "status").stdout
        for words in (["watch", "run-x"], ["stop", "run-x"], ["checkpoint", "list", "run-x"], ["status", "run-x"]):
            assert "there is no run 'run-x'" in farflung(disk, *words).stderr, words
        issued = farflung(disk, "ticket", "issue", "--address", "127.0.0.1:7070")
        assert issued.returncode in (0, 15), "the page of the book may have room for one more"
        assert not (disk / "member-key.pem").exists()
        filler.unlink()
        assert farflung(disk, "status").returncode == 0
        assert (disk / "member-key.pem").exists(), "from now on it is known again"
        broker.kill()  # a broker that can't begin says so, and nothing is lost
        broker.wait()
        filler = fill(disk)
        again = farflung(disk, "broker", "--no-web", "--listen", "127.0.0.1:0")
        assert again.returncode == 15
        assert "free space on the disk" in again.stderr
        filler.unlink()
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close()
