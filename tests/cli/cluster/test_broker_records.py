"""``farflung broker --records URL --standby``, ``farflung backup`` and ``farflung restore`` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.broker.replication.database import LeaderRow, RecordsDatabase
from farflung.broker.replication.leadership import Leadership
from farflung.cli.main import main
from farflung.security import Ticket
from farflung.security.files import write_private
from tests.support.commands.command_processes import Program


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as over:
        main(["broker", "--no-web", *words])
    return over.value.code, capsys.readouterr().err


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def home(tmp_path: Path) -> list[str]:
    return ["--home", str(tmp_path / "broker")]


def test_a_standby_needs_a_database(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, err = call(capsys, *home, "--standby")
    assert code == 2
    assert err == "farflung: --standby needs --records: the database of the broker that leads\n"


def test_brokers_of_a_cluster_need_fixed_ports(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, err = call(capsys, *home, "--records", "sqlite:///x", "--listen", "127.0.0.1:0")
    assert code == 2
    assert err == "farflung: --listen 127.0.0.1:0: brokers that share --records need a fixed port, such as 0.0.0.0:7070\n"


def test_a_missing_file_with_the_url_is_named(home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = call(capsys, *home, "--listen", free_address(), "--records", f"@{tmp_path}/url")
    assert code == 2
    assert err == f"farflung: the --records {tmp_path}/url can't be read: No such file or directory; check the path\n"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--run-limit", "many"], "--run-limit"),
        (["--mirror", "nosuch://bucket"], "nosuch"),
        (["--trackers", "nosuch"], "nosuch"),
        (["--listen", "taken"], "cannot listen at 127.0.0.1:"),
    ],
)
def test_a_standby_that_could_not_lead_says_so_before_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], error: str
) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    pytest.importorskip("obstore", reason="no obstore: pip install 'farflung[s3]'")
    url = f"sqlite:///{tmp_path}/records.sqlite"
    with socket.create_server(("127.0.0.1", 0)) as taken, closing(RecordsDatabase(url)) as database:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = [address if word == "taken" else word for word in options]
        others = [] if address in words else ["--listen", free_address()]
        # nobody has led this cluster: a broker that asked the database would say so
        code, err = call(capsys, "--home", str(tmp_path / "b"), "--records", url, "--standby", *others, *words)
        assert (code, database.leader()) == (2, LeaderRow())
    assert error in err


def test_a_broker_that_cannot_be_opened_gives_the_lead_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    url = f"sqlite:///{tmp_path}/records.sqlite"
    (tmp_path / "b" / "authority").mkdir(parents=True)
    for name in ("authority-certificate.pem", "authority-key.pem"):
        write_private(tmp_path / "b" / "authority" / name, b"damaged")
    code, err = call(capsys, "--home", str(tmp_path / "b"), "--records", url, "--listen", free_address())
    assert code != 0
    assert "authority" in err
    with closing(RecordsDatabase(url)) as database:
        found = database.leader()
    assert (found.term, found.holder) == (1, "")


def test_a_signal_right_after_a_broker_took_the_lead_gives_the_lead_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    url, lead = f"sqlite:///{tmp_path}/records.sqlite", Leadership.lead

    def interrupted(self: Leadership, address: str) -> None:
        lead(self, address)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Leadership, "lead", interrupted)
    code, _ = call(capsys, "--home", str(tmp_path / "b"), "--records", url, "--listen", free_address())
    with closing(RecordsDatabase(url)) as database:
        found = database.leader()
    assert (code, found.term, found.holder) == (0, 1, "")


def test_a_standby_takes_over_and_a_second_leader_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    (tmp_path / "records-url").write_text(f"sqlite:///{tmp_path}/records.sqlite\n")

    def broker(name: str, *more: str) -> Program:
        with socket.create_server(("127.0.0.1", 0)) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        words = ["--listen", listen, "--no-web", "--home", name, "--records", "@records-url", *more]
        return Program(tmp_path, name, "broker", *words)

    programs = [broker("a")]
    try:
        programs[0].until("Press Ctrl-C")
        programs.append(broker("c"))
        assert "leads this cluster" in programs[1].ends_cleanly(2)
        programs.append(broker("b", "--standby"))
        standby = programs[2]
        ticket = programs[0].until(r"(?s)tickets from now on name them.*?farflung join (\S+)")[1]
        both = [program.until(r"(?:broker|standing by) at (127\S+)")[1] for program in (programs[0], standby)]
        assert list(Ticket.parse(ticket).addresses) == both
        assert (tmp_path / "a" / "address").read_text().split() == both
        os.kill(programs[0].process.pid, signal.SIGTERM)
        assert "takes over" in programs[0].ends_cleanly(0)
        standby.until("Press Ctrl-C")
        standby.kill(signal.SIGTERM)
        standby.ends_cleanly(0)
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as over:
        main([*words])
    return over.value.code, *capsys.readouterr()


def test_a_broker_moves_to_another_folder_with_its_tickets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, new, file = tmp_path / "broker", tmp_path / "new", tmp_path / "broker.tar"
    broker = Broker(home, listen="127.0.0.1:0")
    ticket = broker.ticket()
    code, out, _ = typed(capsys, "backup", str(file), "--home", str(home))
    assert code == 0
    assert out.startswith(f"{file}: ")
    assert out.endswith("; whoever reads this file controls the cluster\n")
    broker.close()
    code, out, _ = typed(capsys, "restore", str(file), "--home", str(new), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["path"], found["runs"]) == (str(new), 0)
    again = Broker(new, listen="127.0.0.1:0")
    assert again.ticket().fingerprint == ticket.fingerprint
    assert ticket.ticket_id in {record.ticket_id for record in again.tickets.list()}
    again.close()


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = typed(capsys, "backup", str(tmp_path / "b.tar"), "--home", str(tmp_path / "none"))
    assert code == 2
    assert "is no broker's folder" in err
    (tmp_path / "home" / "authority").mkdir(parents=True)
    place = tmp_path / "none" / "b.tar"
    code, _, err = typed(capsys, "backup", str(place), "--home", str(tmp_path / "home"))
    assert (code, err) == (2, f"farflung: {place} can't be written: No such file or directory; choose another file\n")
    code, _, err = typed(capsys, "restore", str(tmp_path / "b.tar"), "--home", str(tmp_path / "new"))
    assert code == 2
    assert err == (f"farflung: {tmp_path}/b.tar is no file: name a file of farflung backup\n")
