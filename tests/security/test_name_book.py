"""Names belong to keys, and keys are kept."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.errors import InputError, SecurityError
from farflung.security import kept_key, key_fingerprint, make_request, new_key
from farflung.security.authority import CertificateAuthority
from farflung.security.book import Book
from farflung.security.name_book import NameBook

NOW = 1e9


def test_a_name_belongs_to_its_first_key_until_the_certificate_ends(tmp_path: Path) -> None:
    book = NameBook(tmp_path / "names.sqlite")
    book.bind("attic", "k1", "t1", now=NOW, until=NOW + 10)
    book.bind("attic", "k1", "t2", now=NOW + 5, until=NOW + 15)
    assert (book.ticket("attic"), book.ticket("cellar")) == ("t2", "")
    with pytest.raises(
        SecurityError,
        match=r"the name 'attic' belongs to another key: join from the machine that has it .*, choose another name with --name, "
        "or let the broker's owner run: farflung ticket free attic",
    ):
        NameBook(tmp_path / "names.sqlite").bind("attic", "k2", "t1", now=NOW + 14, until=NOW + 99)
    book.bind("attic", "k2", "t1", now=NOW + 15, until=NOW + 99)


def test_an_owner_frees_a_name(tmp_path: Path) -> None:
    book = NameBook(tmp_path / "names.sqlite")
    book.bind("attic", "k1", "t1", now=NOW, until=NOW + 10)
    book.free("attic")
    book.bind("attic", "k2", "t1", now=NOW, until=NOW + 10)
    with pytest.raises(InputError, match="no key has the name 'cellar'; bound are attic"):
        book.free("cellar")


def test_a_damaged_book_is_named(tmp_path: Path) -> None:
    place = tmp_path / "names.sqlite"
    place.write_bytes(b"no database at all, by no means, whatever is said")
    place.chmod(0o600)
    with pytest.raises(SecurityError, match=r"the book of names .* is damaged: .*; restore or delete it"):
        NameBook(place)


def test_a_key_is_made_once_and_known_by_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "home" / "member-key.pem"
    key = kept_key(path)
    assert kept_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["member-key.pem"]
    authority = CertificateAuthority.open(tmp_path / "authority", NOW)

    def signed(name: str, held: bytes) -> str:
        return key_fingerprint(authority.sign(make_request(name, held), name=name, role="worker", now=NOW))

    assert signed("a", key) == signed("b", key)
    assert signed("a", key) != signed("a", new_key())
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="lets others read it"):
        kept_key(path)


def test_a_key_that_is_barred_while_the_book_is_read_stays_barred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, real, barring = NameBook(tmp_path / "names.sqlite"), Book.transaction, list[threading.Thread]()

    @contextmanager
    def transaction(book: Book) -> Iterator[sqlite3.Connection]:
        with real(book) as connection:
            yield connection
        if not barring:  # what ``barred`` has read is old from here on
            barring.append(threading.Thread(target=lambda: names.bar("ann", "k1", barred=True)))
            barring[0].start()
            barring[0].join(0.2)  # it ends, or it waits for the lock of ``barred``

    monkeypatch.setattr(Book, "transaction", transaction)
    assert not names.barred()
    barring[0].join()
    assert names.barred() == {"k1": "ann"}
