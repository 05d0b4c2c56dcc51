"""``farflung join --service`` and what an owner says to the worker of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farflung.broker.replication.folder_copy import copied_files
from farflung.cli.cluster import owner as members
from farflung.cli.cluster import systemd_units
from farflung.cli.cluster.systemd_units import broker_unit_text, unit_text
from farflung.cli.main import main
from farflung.security import Ticket
from farflung.worker.owner_limits import OwnerLimitsFile

TICKET = Ticket(scope="join", addresses=("192.0.2.1:7070",), fingerprint=bytes(32), ticket_id="t1", secret=bytes(16), expires=4e9)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    control = tmp_path / "bin" / "systemctl"  # for machines without systemd
    control.parent.mkdir()
    control.write_text("#!/bin/sh\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], str(control.parent)]))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as over:
        main(list(arguments))
    return over.value.code, *capsys.readouterr()


def test_a_service_is_written_and_started_by_the_commands_that_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = home / "my data"
    data.mkdir()
    code, out, _ = run(
        capsys, "join", str(TICKET), "--service", "--user", "--name", "attic", "--data", str(data), "--hours", "22:00-07:00"
    )
    unit = home / "config" / "systemd" / "user" / "farflung-attic.service"
    assert code == 0
    assert f"wrote {unit}" in out
    assert "systemctl --user daemon-reload && systemctl --user enable --now farflung-attic" in out
    text = unit.read_text()
    kept = home / "home" / "members" / "attic.ticket"
    assert f'-m farflung join {kept} --name attic --device auto --listen 0.0.0.0:0 --data "{data}" --hours 22:00-07:00' in text
    assert str(TICKET) not in text, "units are for everybody to read"
    assert kept.read_text() == str(TICKET)
    assert kept.stat().st_mode & 0o077 == 0
    assert "Restart=on-failure" in text, "who was told to leave stays away"
    assert f"Environment=FARFLUNG_HOME={home / 'home'}" in text
    verified(unit, home)


def test_a_brokers_service_survives_a_reboot(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys,
        *("broker", "--service", "--user", "--listen", "0.0.0.0:7071", "--advertise", "broker.example.org", "--valid", "7 d"),
        *("--mirror", "s3://bucket/100%"),
    )
    unit, folder = home / "config" / "systemd" / "user" / "farflung-broker.service", home / "home" / "broker"
    assert code == 0
    assert out.splitlines() == [
        f"wrote {unit}",
        "start it:   systemctl --user daemon-reload && systemctl --user enable --now farflung-broker",
        "its log:    journalctl --user -u farflung-broker -f",
        "stop it:    systemctl --user stop farflung-broker",
        f"remove it:  systemctl --user disable --now farflung-broker && rm {unit}",
        "start it with the machine, and let it run while you are not logged in:  loginctl enable-linger",
        f"a ticket to join (after the start):  farflung ticket issue --address broker.example.org:7071 --home {folder}",
        f"a ticket to submit:  farflung ticket issue --address broker.example.org:7071 --home {folder} --scope submit",
    ]
    text = unit.read_text()
    options = f'--home {folder} --listen 0.0.0.0:7071 --advertise broker.example.org --valid "7 d" --mirror s3://bucket/100%%'
    assert f'-m farflung broker {options} --run-limit "256 GB" --ticket-limit "1 TB" --queue-limit 100\n' in text
    for line in ("Restart=always", "KillSignal=SIGKILL", f"WorkingDirectory={folder}", "WantedBy=default.target"):
        assert line in text.splitlines()
    assert folder.stat().st_mode & 0o077 == 0
    verified(unit, home)


def test_the_unit_of_a_broker_names_a_file_with_the_databases_url(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, command = "postgresql://me:hidden@host/base", ("broker", "--service", "--user", "--listen", "0.0.0.0:7071", "--records")
    unit, folder = home / "config" / "systemd" / "user" / "farflung-broker.service", home / "home" / "broker"
    code, out, _ = run(capsys, *command, url)
    assert code == 0
    assert "hidden" not in out + unit.read_text()
    assert f"--records @{folder}/records-url" in unit.read_text()
    assert (folder / "records-url").read_text() == url
    assert (folder / "records-url").stat().st_mode & 0o077 == 0
    assert copied_files(folder, checkpoints=False) == []
    monkeypatch.chdir(home)
    assert run(capsys, *command, "@mine")[0] == 0
    assert f"--records @{home}/mine" in unit.read_text(), "the service runs in another folder"


def verified(unit: Path, home: Path, *, user: bool = True) -> None:
    """systemd reads the unit without a complaint, where there is systemd."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(home)}
    command = [verify, *(["--user"] if user else []), "verify", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert [line for line in found.stderr.splitlines() if "farflung" in line] == []


@pytest.mark.parametrize("user", [True, False])
@pytest.mark.parametrize("broker", [True, False])
def test_units_are_hardened(home: Path, *, broker: bool, user: bool) -> None:
    place = home / "100% mine"
    text = broker_unit_text([], place, user=user) if broker else unit_text("attic", [], place, user=user)
    lines = text.splitlines()
    for line in ("NoNewPrivileges=yes", "UMask=0077", "SystemCallArchitectures=native", "RestrictSUIDSGID=yes"):
        assert line in lines
    assert ("RestrictNamespaces=yes" if broker else "RestrictNamespaces=user net ipc pid") in lines, "workers isolate jobs"
    assert ("ProtectSystem=strict" in lines) is not user, "a user's service manager may not mount"
    written = [line for line in lines if line.startswith("ReadWritePaths=")]
    own = f"ReadWritePaths=-{home / 'home'}"
    assert written == ([] if user else [own, f'ReadWritePaths="-{str(place).replace("%", "%%")}"'] if broker else [own])
    unit = home / "farflung-x.service"
    place.mkdir()
    unit.write_text(text)
    verified(unit, home, user=user)


def test_a_worker_of_the_machine_may_write_the_disk_that_it_offers(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    units: list[str] = []

    def write(name: str, text: str, *, user: bool) -> list[str]:
        units.append(text)
        return []

    monkeypatch.setattr(systemd_units, "write_unit", write)
    disk = home / "fast disk"
    words = ("join", str(TICKET), "--service", "--name", "attic", "--data", str(home), "--disk", "20 GB")
    assert run(capsys, *words, "--disk-folder", str(disk))[0] == 0
    (text,) = units
    assert f'--disk "20 GB" --disk-folder "{disk}"' in text
    assert f'ReadWritePaths="-{disk}"' in text.splitlines()
    code, _, err = run(capsys, *words[:-2], "--disk-folder", str(disk))
    assert (code, err) == (
        2,
        f"farflung: --disk-folder {disk} without --disk: say how much space the worker may use, such as --disk '20 GB'\n",
    )


def test_systemd_finds_little_exposed_in_the_units_of_a_machine(home: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    for text, most in ((broker_unit_text([], home, user=False), 40), (unit_text("attic", [], home, user=False), 50)):
        unit = home / "farflung-x.service"
        unit.write_text(text)
        command = [analyze, "security", "--offline=yes", f"--threshold={most}", str(unit)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


def test_a_service_needs_systemd_and_a_fixed_port(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, "broker", "--service", "--user", "--listen", "127.0.0.1:0")
    assert (code, err) == (
        2,
        "farflung: --listen 127.0.0.1:0: a service needs a fixed port, which workers find again after a restart, e.g. 7070\n",
    )
    monkeypatch.setenv("PATH", str(home / "nothing"))
    for command in (("broker", "--service", "--user"), ("join", str(TICKET), "--service", "--user", "--name", "attic")):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "")
        assert err == (
            "farflung: --service needs systemd, and this machine has no systemctl: "
            "let the machine's own service manager run the command without --service\n"
        )
    assert not (home / "config").exists()


def test_what_systemd_would_read_otherwise_is_quoted(tmp_path: Path) -> None:
    text = unit_text("w", ["--data", 'a "b" 100% $HOME \\x'], tmp_path, user=False)
    assert '--data "a \\"b\\" 100%% $$HOME \\\\x"' in text
    assert "WantedBy=multi-user.target" in text


def test_a_unit_that_cannot_be_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config").write_text("a file")
    code, _, err = run(capsys, "join", str(TICKET), "--service", "--user", "--name", "attic")
    assert code == 2
    assert "cannot write" in err
    assert "run it as root, or with --user for a service of your own" in err


def test_a_worker_of_this_machine_is_told_by_its_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = OwnerLimitsFile(home / "home" / "members", "attic")
    code, _, err = run(capsys, "pause")
    assert (code, err) == (
        2,
        (
            "farflung: you run no worker on this machine: name a worker of another machine, farflung pause NAME "
            "(farflung status lists them)\n"
        ),
    )
    wishes.begin({})
    assert run(capsys, "pause")[1] == ("attic: paused; a run that it works on moves to others; farflung resume ends the pause\n")
    assert wishes.read().paused
    assert run(capsys, "resume", "attic")[1] == "attic: no longer paused\n"
    assert not wishes.read().paused
    assert run(capsys, "limit", "--memory", "4 GB", "--bandwidth", "20 Mbit/s", "--hours", "22:00-07:00")[1] == (
        "attic: works from 22:00 to 07:00, memory 4 GB, sends at most 20 Mbit/s\n"
    )
    assert "memory 4 GiB, " in run(capsys, "limit", "--memory", "4 GiB")[1]
    code, _, err = run(capsys, "limit", "--bandwidth", "0 Mbit/s")
    assert code == 2
    assert err == "farflung: a limit of bandwidth must be at least 8 bit/s, got 0 bit/s: farflung pause lets a worker rest\n"
    for option in ("--bandwidth", "--memory"):
        code, _, err = run(capsys, "limit", option, "20")
        assert code == 2
        assert err.startswith(f"farflung: {option}: a ")
        assert " needs a unit, got '20'; write " in err
    assert run(capsys, "limit", "attic", "--hours", "", "--memory", "", "--bandwidth", "")[1] == "attic: no limits\n"
    assert run(capsys, "drain")[1] == "attic: leaves after the run that it works on, at once if there is none\n"
    assert wishes.read().parting == "drain"
    assert run(capsys, "leave")[1] == "attic: leaves, after the current step if it works on a run\n"
    assert wishes.read().parting == "leave"


def test_limits_are_those_of_a_worker_of_this_machine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "limit", "--memory", "4 GB")
    assert (code, err) == (
        2,
        "farflung: you run no worker on this machine: name the one that will join from here, farflung limit NAME\n",
    )
    note = "no worker 'attic' has joined from this machine yet: the limits hold when one does\n"
    assert run(capsys, "limit", "attic", "--memory", "4 GB") == (0, "attic: memory 4 GB\n", note)
    assert run(capsys, "limit", "attic", "--memory", "5 GB") == (0, "attic: memory 5 GB\n", "")
    assert run(capsys, "limit", "atic", "--memory", "4 GB")[2] == note.replace("attic", "atic").replace(
        "yet", "yet (known here: attic)"
    )


def test_a_worker_elsewhere_is_told_through_the_broker(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    class Broker:
        def wish(self, name: str, **wishes: object) -> None:
            told.append((name, wishes))

        def close(self) -> None:
            told.append("closed")

    monkeypatch.setattr(members, "open_client", lambda ticket, home: Broker())
    assert run(capsys, "pause", "far", "--ticket", "x")[0] == 0
    assert told == [("far", {"paused": True, "parting": None}), "closed"]
    code, _, err = run(capsys, "leave", "--ticket", "x")
    assert (code, err) == (
        2,
        "farflung: name the worker: farflung leave NAME --ticket TICKET (farflung status lists the workers)\n",
    )


def test_a_mistyped_worker_of_this_machine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cellar, attic = (OwnerLimitsFile(home / "home" / "members", name) for name in ("cellar", "attic"))
    cellar.begin({})
    cellar.end()
    end = "; of another machine: farflung leave NAME --ticket TICKET\n"
    assert run(capsys, "leave", "atic") == (
        2,
        "",
        f"farflung: no worker 'atic' runs on this machine; none runs here (known here: cellar){end}",
    )
    attic.begin({})
    assert run(capsys, "leave", "atic")[2] == (f"farflung: no worker 'atic' runs on this machine; running here: attic{end}")


def test_several_workers_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("attic", "cellar"):
        OwnerLimitsFile(home / "home" / "members", name).begin({})
    code, _, err = run(capsys, "leave")
    assert (code, err) == (2, "farflung: 2 workers run on this machine (attic, cellar): name one, e.g. farflung leave attic\n")


def test_a_worker_that_joins_says_its_stored_limits_and_the_commands_that_change_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OwnerLimitsFile(home / "home" / "members", "attic").change(paused=True, memory=4e9)
    code, out, _ = run(capsys, "join", str(TICKET), "--name", "attic", "--retry", "0 s")
    assert code != 0
    assert out.splitlines()[0] == (
        "attic: paused, memory 4 GB; farflung resume ends the pause, and farflung limit changes the limits"
    )


def test_limits_of_a_join_that_fails_are_not_stored(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = OwnerLimitsFile(home / "home" / "members", "attic")
    before = stored.change(memory=4e9)
    given = ("--memory", "1 GB", "--bandwidth", "20 Mbit/s", "--hours", "22:00-07:00")
    code, out, _ = run(capsys, "join", str(TICKET), "--name", "attic", "--retry", "0 s", *given)
    assert code != 0
    assert out.startswith("attic: works from 22:00 to 07:00, memory 1 GB, sends at most 20 Mbit/s; ")
    assert stored.read() == before
