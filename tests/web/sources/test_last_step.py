"""The newest step of a trace, from the ends of its files."""

from __future__ import annotations

from pathlib import Path

from farflung.telemetry import ClockOffset, Span, SpanKind, write_spans
from farflung.web.sources.last_step import last_step_chart
from tests.support.steps.small_runs import small_plan


def spans(steps: int) -> list[Span]:
    return [
        Span(what=SpanKind.COMPUTE, name="F", start=float(step), seconds=0.5, stage=0, micro_batch=0, step=step)
        for step in range(steps)
    ]


def test_the_newest_step_that_all_have_finished_is_drawn(tmp_path: Path) -> None:
    write_spans(tmp_path, "a", spans(6), offset=ClockOffset(seconds=2.0))
    write_spans(tmp_path, "b", spans(5))
    found = last_step_chart(tmp_path, small_plan())
    assert found is not None
    assert found[0] == 4, "step 5 may be on its way"
    assert found[1].count("<svg") == 1
    assert "a computes" in found[1]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_spans(tmp_path, name, spans(5000))
    found = last_step_chart(tmp_path, small_plan())
    assert found is not None
    assert found[0] == 4999


def test_a_run_without_a_trace_has_no_chart(tmp_path: Path) -> None:
    assert last_step_chart(tmp_path, small_plan()) is None
    (tmp_path / "a.jsonl").write_text('{"kind": "span"}\nnonsense\n')
    assert last_step_chart(tmp_path, small_plan()) is None
