"""The run folder: appending, reading back, and what a cut leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import DataError
from farflung.telemetry import EvaluationRecord, RunFolder, RunResult, StepRecord
from farflung.telemetry.folder import newest_labels

RECORDS: list[StepRecord | EvaluationRecord] = [
    StepRecord(step=0, loss=3.0, seconds=1.0, elapsed=1.0, samples=4, link_bytes={(0, 1): 7}),
    EvaluationRecord(step=1, elapsed=1.5, loss=2.9, perplexity=18.0),
    StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.5, samples=4),
]


def test_records_read_back_in_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for record in RECORDS:
        folder.append(record)
    assert list(folder.records()) == RECORDS


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_cut_loses_at_most_the_last_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    lines = [record.to_line() for record in RECORDS]
    text = "".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    folder.metrics.write_text(text[:cut])
    assert list(folder.records()) == RECORDS[: text[:cut].count("\n")]


def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(RECORDS[0].to_line() + "garbage\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: this metrics line is not JSON"):
        list(folder.records())


def test_a_folder_without_metrics_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*metrics\.jsonl: No such file.*; is .* the folder of a run\?"):
        list(RunFolder(tmp_path).records())


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*metrics\.jsonl"):
        RunFolder(tmp_path / "none").append(RECORDS[0])


def test_no_result_means_cut_short(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_result() is None
    result = RunResult(status="finished", steps=2, seconds=2.5)
    folder.result.write_text(result.to_json())
    assert folder.read_result() == result


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"])
def test_a_damaged_result_is_named_by_file(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.result.write_bytes(content)
    with pytest.raises(DataError, match=r"result\.json"):
        folder.read_result()


def test_every_path_lies_in_the_folder_under_its_documented_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = {p.name for p in (folder.job, folder.graph, folder.topology, folder.plan, folder.metrics, folder.result)}
    assert names == {"job.json", "graph.json", "topology.json", "plan.json", "metrics.jsonl", "result.json"}
    assert folder.events == tmp_path / "events"


def test_a_list_of_runs_has_the_newest_last_with_the_names_of_their_jobs(tmp_path: Path) -> None:
    assert newest_labels(tmp_path / "none") == "none"
    (tmp_path / "notes.txt").write_text("no run")
    for age, (run, text) in enumerate([("run-b", '{"name": "gpt"}'), ("run-a", '{"name": "lora"}'), ("run-c", "{")]):
        folder = RunFolder(tmp_path / run)
        folder.root.mkdir()
        folder.job.write_text(text)
        os.utime(folder.job, (age + 1, age + 1))
    (tmp_path / "run-d").mkdir()  # copied without its job
    assert newest_labels(tmp_path) == "run-d, run-b (gpt), run-a (lora), run-c"
