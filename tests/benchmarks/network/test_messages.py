"""``messages`` reads the same messages in every way."""

from __future__ import annotations

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network import messages


def test_every_way_reads_both_messages() -> None:
    chosen = BENCHMARKS.get("messages")
    report = chosen.run(chosen.settings(quick=True), lambda text: None)
    found = report.figures["median_microseconds"]
    assert {name.split(":")[0] for name in found} == {"value", "step report"}
    assert len(found) == 6
    assert all(median > 0 for median in found.values())
    assert report.passed is None


@pytest.mark.parametrize(("ours", "passed"), [(1.0, True), (3.0, False)])
def test_msgspec_must_be_the_faster_one(ours: float, passed: bool) -> None:
    medians = {"value: msgspec, from the header": ours, "value: pydantic, from the header": 2.0}
    assert messages.comparison(medians, "value", judged=True).passed is passed
