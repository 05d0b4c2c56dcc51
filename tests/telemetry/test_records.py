"""Records and results: what is written is read back, and damage is named."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import DataError
from farflung.telemetry import CodecUse, EvaluationRecord, RecoveryRecord, RunResult, StepRecord, read_record
from farflung.telemetry.attempt_record import AttemptRecord

COUNTS = st.integers(0, 2**50)
POSITIVE = st.floats(0, 1e9)
LINKS = st.dictionaries(st.tuples(st.integers(0, 99), st.integers(0, 99)), COUNTS, max_size=4)
STEPS = st.builds(
    StepRecord,
    step=COUNTS,
    loss=st.floats(allow_nan=False),
    seconds=POSITIVE,
    elapsed=POSITIVE,
    samples=COUNTS,
    tokens=COUNTS,
    learning_rate=POSITIVE,
    predicted_seconds=st.none() | POSITIVE,
    link_bytes=LINKS,
    dense_bytes=LINKS,
    busy_seconds=st.dictionaries(st.integers(0, 99), POSITIVE, max_size=4),
    skipped=st.booleans(),
)


def step(**changes: object) -> StepRecord:
    values: dict[str, object] = {"step": 1, "loss": 2.5, "seconds": 0.5, "elapsed": 1.0, "samples": 8}
    return StepRecord(**(values | changes))  # type: ignore[arg-type]


def changed(record: StepRecord, **changes: object) -> str:
    return json.dumps(json.loads(record.to_line()) | changes)


@settings(deadline=None, max_examples=100)
@given(STEPS)
def test_step_records_read_back(record: StepRecord) -> None:
    assert read_record(record.to_line()) == record


def test_a_loss_that_is_no_number_survives() -> None:
    record = read_record(step(loss=math.nan, skipped=True).to_line())
    assert isinstance(record, StepRecord)
    assert math.isnan(record.loss)
    assert record.skipped


def test_evaluations_read_back() -> None:
    for record in (
        EvaluationRecord(step=3, elapsed=9.0, loss=2.0, perplexity=math.exp(2.0)),
        EvaluationRecord(step=3, elapsed=9.0, loss=2.0, accuracy=0.5),
    ):
        assert read_record(record.to_line()) == record


def test_rates_and_totals() -> None:
    record = step(tokens=1024, link_bytes={(0, 1): 10, (1, 0): 5}, busy_seconds={0: 0.1, 1: 0.3})
    assert record.samples_per_second == 16.0
    assert record.total_bytes == 15
    assert record.slowest_stage == 1
    assert json.loads(record.to_line())["samples_per_second"] == 16.0
    assert step(seconds=0.0).samples_per_second == 0.0
    assert step().slowest_stage is None


def test_other_kinds_are_passed_over() -> None:
    assert read_record('{"kind": "progress"}') is None
    assert read_record("{}") is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"kind": "st', "this metrics line is not JSON"),
        ("[" * 100_000, "this metrics line is not JSON"),
        ("[1]", "a metrics line must be a JSON object"),
        (changed(step(), loss="low"), "loss must be a number, got 'low'"),
        (changed(step(), loss=True), "loss must be a number, got True"),
        (changed(step(), loss=10**400), "loss must be a number, got 1000"),
        (changed(step(), step=1.5), "step must be a whole number, got 1.5"),
        (changed(step(), samples=None), "samples must be a whole number, got None"),
        (changed(step(), link_bytes=[1]), r"link_bytes must be an object, got \[1\]"),
        (changed(step(), link_bytes={"0-1": 5}), "a link must read source->target, got '0-1'"),
        (changed(step(), link_bytes={"0->x": 5}), "a stage must be a whole number, got 'x'"),
        (changed(step(), busy_seconds={"²": 5}), "a stage must be a whole number, got '²'"),
        ('{"kind": "evaluation", "step": 1}', "elapsed must be a number, got None"),
    ],
)
def test_damage_is_named(line: str, text: str) -> None:
    with pytest.raises(DataError, match=text):
        read_record(line)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.data())
def test_damaged_lines_are_read_or_refused(record: StepRecord, data: st.DataObject) -> None:
    line = record.to_line()
    at = data.draw(st.integers(0, len(line) - 1))
    damaged = line[:at] + data.draw(st.text(max_size=3)) + line[at + data.draw(st.integers(0, 3)) :]
    try:
        read_record(damaged)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ways are right, but an error is one line


def test_results_read_back() -> None:
    result = RunResult(status="failed", steps=7, seconds=3.5, cause="worker b died", checkpoint="/x", sample="to be\n")
    assert RunResult.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "this result is not JSON"),
        ('{"status": "fine"}', "a result's status must be finished, stopped or failed, got 'fine'"),
        ('{"status": "failed", "steps": 1}', "seconds must be a number"),
    ],
)
def test_damaged_results_are_named(text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        RunResult.from_json(text)


def test_how_far_replicas_were_apart_is_written_where_it_is_known() -> None:
    apart = StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.0, samples=4, divergence=0.125)
    assert read_record(apart.to_line()) == apart
    together = StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.0, samples=4)
    assert "divergence" not in together.fields()
    assert read_record(together.to_line()) == together


def test_what_codecs_took_is_written_where_links_have_one() -> None:
    uses = {(0, 1): CodecUse(encode_seconds=0.5, decode_seconds=0.25, error=0.125), (1, 0): CodecUse()}
    coded = StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.0, samples=4, codecs=uses)
    assert read_record(coded.to_line()) == coded
    assert "codecs" not in StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.0, samples=4).fields()
    with pytest.raises(DataError, match="encode must be a number, got 'much'"):
        read_record(coded.to_line().replace("0.5,", '"much",', 1))


def test_a_recovery_names_the_state_from_which_the_run_continues() -> None:
    def text(source: str) -> str:
        return str(RecoveryRecord(step=4, attempt=2, replayed=2, pause=1.0, elapsed=5.0, devices=("a", "b"), source=source))

    assert text("checkpoint") == "resumed after 1.0 s on a, b, from the checkpoint after step 4; 2 steps repeated, from step 4"
    assert ", from copies of the state; " in text("copies")
    assert ", from the state in memory; " in text("memory")
    assert ", from the initial weights; " in text("start")


def test_bytes_that_moved_and_stages_that_are_no_numbers_are_damage() -> None:
    line = RecoveryRecord(
        step=4, attempt=2, replayed=2, pause=1.0, elapsed=5.0, devices=("a",), source="copies", moved=7
    ).to_line()
    assert isinstance(read_record(line), RecoveryRecord)
    with pytest.raises(DataError, match=r"^moved must be a whole number, got \[7\]"):
        read_record(line.replace('"moved":7', '"moved":[7]'))
    with pytest.raises(DataError, match=r"this line about an attempt is damaged \(OverflowError"):
        AttemptRecord.from_line(f'{{"attempt":1,"step":0,"elapsed":{10**400},"plan":{{}},"topology":{{}}}}')
    step = StepRecord(step=1, loss=2.0, seconds=1.0, elapsed=2.0, samples=4, link_bytes={(0, 1): 5}).to_line()
    with pytest.raises(DataError, match=r"^a stage must be a whole number, got '9999"):
        read_record(step.replace("0->1", f"0->{'9' * 5000}"))
