"""``farflung watch`` of a run that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.cli.main import main
from farflung.cli.runs import logs, watch
from farflung.telemetry.log_file import LogPart


class Broker:
    patience = 0.0

    def status(self) -> dict[str, Any]:
        waits = {"state": "waiting", "needs": 2, "ahead": 0}
        runs = [{"run": "run-2", "absent": ["attic", "cellar"]}, {"run": "run-3", "barred": ["gpu1", "gpu2"]}]
        return {"runs": [waits | run for run in ({"run": "run-1"}, *runs)]}

    def log(self, name: str, **wanted: int) -> tuple[LogPart, bool]:
        return LogPart(lines=(), position=0), True

    def close(self) -> None:
        pass


@pytest.mark.parametrize("command", [["watch"], ["logs", "--ticket", "farflung-x"], ["logs"]])
@pytest.mark.parametrize(
    ("run", "line"),
    [
        ("run-1", "run-1: waiting; needs 2 idle workers"),
        ("run-2", "run-2: waiting; waits for attic, cellar to return"),
        ("run-3", "run-3: waiting; needs 2 idle workers (not gpu1, gpu2: join --only)"),
    ],
)
def test_the_reason_comes_first(
    command: list[str], run: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    (tmp_path / "broker" / "runs" / run).mkdir(parents=True)
    (tmp_path / "broker" / "runs" / run / "run.log").touch()
    (tmp_path / "broker" / "submit-ticket").touch()
    for module in (watch, logs):
        monkeypatch.setattr(module, "open_client", lambda ticket, home, **options: Broker())
    monkeypatch.setattr(watch, "follow_run", lambda client, run, **options: None)
    with pytest.raises(SystemExit):
        main([*command, run])
    assert capsys.readouterr().out.splitlines() == [line]


def test_a_log_needs_no_broker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The broker was killed: its ticket is still there."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    folder = tmp_path / "broker" / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "run.log").write_text("2026-11-23 04:00:00 submitted\n")
    (tmp_path / "broker" / "submit-ticket").write_text("farflung-x")
    with pytest.raises(SystemExit):
        main(["logs", "run-1"])
    assert capsys.readouterr().out.splitlines() == ["2026-11-23 04:00:00 submitted"]
