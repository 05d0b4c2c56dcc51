"""Tickets: one line that survives copying, and clear words when it does not."""

import base64
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError, SecurityError
from farflung.security import Ticket
from farflung.security.ticket_book import TicketBook
from farflung.units import Seconds

NOW = 1_790_000_000.0
PRINT = bytes(range(32))


def _ticket(**changes: Any) -> Ticket:
    fields: dict[str, Any] = {
        "scope": "join",
        "addresses": ("broker.example.org:7070", "[2001:db8::1]:7070"),
        "fingerprint": PRINT,
        "ticket_id": "t0",
        "secret": b"s" * 16,
        "expires": NOW + 60,
    }
    return Ticket(**(fields | changes))


def test_the_line_carries_everything_and_is_safe_to_copy() -> None:
    ticket = _ticket()
    line = str(ticket)
    assert line.startswith("farflung1-")
    assert line.removeprefix("farflung1-").isalnum()
    assert len(line) < 220
    assert Ticket.parse(line) == ticket
    assert Ticket.parse(f"  {line[:40]}\n{line[40:].upper()}\n") == ticket
    assert "ssss" not in repr(ticket)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_any_single_typing_error_is_found(position: int, sign: str) -> None:
    line = str(_ticket())
    at = len("farflung1-") + position % (len(line) - len("farflung1-"))
    typo = line[:at] + sign + line[at + 1 :]
    if at == len(line) - 1:  # the last sign has unused low bits
        return
    if typo != line:
        with pytest.raises(SecurityError, match="mistyped or cut"):
            Ticket.parse(typo)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=80))
def test_noise_is_never_a_ticket(text: str) -> None:
    with pytest.raises(SecurityError):
        Ticket.parse("farflung1-" + text)


def test_words_for_what_is_wrong() -> None:
    line = str(_ticket())
    for text, words in [
        ("", "'' is not a ticket: a ticket begins with 'farflung1-'"),
        ("https://example.org/a-very-long-address", r"\.\.\.' is not a ticket"),
        (line[:-9], "mistyped or cut"),
        (line + "!", "mistyped or cut: it contains '!'; copy the whole line"),
        ("farflung1-a", "mistyped or cut: a ticket cannot have 11 characters; copy"),
        ("farflung1-" + "a" * 3000, "at most 2048 signs, this text has 3010"),
    ]:
        with pytest.raises(SecurityError, match=words):
            Ticket.parse(text)


def test_malformed_content_under_a_good_checksum() -> None:
    bad_contents = [[1, 2], "text", ["join", "a:1", PRINT, "t0", b"s" * 16, 5], ["join", [7], PRINT, "t0", b"s" * 16, 5]]
    for body in [msgpack.packb(content) for content in bad_contents] + [b"\xc1", b""]:
        line = "farflung1-" + base64.b32encode(body + hashlib.sha256(body).digest()[:4]).decode().rstrip("=")
        with pytest.raises(SecurityError, match=r"malformed|mistyped"):
            Ticket.parse(line)


def test_impossible_fields_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"addresses": ()}, "at least one address"),
        ({"addresses": ("broker",)}, "'broker' is not an address; write host:port"),
        ({"addresses": ("broker:0",)}, "'broker:0' is not an address"),
        ({"addresses": (":7070",)}, "':7070' is not an address"),
        ({"fingerprint": b"short"}, "a fingerprint of 32 bytes"),
        ({"scope": "no scope"}, "ticket scope 'no scope' must be"),
    ]
    for changes, words in cases:
        with pytest.raises(SecurityError, match=words):
            _ticket(**changes)


def test_an_expired_ticket_is_told_before_the_broker_is_asked() -> None:
    ticket = _ticket()
    ticket.require_current(NOW)
    with pytest.raises(SecurityError, match=r"the ticket expired at 2026-09-21 \d\d:\d\d UTC; ask"):
        ticket.require_current(NOW + 60)


def _book(tmp_path: Path) -> tuple[TicketBook, Ticket]:
    book = TicketBook(tmp_path / "tickets.sqlite")
    return book, book.issue("join", addresses=["b:1"], fingerprint=PRINT, now=NOW, validity=Seconds(3600.0))


def test_a_good_ticket_is_accepted_also_after_a_restart(tmp_path: Path) -> None:
    book, ticket = _book(tmp_path)
    assert Ticket.parse(str(ticket)) == ticket
    record = book.check(ticket.ticket_id, ticket.secret, "join", NOW + 1)
    assert (record.scope, record.expires, record.revoked) == ("join", NOW + 3600, None)
    again = TicketBook(tmp_path / "tickets.sqlite")
    assert again.check(ticket.ticket_id, ticket.secret, "join", NOW + 3599) == record
    assert again.list() == (record,)


def test_refusals(tmp_path: Path) -> None:
    book, ticket = _book(tmp_path)
    for ticket_id, secret, scope, now, words in [
        ("t1", ticket.secret, "join", NOW, "this broker does not know the ticket"),
        (ticket.ticket_id, bytes(16), "join", NOW, "this broker does not know the ticket"),
        (ticket.ticket_id, ticket.secret, "join", NOW + 3600, "expired at 2026-"),
        (ticket.ticket_id, ticket.secret, "submit", NOW, "is for 'join', not for 'submit'"),
    ]:
        with pytest.raises(SecurityError, match=words):
            book.check(ticket_id, secret, scope, now)


def test_revoked_tickets_stay_revoked(tmp_path: Path) -> None:
    book, ticket = _book(tmp_path)
    assert book.revoke(ticket.ticket_id, NOW + 5).revoked == NOW + 5
    assert book.revoke(ticket.ticket_id, NOW + 9).revoked == NOW + 5
    with pytest.raises(SecurityError, match=r"was revoked at 2026-"):
        book.check(ticket.ticket_id, ticket.secret, "join", NOW + 6)
    with pytest.raises(SecurityError, match="does not know the ticket"):  # without the secret nothing is told
        book.check(ticket.ticket_id, bytes(16), "join", NOW + 6)
    with pytest.raises(InputError, match=f"no ticket has the id 'nope'; known are {ticket.ticket_id}"):
        book.revoke("nope", NOW)


def test_the_book_holds_no_secret_and_is_private(tmp_path: Path) -> None:
    _, ticket = _book(tmp_path)
    path = tmp_path / "tickets.sqlite"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ticket.secret not in path.read_bytes()
    with closing(sqlite3.connect(path)) as raw:
        assert len(raw.execute("SELECT secret_hash FROM tickets").fetchone()[0]) == 32
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        TicketBook(path)


def test_a_damaged_book_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tickets.sqlite"
    path.touch(mode=0o600)
    path.write_bytes(b"noise" * 400)
    with pytest.raises(SecurityError, match=r"book of tickets .*tickets.sqlite is damaged: .*; restore or delete it"):
        TicketBook(path)


def test_a_ticket_must_last(tmp_path: Path) -> None:
    book, _ = _book(tmp_path)
    with pytest.raises(InputError, match=r"at least one second, got 0.0"):
        book.issue("join", addresses=["b:1"], fingerprint=PRINT, now=NOW, validity=Seconds(0.0))
