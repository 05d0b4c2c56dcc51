"""Values as lines: strict JSON. Lines are added to a file whole or not at all."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import DataError, DiskFull
from farflung.telemetry.events import encode_line
from farflung.telemetry.whole_lines import append_lines

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(fields=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_any_fields_make_one_line_of_strict_json(fields: dict[str, object]) -> None:
    line = encode_line(fields)  # type: ignore[arg-type]
    assert line.count("\n") == 1
    assert line.endswith("\n")

    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is not JSON")

    assert set(json.loads(line, parse_constant=refuse)) == set(fields)


def test_lines_follow_each_other(tmp_path: Path) -> None:
    append_lines(tmp_path / "a", "one\n")
    append_lines(tmp_path / "a", "two\nthree\n")
    assert (tmp_path / "a").read_text() == "one\ntwo\nthree\n"


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    """Text is written when the file is closed: that is where it is found."""
    (tmp_path / "a").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"cannot write .*a: No space left on device; free space or choose another folder"):
        append_lines(tmp_path / "a", "one\n")


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    append_lines(tmp_path / "a", "one\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
    try:
        with pytest.raises(DataError, match=r"cannot write .*a: File too large"):
            append_lines(tmp_path / "a", "two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a").read_text() == "one\n"
