"""``farflung ticket``: what tickets name, who has joined with them, and what is no ticket or name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.cli.home import client_name
from farflung.cli.main import main
from farflung.clock import wall_time
from farflung.security import Ticket
from farflung.security.certificates import new_key
from farflung.security.name_book import NameBook
from tests.support.commands.error_lines import line, main_ok


def issue(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as over:
        main(["ticket", "issue", *more])
    return over.value.code, *capsys.readouterr()


def test_a_ticket_names_the_address_of_the_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "broker"
    Broker(home, listen="127.0.0.1:0").close()
    broker = Broker(home, listen="127.0.0.1:0", advertise="broker.example.org")
    try:
        code, out, _ = issue(capsys, "--home", str(home))
        assert code == 0
        assert Ticket.parse(out.strip()).addresses == (broker.address,)
        _, out, _ = issue(capsys, "--home", str(home), "--address", "192.0.2.1:7")
        assert Ticket.parse(out.strip()).addresses == ("192.0.2.1:7",)
    finally:
        broker.close()
    (home / "address").unlink()
    code, _, err = issue(capsys, "--home", str(home))
    assert code == 2
    assert err == (
        f"farflung: {home} does not say where its broker is reached: start the broker once, or pass --address host:port\n"
    )


def test_a_new_ticket_is_found_in_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "broker"
    Broker(home, listen="127.0.0.1:0").close()
    _, out, err = issue(capsys, "--home", str(home))
    first = Ticket.parse(out.strip()).ticket_id
    assert err == f"id {first}; farflung ticket revoke {first} revokes it\n"
    known = json.loads(issue(capsys, "--home", str(home), "--json")[1])
    assert known["id"] == Ticket.parse(known["ticket"]).ticket_id
    now = wall_time()
    NameBook(home / "names.sqlite").bind("attic", "key", first, now=now, until=now + 60.0)
    with pytest.raises(SystemExit):
        main(["ticket", "list", "--home", str(home)])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines[first].endswith("  1 member")
    assert lines[known["id"]].endswith("  0 members")


def test_all_commands_of_a_user_are_one_member(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        ticket = broker.ticket("submit")
        for number in range(3):
            monkeypatch.setattr(os, "getpid", lambda number=number: 4_000_000 + number)  # each command is a process
            assert main_ok("status", "--ticket", str(ticket)) == 0
        capsys.readouterr()
        assert main_ok("ticket", "list", "--home", str(tmp_path / "broker")) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith("  1 member")
    finally:
        broker.close()


def test_a_process_to_which_workers_connect_has_a_name_of_its_own() -> None:
    key, other = new_key(), new_key()
    assert client_name(key) == client_name(key)
    assert len({client_name(key), client_name(other), client_name(key, of_process=True)}) == 3
    assert client_name(key, of_process=True).endswith(f"-{os.getpid()}")


def test_what_is_mistyped_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path / "broker")
    Broker(Path(home), listen="127.0.0.1:0").close()
    said = line(capsys, "ticket", "issue", "--home", home, "--address", "here", code=2)
    assert said == "--address: 'here' is not an address; write host:port, e.g. broker.example.org:7070"
    said = line(capsys, "ticket", "issue", "--home", home, "--address", "a:1", "--valid", "0 s", code=2)
    assert said == "a ticket must be valid for at least one second, got 0.0"
    said = line(capsys, "ticket", "issue", "--home", home, "--address", "a:1", "--valid", "5", code=2)
    assert said == '--valid: a duration needs a unit, got \'5\'; write "5 ms" or "5 s" or "5 h"'
    assert line(capsys, "ticket", "revoke", "t1", "--home", home, code=2) == "no ticket has the id 't1'; known are none"
    assert line(capsys, "ticket", "free", "attic", "--home", home, code=2) == "no key has the name 'attic'; bound are none"
    assert line(capsys, "doctor", "--broker", "here", code=2).startswith("--broker: 'here' is not an address")
    (tmp_path / "file").write_text("x")
    place = tmp_path / "file" / "broker"
    said = line(capsys, "broker", "--no-web", "--listen", "127.0.0.1:0", "--home", str(place), code=2)
    assert said == f"--home: cannot make the state folder {place}: Not a directory; choose a folder that you may write"
