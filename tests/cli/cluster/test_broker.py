"""What ``farflung broker`` prints: tickets, but not where the journal of systemd keeps them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.network.quiet import until

PATIENCE = 100.0


def started(process: subprocess.Popen[bytes], log: Path) -> str:
    """What the broker has printed once it is there."""
    until(lambda: process.poll() is not None or "Press Ctrl-C" in log.read_text(), PATIENCE)
    assert process.poll() is None, log.read_text()
    return log.read_text()


@pytest.mark.parametrize("journal", [False, True])
def test_tickets_are_kept_out_of_the_journal(tmp_path: Path, journal: bool) -> None:
    """systemd names the stream of the journal in the environment; here it is a file."""
    with (tmp_path / "log").open("w+b") as log:
        facts = os.fstat(log.fileno())
        stream = f"{facts.st_dev}:{facts.st_ino if journal else facts.st_ino + 1}"
        command = [
            sys.executable,
            "-m",
            "farflung",
            "broker",
            "--listen",
            "127.0.0.1:0",
            "--home",
            str(tmp_path / "b"),
            "--no-web",
        ]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "JOURNAL_STREAM": stream}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            text = started(process, tmp_path / "log")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    assert ("farflung1-" in text) is not journal
    assert (f"farflung ticket issue --scope submit --home {tmp_path / 'b'}" in text) is journal


def test_each_ticket_of_the_list_was_printed_or_is_named(tmp_path: Path) -> None:
    """Commands on the broker's machine have a ticket of their own while the broker runs, also after a broker was killed."""
    home, log = str(tmp_path / "b"), tmp_path / "log"
    for end in (signal.SIGKILL, signal.SIGTERM):
        with log.open("wb") as output:
            command = [sys.executable, "-m", "farflung", "broker", "--listen", "127.0.0.1:0", "--home", home, "--no-web"]
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            started(process, log)
            own = [row for row in tickets(home) if row["own"]]
            assert [row["scope"] for row in own] == ["owner"]
            assert sum(row["scope"] == "owner" for row in tickets(home)) == 1
        finally:
            process.send_signal(end)
            process.wait(PATIENCE)
    assert sorted(row["scope"] for row in tickets(home)) == ["join", "join", "submit", "submit"]


def tickets(home: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "farflung", "ticket", "list", "--home", home, "--json"]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def test_a_port_of_the_dashboard_that_is_taken_is_found_before_tickets_are_printed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "farflung", "broker", "--listen", "127.0.0.1:0", "--home", str(tmp_path / "b")]
        ended = subprocess.run([*command, "--web", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "farflung1-" not in ended.stdout
