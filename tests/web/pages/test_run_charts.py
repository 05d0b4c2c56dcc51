"""The points of charts of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.telemetry.records import StepRecord
from farflung.web.pages import run_charts
from farflung.web.pages.run_charts import RunChart, column
from farflung.web.sources.live_run import LiveRun
from farflung.web.widgets.chart import Line

DRAWN: list[_Drawn] = []


class _Drawn:
    """Takes the place of the browser's chart."""

    def __init__(self, label: str, lines: Any, data: Any, *, x: Any, **more: Any) -> None:
        self.data, self.logarithmic = [list(points) for points in data], x.logarithmic
        DRAWN.append(self)


def _run(folder: Path, *sent: int) -> LiveRun:
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for number, nbytes in enumerate(sent):
            link = {(0, 1): nbytes} if nbytes else {}
            record = StepRecord(step=number, loss=1.0, seconds=1.0, elapsed=1.0, samples=1, tokens=0, link_bytes=link)
            file.write(record.to_line())
    run = LiveRun(folder)
    run.series.read()
    return run


def test_a_run_without_traffic_leaves_a_logarithmic_axis_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point at 0 bytes has no place on such an axis, and the browser would draw nothing."""
    monkeypatch.setattr(run_charts, "LineChart", _Drawn)
    runs = [_run(tmp_path / "one", 0, 0), _run(tmp_path / "two", 5, 7)]
    RunChart("Loss", [(run, Line(name=run.name), column("loss")) for run in runs], x="traffic")
    assert DRAWN[-1].logarithmic
    assert DRAWN[-1].data == [[], [(5.0, 1.0), (12.0, 1.0)]]
    RunChart("Loss", [(runs[0], Line(name="one"), column("loss"))], x="traffic")
    assert not DRAWN[-1].logarithmic
    assert DRAWN[-1].data == [[(0.0, 1.0), (0.0, 1.0)]]
