"""Two brokers share a database; the machine of the one that leads is lost in the middle of a run, or it stops and wakes up."""

from __future__ import annotations

import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from farflung.chaos.kills import differing_tensors
from farflung.telemetry import RunFolder, StepRecord
from tests.support.commands.command_processes import Program
from tests.support.commands.job_files import job_text
from tests.support.network.quiet import until
from tests.support.runs.loopback import text_folder
from tests.support.servers.sql_servers import postgres

_STEPS, _BEFORE = 120, 25


class Cluster:
    """A broker that leads, one that stands by, and two workers whose ticket names both."""

    def __init__(self, place: Path, url: str) -> None:
        self.place, self.url = place, url
        self.programs: dict[str, Program] = {}
        self.ports = {"a": _free_port(), "b": _free_port()}
        text_folder(place)
        (place / "job.toml").write_text(job_text(steps=_STEPS, workers=2))

    def start(self) -> None:
        self.broker("a").until("farflung join")
        self.broker("b", "--standby").until("standing by at")
        found = self.programs["a"].until(r"(?s)tickets from now on name them.*?farflung join (\S+).*?--ticket (\S+)")
        self.join, self.submit_ticket = found[1], found[2]
        for name in ("w1", "w2"):
            self.run(name, "join", self.join, "--name", name, "--listen", "127.0.0.1:0", "--data", str(self.place))
            self.programs[name].until("joined the broker")

    def broker(self, name: str, *options: str) -> Program:
        listen = ["--listen", f"127.0.0.1:{self.ports[name]}", "--no-web"]
        return self.run(name, "broker", *listen, "--home", str(self.place / name), "--records", self.url, *options)

    def run(self, name: str, *arguments: str) -> Program:
        self.programs[name] = Program(self.place, name, *arguments)
        return self.programs[name]

    def submit(self, name: str) -> Program:
        return self.run(name, "submit", "job.toml", "--ticket", self.submit_ticket, "--plain")

    def close(self) -> None:
        for program in self.programs.values():
            program.process.kill()
            program.process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/records.sqlite" if request.param == "sqlite" else stack.enter_context(postgres())
        found = Cluster(tmp_path, url)
        stack.callback(found.close)
        found.start()
        yield found


def _steps(run: Path) -> list[int]:
    """The steps of the run whose folder is ``run``, in the order in which they were put on record."""
    found = RunFolder(run)
    return [record.step for record in found.records() if isinstance(record, StepRecord)] if found.metrics.exists() else []


def _run_of(home: Path, known: tuple[Path, ...] = ()) -> Path:
    (run,) = set((home / "runs").iterdir()) - set(known)
    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loss_of_the_leaders_machine_costs_time_only(cluster: Cluster) -> None:
    home = cluster.place / "a"
    watcher = cluster.submit("first")
    until(lambda: (home / "runs").is_dir() and len(_steps(_run_of(home))) > _BEFORE)
    committed = _steps(_run_of(home))
    cluster.programs["a"].kill(signal.SIGKILL)
    cluster.programs["a"].ends()
    shutil.rmtree(home)
    text = watcher.ends_cleanly(0, 200.0)
    assert "from the state in memory; no step repeated" in text
    first = _run_of(cluster.place / "b")
    assert _steps(first)[: len(committed)] == committed
    assert _steps(first) == list(range(_STEPS))
    undisturbed = cluster.submit("second")
    assert "resumed" not in undisturbed.ends_cleanly(0, 200.0)
    second = _run_of(cluster.place / "b", (first,))
    assert differing_tensors(first, second) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "cluster", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)  # SQLite would stay locked
def test_a_leader_that_stops_and_wakes_up_ends_without_effect(cluster: Cluster) -> None:
    home = cluster.place / "a"
    watcher = cluster.submit("first")
    until(lambda: (home / "runs").is_dir() and len(_steps(_run_of(home))) > _BEFORE)
    cluster.programs["a"].kill(signal.SIGSTOP)
    cluster.programs["b"].until("taking over")
    cluster.programs["a"].kill(signal.SIGCONT)
    assert cluster.programs["a"].ends() == 1
    assert re.search(r"this broker (has no effect any more|could not renew.*); start it again", cluster.programs["a"].text)
    watcher.ends_cleanly(0, 200.0)
    assert _steps(_run_of(cluster.place / "b")) == list(range(_STEPS)), "workers trained on while the leader was stopped"
    again = cluster.broker("a", "--standby")
    again.until(f"standing by at 127.0.0.1:{cluster.ports['a']} for the broker at 127.0.0.1:{cluster.ports['b']}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_leader_that_is_asked_to_end_lets_the_standby_lead(cluster: Cluster) -> None:
    """Commands on the leader's machine that were given no ticket continue with the other broker, too."""
    home = cluster.place / "a"
    watcher = cluster.run("first", "submit", "job.toml", "--home", str(home), "--plain")
    until(lambda: (home / "runs").is_dir() and len(_steps(_run_of(home))) > _BEFORE)
    cluster.programs["a"].kill(signal.SIGTERM)
    text = cluster.programs["a"].ends_cleanly(0)
    assert f"broker: the broker at 127.0.0.1:{cluster.ports['b']} takes over" in text
    watcher.ends_cleanly(0, 200.0)
    assert _steps(_run_of(cluster.place / "b")) == list(range(_STEPS))
