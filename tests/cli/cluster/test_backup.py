"""``farflung backup`` and ``farflung restore`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as over:
        main([*words])
    return over.value.code, *capsys.readouterr()


def test_a_broker_moves_to_another_folder_with_its_tickets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, new, file = tmp_path / "broker", tmp_path / "new", tmp_path / "broker.tar"
    broker = Broker(home, listen="127.0.0.1:0")
    ticket = broker.ticket()
    code, out, _ = call(capsys, "backup", str(file), "--home", str(home))
    assert code == 0
    assert out.startswith(f"{file}: ")
    assert out.endswith("; whoever reads this file controls the cluster\n")
    broker.close()
    code, out, _ = call(capsys, "restore", str(file), "--home", str(new), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["path"], found["runs"]) == (str(new), 0)
    again = Broker(new, listen="127.0.0.1:0")
    assert again.ticket().fingerprint == ticket.fingerprint
    assert ticket.ticket_id in {record.ticket_id for record in again.tickets.list()}
    again.close()


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "backup", str(tmp_path / "b.tar"), "--home", str(tmp_path / "none"))
    assert code == 2
    assert "is no broker's folder" in err
    code, _, err = call(capsys, "restore", str(tmp_path / "b.tar"), "--home", str(tmp_path / "new"))
    assert code == 2
    assert err == (
        f"farflung: {tmp_path}/b.tar is no whole backup of a broker: No such file or directory; make one with farflung backup\n"
    )
