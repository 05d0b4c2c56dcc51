"""Where commands draw, and tables that no output cuts."""

from __future__ import annotations

import pytest
from rich.table import Table

from farflung.telemetry.terminal import print_table, terminal


def test_nothing_is_drawn_where_it_can_not_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert terminal().is_terminal
    assert not terminal(plain=True).is_terminal
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal().is_terminal


@pytest.mark.parametrize("columns", ["20", "80", "400"])
def test_a_table_is_as_wide_as_its_content(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = Table("worker", *(f"figure {i}" for i in range(12)))
    name = "a-machine-with-a-name-of-its-own-" * 3
    table.add_row(name, *(["12.34 s (100%)"] * 12))
    print_table(table)
    rows = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert [row.count("12.34 s (100%)") for row in rows] == [12], "one line for each row"
