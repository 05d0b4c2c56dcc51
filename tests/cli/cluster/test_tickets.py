"""``farflung ticket issue`` knows the address of its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.cli.main import main
from farflung.security import Ticket


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
