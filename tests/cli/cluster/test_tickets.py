"""``farflung ticket issue`` knows the address of its broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.cli.main import main
from farflung.clock import wall_time
from farflung.security import Ticket
from farflung.security.name_book import NameBook


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
