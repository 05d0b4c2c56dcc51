"""Reports of several runs, and the figures behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.errors import DataError, InputError
from farflung.telemetry import RunFolder, StepRecord
from farflung.web.reports import compare_report, load_run
from farflung.web.reports.tables import common_loss, comparison

MakeRun = Callable[..., Path]


def folder_with(make_run: MakeRun, name: str, losses: list[float], seconds: float, nbytes: int) -> Path:
    folder = make_run(name, steps=0)
    for i, loss in enumerate(losses):
        record = StepRecord(step=i, loss=loss, seconds=seconds, elapsed=seconds * (i + 1), samples=1, link_bytes={(0, 1): nbytes})
        RunFolder(folder).append(record)
    return folder


def test_a_comparison_has_plots_and_a_row_for_each_run(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("dense", seconds=2.0, nbytes=100_000), make_run("sparse", seconds=0.4, nbytes=2_000)]
    path = compare_report(folders, ["dense", "_AdaTopK <100> $x$"], tmp_path / "compare.html")
    text = path.read_text()
    assert text.count("<svg") == 3
    assert "_AdaTopK &lt;100&gt; $x$" in text
    assert text.count("_AdaTopK &lt;100&gt; $x$") >= 4, "in the table and in the legend of each plot"
    assert "5×" in text
    assert "<100>" not in text


def test_time_and_bytes_to_the_loss_that_all_runs_reached(make_run: MakeRun) -> None:
    slow = load_run(folder_with(make_run, "slow", [9.0] * 10 + [5.0] * 10 + [1.0] * 20, 2.0, 100), "slow")
    fast = load_run(folder_with(make_run, "fast", [9.0] * 20 + [5.0] * 20, 0.5, 10), "fast")
    assert common_loss([slow, fast]) == 5.0
    table = comparison([slow, fast])
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    # The mean of the last ten steps is 5.0 at the tenth step with loss 5: step 20 of the slow run, step 30 of the fast one.
    assert rows["slow"]["time to 5"] == "40.00 s"
    assert rows["slow"]["bytes to 5"] == "2 kB"
    assert rows["fast"]["time to 5"] == "15.00 s"
    assert rows["fast"]["bytes to 5"] == "300 B"
    assert rows["fast"]["faster by"] == "4×"
    assert rows["fast"]["slowest link, per step"] == "10 B"


def test_a_resumed_run_reaches_no_loss_in_its_first_step(make_run: MakeRun) -> None:
    first = load_run(folder_with(make_run, "first", [9.0] * 10 + [5.0] * 10, 2.0, 100), "first")
    folder = make_run("resumed", steps=0)
    for i in range(20):
        RunFolder(folder).append(
            StepRecord(step=20 + i, loss=4.0, seconds=1.0, elapsed=i + 1.0, samples=1, link_bytes={(0, 1): 10})
        )
    table = comparison([first, load_run(folder, "resumed")])
    assert table.rows[0][-2:] == ("40.00 s", "2 kB")
    assert table.rows[1][-2:] == ("–", "–")
    assert "resumed resumed after step 20" in table.note


def test_a_run_without_steps_has_a_row_of_dashes(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("a"), make_run("b", steps=0, without=("result.json",))]
    table = comparison([load_run(folder) for folder in folders])
    assert set(table.rows[1][4:8]) == {"–"}
    assert table.head[-1] == "bytes to –"
    text = compare_report(folders, ["a", "b"], tmp_path / "c.html").read_text()
    assert "Not finished: b (cut short)." in text


def test_the_slowest_link_is_the_one_that_takes_longest(make_run: MakeRun) -> None:
    run = load_run(make_run(nbytes=2_000))
    assert run.slowest_link == (1, 0), "half the bytes but more latency"
    assert load_run(make_run("other", nbytes=2_000, without=("topology.json",))).slowest_link == (0, 1), "most bytes"
    assert load_run(make_run("none", steps=0)).slowest_link is None


def test_the_clock_of_a_resumed_run_goes_on(make_run: MakeRun) -> None:
    folder = folder_with(make_run, "resumed", [3.0, 2.0], 1.0, 10)
    for i in (2, 3):
        RunFolder(folder).append(StepRecord(step=i, loss=1.0, seconds=1.0, elapsed=i - 1.0, samples=1, link_bytes={(0, 1): 10}))
    run = load_run(folder)
    assert run.clock == (1.0, 2.0, 3.0, 4.0)
    assert run.traffic == (10, 20, 30, 40)


def test_markdown_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    path = compare_report([make_run("a"), make_run("b")], ["a|b", "c"], tmp_path / "compare.md")
    text = path.read_text()
    assert r"| a\|b |" in text
    assert re.findall(r"\(compare-[a-z-]+\.svg\)", text) == [f"(compare-loss-{x}.svg)" for x in ("time", "bytes", "steps")]


@pytest.mark.parametrize(
    ("count", "labels", "match"),
    [
        (0, [], "a comparison needs one label for each run, got 0 runs and 0 labels"),
        (2, ["a"], "a comparison needs one label for each run, got 2 runs and 1 labels"),
        (2, ["a", "a"], "the labels of a comparison must differ, got a, a"),
    ],
)
def test_labels_must_fit(make_run: MakeRun, tmp_path: Path, count: int, labels: list[str], match: str) -> None:
    folders = [make_run(str(i)) for i in range(count)]
    with pytest.raises(InputError, match=match):
        compare_report(folders, labels, tmp_path / "c.html")


def test_a_missing_run_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none is not a complete run folder"):
        compare_report([make_run("a"), tmp_path / "none"], ["a", "b"], tmp_path / "c.html")
