"""Calls of the command line that end in one line of error."""

from __future__ import annotations

import pytest

from farflung.cli.main import main
from farflung.security import Ticket


def line(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """The one line that the command leaves on standard error."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    said = capsys.readouterr().err
    assert caught.value.code == code, said
    assert said.startswith("farflung: ")
    assert said.count("\n") == 1, "one line"
    return said.removeprefix("farflung: ").rstrip()


def a_ticket(scope: str, address: str, expires: float) -> str:
    made = Ticket(scope=scope, addresses=(address,), fingerprint=bytes(32), ticket_id="t1", secret=bytes(16), expires=expires)
    return str(made)


def main_ok(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code
