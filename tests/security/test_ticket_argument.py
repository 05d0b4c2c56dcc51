"""A ticket in a file: for ``join`` and for every command with ``--ticket``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import farflung
from farflung.cli import broker_connection
from farflung.errors import InputError, SecurityError
from farflung.security import Ticket
from farflung.security.ticket_argument import parse_ticket

TICKET = Ticket(scope="submit", addresses=("127.0.0.1:9",), fingerprint=bytes(32), ticket_id="t1", secret=bytes(16), expires=4e9)


class Net(torch.nn.Module):
    """A model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found.mean()


@pytest.mark.parametrize("sign", ["@", ""])
def test_a_command_reads_the_ticket_from_a_file(sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    file = tmp_path / "ticket"
    file.write_text(f"{TICKET}\n")
    file.chmod(0o600)
    joined: list[Ticket] = []
    monkeypatch.setattr(broker_connection, "join", lambda ticket, **options: joined.append(ticket))
    broker_connection.join_broker(f"{sign}{file}", reads=True)
    broker_connection.join_broker(str(TICKET), reads=True)
    assert joined == [TICKET, TICKET]


def test_a_missing_file() -> None:
    with pytest.raises(InputError, match="there is no file 'nowhere' that could hold a ticket: check the path after @"):
        parse_ticket("@nowhere")


def test_a_file_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "ticket"
    file.write_text(str(TICKET))
    file.chmod(0o644)
    with pytest.raises(SecurityError, match=f"run: chmod 600 {file}"):
        parse_ticket(f"@{file}")


def test_python_callers_name_a_file_too() -> None:
    missing = "there is no file 'nowhere' that could hold a ticket"
    with pytest.raises(InputError, match=missing):
        farflung.connect("@nowhere")
    with pytest.raises(InputError, match=missing):
        farflung.train(Net, lambda step, micro_batch: (torch.ones(2, 3),), steps=1, ticket="@nowhere")
