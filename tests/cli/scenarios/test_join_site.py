"""``farflung join --devices cpu,cpu``: a site trains a job by command line, and ``status`` shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farflung.errors import InputError
from tests.support.commands.command_processes import Program
from tests.support.commands.job_files import job_text
from tests.support.runs.loopback import text_folder


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs, which end with the test."""
    started: list[Program] = []

    def start(name: str, *arguments: str) -> Program:
        started.append(Program(tmp_path, name, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_a_site_trains(tmp_path: Path, program: Callable[..., Program]) -> None:
    text_folder(tmp_path)
    (tmp_path / "job.toml").write_text(job_text(steps=3, micro_batch_sizes=[2, 2]))
    broker = program("broker", "broker", "--no-web", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    options = ("--name", "node", "--listen", "127.0.0.1:0", "--memory", "2 GB")
    site = program("node", "join", ticket, *options, "--devices", "cpu,cpu")
    site.until("joined the broker")
    assert "site of 2 ranks: cpu, cpu" in site.text
    assert "isolation: full" in site.text
    status = program("status", "status", "--home", "h").ends_cleanly(0)
    assert re.search(r"node .* standby \(site of 2 ranks, waiting for a job\)", status)
    submit = program("submit", "submit", "job.toml", "--home", "h").ends_cleanly(0)
    assert "finished after 3 steps" in submit
    for one in (site, broker):
        one.process.terminate()
        one.ends()


def test_a_worker_is_a_device_or_a_site(program: Callable[..., Program]) -> None:
    both = program("both", "join", "farflung1-x", "--device", "cpu", "--devices", "cpu,cpu")
    text = both.ends_cleanly(InputError.exit_code)
    assert "--device cpu with --devices cpu,cpu: a worker is one device or a site; remove one of the two" in text
