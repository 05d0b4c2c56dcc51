"""Events as lines: strict JSON, whole lines from many threads, and what is there before the file is closed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import DataError
from farflung.telemetry import Event, JsonLines
from farflung.telemetry.events import encode_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def event(kind: str, **fields: object) -> Event:
    return Event(time=5.0, kind=kind, process="worker", fields=fields)  # type: ignore[arg-type]


def test_lines_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "events" / "worker.jsonl")
    sink.write(event("step", step=1))
    assert lines(tmp_path / "events" / "worker.jsonl") == [{"time": 5.0, "kind": "step", "process": "worker", "step": 1}]
    sink.close()
    sink.close()
    sink.write(event("late"))
    assert len(lines(tmp_path / "events" / "worker.jsonl")) == 1


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "worker.jsonl")
    threads = [
        threading.Thread(target=lambda n=n: [sink.write(event("e", n=n, i=i, pad="x" * 500)) for i in range(50)])
        for n in range(8)
    ]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    seen = [(line["n"], line["i"]) for line in lines(tmp_path / "worker.jsonl")]
    assert sorted(seen) == [(n, i) for n in range(8) for i in range(50)]  # type: ignore[type-var]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write telemetry to .*w\.jsonl: .*; choose a folder that can be written"):
        JsonLines(tmp_path / "file" / "w.jsonl")


@settings(deadline=None, max_examples=100)
@given(fields=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_any_fields_make_one_line_of_strict_json(fields: dict[str, object]) -> None:
    line = encode_line(fields)  # type: ignore[arg-type]
    assert line.count("\n") == 1
    assert line.endswith("\n")

    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is not JSON")

    assert set(json.loads(line, parse_constant=refuse)) == set(fields)
