"""What a person sees when something is wrong: one line, and an exit code of its own; usage errors are Typer's."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farflung import __version__
from farflung.broker.process import Broker
from farflung.cli.home import drop_ticket, keep_ticket
from farflung.cli.main import main
from farflung.security import Ticket
from tests.support.commands.error_lines import a_ticket, line, main_ok

JOB = 'name = "x"\n[model]\nrecipe = "gpt"\nargs = { vocab = 256, sequence = 8, layers = 1, width = 8, heads = 1 }\n'


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def free_address() -> Iterator[str]:
    """Nobody listens there, and nobody else can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_no_ticket(capsys: pytest.CaptureFixture[str]) -> None:
    assert line(capsys, "status", code=2).startswith(
        "no ticket: pass --ticket (the broker prints a submit ticket when it starts)"
    )


@pytest.mark.parametrize("command", [("status",), ("watch", "run-1")])
def test_a_broker_that_has_ended(capsys: pytest.CaptureFixture[str], own_home: Path, command: tuple[str, ...]) -> None:
    (own_home / "broker" / "authority").mkdir(parents=True)
    assert line(capsys, *command, code=2) == (
        f"no broker runs with the folder {own_home / 'broker'}: start it (farflung broker), "
        "or reach a broker elsewhere with --ticket, or name another folder with --home"
    )


def test_a_kept_ticket_says_where_it_came_from(
    capsys: pytest.CaptureFixture[str], own_home: Path, tmp_path: Path, free_address: str
) -> None:
    ticket = Ticket.parse(a_ticket("submit", free_address, time.time() + 60))
    for place, arguments in ((own_home / "broker", ()), (tmp_path / "other", ("--home", str(tmp_path / "other")))):
        kept = keep_ticket(ticket, place)
        said = line(capsys, "status", *arguments, code=10)
        assert said.startswith(f"cannot reach the broker at {free_address}: ")
        assert said.endswith(f"(no --ticket was given: this is the ticket that a broker left in {kept})")
        drop_ticket(replace(ticket, ticket_id="another"), place)
        assert kept.exists(), "another broker's ticket stays"
        drop_ticket(ticket, place)
        assert f"(looked for {kept};" in line(capsys, "status", *arguments, code=2)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("--version",), ("version",)):
        assert main_ok(*arguments) == 0
        assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("command", ["join", "status"])
def test_mistyped_tickets(capsys: pytest.CaptureFixture[str], command: str) -> None:
    good = a_ticket("join", "127.0.0.1:1", time.time() + 60)
    swapped = good[:-10] + ("a" if good[-10] != "a" else "b") + good[-9:]
    for text, says in (
        ("hello", "is not a ticket: a ticket begins with"),
        (swapped, "mistyped or cut"),
        (good[:-4], "mistyped or cut"),
    ):
        arguments = (command, text) if command == "join" else (command, "--ticket", text)
        assert says in line(capsys, *arguments, code=8)


def test_an_expired_ticket(capsys: pytest.CaptureFixture[str]) -> None:
    said = line(capsys, "join", a_ticket("join", "127.0.0.1:1", 1.0), code=8)
    assert said.startswith("the ticket expired at 1970-01-01")


def test_nobody_at_the_address(capsys: pytest.CaptureFixture[str], free_address: str) -> None:
    for command in (("status",), ("watch", "run-x"), ("stop", "run-x")):
        said = line(capsys, *command, "--ticket", a_ticket("submit", free_address, time.time() + 60), code=10)
        assert (
            said
            == f"cannot reach the broker at {free_address}: Connection refused; check that the broker runs and the port is open"
        )


def test_another_broker_than_the_tickets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        said = line(capsys, "join", a_ticket("join", broker.address, time.time() + 60), code=8)
        assert "is not the broker of this ticket" in said
        ticket = broker.ticket("submit")
        assert "there is no run 'run-x'; known runs: none" in line(capsys, "watch", "run-x", "--ticket", str(ticket), code=2)
        assert "there is no run 'run-x'" in line(capsys, "stop", "run-x", "--ticket", str(ticket), code=2)
        wrong = replace(ticket, secret=bytes(16))
        assert "this broker does not know the ticket" in line(capsys, "status", "--ticket", str(wrong), code=8)
        main_port_taken = line(capsys, "broker", "--listen", broker.address, "--home", str(tmp_path / "second"), code=2)
        assert main_port_taken.startswith(
            f"cannot listen at {broker.address}: is the port taken, or the address not this machine's? --listen names another"
        )
        assert "grpc" not in main_port_taken.lower()
        assert not (tmp_path / "second").exists(), "it was made for a broker that never was"
        # a ticket that was revoked on the command line
        assert main_ok("ticket", "revoke", ticket.ticket_id, "--home", str(tmp_path / "broker")) == 0
        assert f"ticket {ticket.ticket_id} was revoked at" in line(capsys, "status", "--ticket", str(ticket), code=8)
    finally:
        broker.close()


def test_job_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert str(missing) in line(capsys, "submit", str(missing), code=2)
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 3")
    assert str(broken) in line(capsys, "submit", str(broken), code=2)
    strange = tmp_path / "strange.toml"
    strange.write_text(JOB + "\n[optimiser]\nlr = 1\n")
    assert "optimi" in line(capsys, "submit", str(strange), code=2)


def test_a_worker_without_pytorch(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.extras.find_spec", lambda name: None)
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        said = line(capsys, "join", str(broker.ticket("join")), "--name", "bare", code=2)
        assert said == (
            "a worker needs PyTorch or JAX, which is not installed here: pip install 'farflung[torch]' or "
            "pip install 'farflung[jax]'"
        )
    finally:
        broker.close()


@pytest.mark.parametrize("device", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("gpu9", "meta")), "cuda:99"])
def test_a_wrong_device(capsys: pytest.CaptureFixture[str], tmp_path: Path, device: str) -> None:
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        said = line(capsys, "join", str(broker.ticket("join")), "--device", device, "--name", "w", code=2)
        assert device.split(":", maxsplit=1)[0] in said
        assert "cpu" in said
    finally:
        broker.close()


def test_disks_of_sites_and_bad_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    ticket = a_ticket("join", "127.0.0.1:1", time.time() + 60)
    assert "--disk: cannot read '8 apples'" in line(capsys, "join", ticket, "--disk", "8 apples", code=2)
    said = line(capsys, "join", ticket, "--devices", "cpu,cpu", "--disk", "1 GB", code=2)
    assert said == "--disk with --devices: sites have their optimizer states in memory; remove one of the two"


def test_bad_units_and_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "8 apples" in line(capsys, "join", a_ticket("join", "127.0.0.1:1", time.time() + 60), "--memory", "8 apples", code=2)
    assert "soon" in line(capsys, "broker", "--listen", "127.0.0.1:0", "--valid", "soon", "--home", str(tmp_path / "b"), code=2)
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        said = line(capsys, "join", str(broker.ticket("join")), "--name", "a b", code=2)
        assert said.startswith("--name: member name 'a b' must be 1 to 63 letters, digits")
    finally:
        broker.close()


def test_usage_errors_are_typers(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["watch"], ["nonsense"], ["join", "x", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "Usage:" in capsys.readouterr().err
