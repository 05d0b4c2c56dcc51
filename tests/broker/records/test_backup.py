"""A backup of a broker that runs makes a folder with the same keys, tickets, runs and checkpoints."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from farflung.broker.records.backup import back_up, restore
from farflung.broker.records.journal import Journal, JournaledRun
from farflung.clock import wall_time
from farflung.errors import DataError, InputError
from farflung.security.authority import CertificateAuthority
from farflung.security.ticket_book import TicketBook


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a broker with a run."""
    found = tmp_path / "broker"
    CertificateAuthority.open(found / "authority", wall_time())
    TicketBook(found / "tickets.sqlite").issue("join", addresses=["a:1"], fingerprint=bytes(32), now=wall_time())
    step = found / "runs" / "r" / "checkpoints" / "step-0000000001"
    step.mkdir(parents=True)
    for name in ("manifest.json", "w1.safetensors"):
        (step / name).write_text(name)
    (found / "runs" / "r" / "job.json").write_text("{}")
    (found / "submit-ticket").write_text("the owner's")
    return found


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_in_use_is_restored(home: Path, tmp_path: Path) -> None:
    with closing(Journal(home / "journal.sqlite")) as journal:
        journal.write("r", "submitted", submitter="me")
        summary = back_up(home, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert restore(tmp_path / "b.tar", tmp_path / "new") == summary
    assert (summary.runs, summary.files) == (1, len(_files(tmp_path / "new")))
    with closing(Journal(tmp_path / "new" / "journal.sqlite")) as again:
        assert again.runs == (JournaledRun(run="r", submitter="me"),)
    assert TicketBook(tmp_path / "new" / "tickets.sqlite").list() == TicketBook(home / "tickets.sqlite").list()
    same = {name: data for name, data in _files(home).items() if "sqlite" not in name and name != "submit-ticket"}
    assert {name: data for name, data in _files(tmp_path / "new").items() if "sqlite" not in name} == same


def test_a_python_without_filters_of_archives_restores(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 to 3.11.3: ``TarFile.extractall`` takes no ``filter``."""

    def of_python_3_11_2(archive: tarfile.TarFile, path: str = ".", members: None = None, *, numeric_owner: bool = False) -> None:
        raise AssertionError("the test has no such archive")

    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", of_python_3_11_2)
    back_up(home, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "new")
    assert (tmp_path / "new" / "runs" / "r" / "job.json").read_text() == "{}"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_links_or_devices_is_refused(tmp_path: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("runs/link")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(entry)
    with pytest.raises(InputError, match="is no whole backup"):
        restore(tmp_path / "evil.tar", tmp_path / "new")


def test_the_journal_is_first_and_each_manifest_last(home: Path, tmp_path: Path) -> None:
    Journal(home / "journal.sqlite").close()
    back_up(home, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as archive:
        names = archive.getnames()
    assert names[0] == "journal.sqlite"
    step = [Path(name).name for name in names if "checkpoints" in name]
    assert step == ["w1.safetensors", "manifest.json"]


@pytest.mark.parametrize("place", ["b.tar", "runs/r/b.tar"])
def test_a_backup_in_the_brokers_folder_is_refused(home: Path, place: str) -> None:
    pattern = r"b\.tar is in the broker's folder, which may be lost: choose a place outside of .*/broker$"
    with pytest.raises(InputError, match=pattern):
        back_up(home, home / place)
    assert not (home / place).exists()


def test_checkpoints_may_be_left_out(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "b.tar", checkpoints=False)
    restore(tmp_path / "b.tar", tmp_path / "new")
    assert not (tmp_path / "new" / "runs" / "r" / "checkpoints").exists()
    assert (tmp_path / "new" / "runs" / "r" / "job.json").exists()


@pytest.mark.parametrize("end", [0, 700, -10240, -1024 * 30])
def test_a_backup_that_was_cut_off_changes_nothing(home: Path, tmp_path: Path, end: int) -> None:
    back_up(home, tmp_path / "b.tar")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "b.tar").read_bytes()[:end])
    with pytest.raises(InputError, match=r"cut\.tar is no whole backup of a broker: it is damaged or was cut off; make one with"):
        restore(tmp_path / "cut.tar", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "broker", "cut.tar"]


def test_a_missing_backup_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.tar is no file: name a file of farflung backup$"):
        restore(tmp_path / "none.tar", tmp_path / "new")


def test_an_archive_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(InputError, match="is no whole backup"):
        restore(tmp_path / "evil.tar", tmp_path / "deep" / "new")
    assert not (tmp_path / "deep" / "outside").exists()


def test_nothing_is_overwritten(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "b.tar")
    with pytest.raises(InputError, match=r"b\.tar exists already: choose another name, or delete it first"):
        back_up(home, tmp_path / "b.tar")
    with pytest.raises(InputError, match=r"broker is not empty: move it away, or choose another folder with --home"):
        restore(tmp_path / "b.tar", home)


def test_a_backup_that_cannot_be_written_leaves_nothing(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*none/b\.tar: No such file or directory; choose another folder"):
        back_up(home, tmp_path / "none" / "b.tar")


def test_a_damaged_book_is_named(home: Path, tmp_path: Path) -> None:
    (home / "names.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"cannot read .*names\.sqlite"):
        back_up(home, tmp_path / "b.tar")
    assert not list(tmp_path.glob("*.tar"))
    with closing(sqlite3.connect(home / "tickets.sqlite")) as book:
        assert book.execute("SELECT count(*) FROM tickets").fetchone() == (1,)
