"""Commands that can take more than two seconds show on a terminal what they do."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.cluster import Topology
from farflung.security import Ticket
from farflung.telemetry import Span, SpanKind
from farflung.telemetry.trace import write_spans
from tests.support.commands.pseudo_terminal import Terminal
from tests.support.records.written_checkpoints import checkpoint
from tests.support.records.written_runs import WrittenAttempt, write_run
from tests.support.steps.small_runs import small_job, small_plan

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


def a_run(place: Path) -> None:
    topology = Topology.preset("local4-two-regions")
    write_run(
        place / "run", small_job(), [WrittenAttempt(plan=small_plan(("east-0", "west-0")), topology=topology, first=0, steps=3)]
    )


def a_trace(place: Path) -> None:
    a_run(place)
    write_spans(place / "run/events", "a", [Span(what=SpanKind.COMPUTE, name="F", start=0.0, seconds=0.5, step=0, stage=0)])


def a_checkpoint(place: Path) -> None:
    a_run(place)
    checkpoint(place / "run", 4)


def a_broker(place: Path) -> None:
    with closing(Broker(place / "home/broker", listen="127.0.0.1:0", say=lambda line: None)):
        pass


def a_backup(place: Path) -> None:
    a_broker(place)
    terminal = Terminal(place, "backup", str(place / "file"))
    with closing(terminal):
        assert terminal.ends() == 0, terminal.out


@pytest.mark.parametrize(
    ("prepare", "command", "shown"),
    [
        (a_run, "ledger {0}/run", "reading run 1 of 1"),
        (a_trace, "trace {0}/run --perfetto {0}/out", "reading the trace"),
        (a_trace, "trace {0}/run --perfetto {0}/out", "writing .*/out"),
        (a_checkpoint, "checkpoint verify {0}/run", "verifying the checkpoint of step 4"),
        (a_broker, "backup {0}/file", "writing .*/file"),
        (a_backup, "restore {0}/file --home {0}/again", "reading .*/file"),
    ],
)
def test_the_phase_is_shown(tmp_path: Path, prepare: Callable[[Path], None], command: str, shown: str) -> None:
    prepare(tmp_path)
    with closing(Terminal(tmp_path, *command.format(tmp_path).split(), columns=400)) as terminal:
        terminal.until(shown)
        assert terminal.ends() == 0, terminal.out


@pytest.mark.skipif(find_spec("nicegui") is None, reason="the extra farflung[web] is not installed")
def test_the_start_of_a_dashboard_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # it serves pages as it does outside of tests
    a_run(tmp_path)
    with closing(Terminal(tmp_path, "web", str(tmp_path / "run"), "--listen", "127.0.0.1:0")) as terminal:
        terminal.until("starting the dashboard")
        terminal.until("Press Ctrl-C to stop the dashboard")
        assert "starting" not in terminal.out[terminal.out.index("Press Ctrl-C") :]


def test_a_broker_that_does_not_answer_is_waited_for_visibly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ticket = Ticket(scope="submit", addresses=(address,), fingerprint=bytes(32), ticket_id="t", secret=bytes(16), expires=4e9)
        with closing(Terminal(tmp_path, "status", "--ticket", str(ticket))) as terminal:
            terminal.until("connecting to the broker")
