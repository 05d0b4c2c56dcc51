"""``farflung web`` and its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="the extra farflung[web] is not installed")

from farflung.cli.main import main
from farflung.web.serving import start


def test_an_address_that_an_open_dashboard_cannot_take_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "authority").mkdir()

    def served(home: Path, listen: str | None, announce: Callable[[str, bool], None]) -> None:
        announce(f"http://127.0.0.1:7080/{home.name}", listen == "127.0.0.1:1")

    monkeypatch.setattr(start, "serve_broker", served)
    notes = {}
    for listen in ((), ("--listen", "127.0.0.1:0"), ("--listen", "127.0.0.1:1")):
        with pytest.raises(SystemExit) as over:
            main(["web", "--home", str(tmp_path), *listen])
        assert over.value.code == 0
        out, notes[listen[1:]] = capsys.readouterr()
        assert "http://127.0.0.1:7080/" in out
    note = "note: --listen 127.0.0.1:0 has no effect, because a dashboard of this broker is open already\n"
    assert notes == {(): "", ("127.0.0.1:0",): note, ("127.0.0.1:1",): ""}
