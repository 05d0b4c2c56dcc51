"""A PostgreSQL server in a temporary folder, run by a user without privileges."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PATIENCE = 60.0


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database on a new server; the test is skipped if the server is not installed."""
    programs = _programs()
    place = Path(tempfile.mkdtemp(prefix="farflung-postgres-"))
    place.chmod(0o755)
    user = _user(place)
    data, log = place / "data", place / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        _call([*user, str(programs / "initdb"), "-D", str(data), "-U", "farflung", "-A", "trust", "--no-sync"], place)
        options = f"-h 127.0.0.1 -p {port} -k {place}"
        control = [*user, str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", str(log), "-o", options]
        _call([*control, "start"], place)
        try:
            yield f"postgresql://farflung:secret@127.0.0.1:{port}/postgres"
        finally:
            _call([*control, "-m", "immediate", "stop"], place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _programs() -> Path:
    """The folder with ``initdb``, which Debian leaves out of the path."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    folders = [folder for folder in folders if (folder / "pg_ctl").exists() and (folder / "initdb").exists()]
    if not folders:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    return folders[-1]


def _user(place: Path) -> list[str]:
    """The command that runs another one without privileges: PostgreSQL refuses to run as root."""
    if os.getuid():
        return []
    shutil.chown(place, "postgres", "postgres")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _call(command: list[str], place: Path) -> None:
    with tempfile.TemporaryFile() as output:  # a pipe would be inherited by the server and never end
        done = subprocess.run(command, check=False, cwd=place, stdout=output, stderr=output, timeout=_PATIENCE)
        output.seek(0)
        assert not done.returncode, output.read().decode(errors="replace")
