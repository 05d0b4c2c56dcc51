"""``farflung trace`` through a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.telemetry import Span, SpanKind
from farflung.telemetry.trace import write_spans
from tests.support.commands.planned_jobs import run


def test_names_are_whole_where_the_output_is_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"workstation-in-the-attic-worker-{i}-of-the-north-building" for i in range(3)]
    for name in names:
        spans = [Span(what=SpanKind.COMPUTE, name="F", start=float(i), seconds=0.5, step=i, stage=0) for i in range(4)]
        write_spans(tmp_path / "events", name, spans)
    code, out, _ = run(["trace", tmp_path], capsys)
    assert code == 0
    for name in names:
        (row,) = [line for line in out.splitlines() if name in line]
        assert row.count("%)") == 4, "compute, transfer only, wait only, other"
