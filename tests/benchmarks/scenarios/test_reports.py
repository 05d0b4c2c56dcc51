"""Settings from a command line, and what a report says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest

from benchmarks.harness.base import Check, Report, Settings, bounded, override
from benchmarks.harness.catalog import BENCHMARKS
from farflung.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Settings):
    names: tuple[str, ...] = ("a", "b")
    counts: tuple[int, ...] = (1, 2)
    rate: float = 0.5
    size: int = 3
    text: str = ""
    flag: bool = True
    none_or_more: int = bounded(4)
    part: float = bounded(0.5, most=1.0)
    nobody: int = 0


def test_settings_keep_the_types_of_their_defaults() -> None:
    pairs = ["names=x,y,z", "counts=4,5", "rate=2", "size=7", "text=12", "flag=false", "quick=true"]
    found = override(Sample(), pairs)
    assert found == Sample(names=("x", "y", "z"), counts=(4, 5), rate=2.0, size=7, text="12", flag=False, quick=True)
    assert isinstance(found.rate, float)


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("nothing=1", "unknown setting 'nothing=1': write key=value, known keys are counts, flag"),
        ("size", "unknown setting 'size': write key=value"),
        ("size=many", "setting size='many' must be like its default, 3"),
        ("size=1.5", "setting size='1.5' must be like its default, 3"),
        ("size=true", "setting size='true' must be like its default, 3"),
        ("flag=1", "setting flag='1' must be like its default, true"),
        ("rate=fast", "setting rate='fast' must be like its default, 0.5"),
        ("counts=1,x", "setting counts='x' must be like its default, 1"),
        ("size=0", "setting size='0' must be 1 or more, e.g. its default, 3"),
        ("counts=2,0", "setting counts='2,0' must be 1 or more, e.g. its default, 1"),
        ("counts=", "setting counts='' names nothing: give at least one, e.g. counts=1,2"),
        ("names=", "setting names='' names nothing: give at least one, e.g. names=a,b"),
        ("rate=0", "setting rate='0' must be above 0, e.g. its default, 0.5"),
        ("rate=-1", "setting rate='-1' must be above 0, e.g. its default, 0.5"),
        ("rate=NaN", "setting rate='NaN' must be above 0, e.g. its default, 0.5"),
        ("rate=Infinity", "setting rate='Infinity' must be above 0, e.g. its default, 0.5"),
        ("seed=-1", "setting seed='-1' must be 0 or more, e.g. its default, 0"),
        ("nobody=-1", "setting nobody='-1' must be 0 or more, e.g. its default, 0"),
        ("none_or_more=-1", "setting none_or_more='-1' must be 0 or more, e.g. its default, 4"),
        ("part=1.5", "setting part='1.5' must be from 0 to 1, e.g. its default, 0.5"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(pair: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        override(Sample(), [pair])
    assert str(caught.value).startswith(text)


def test_what_may_be_nothing_may_be_set_to_it() -> None:
    found = override(Sample(), ["none_or_more=0", "part=0", "nobody=0", "seed=0"])
    assert (found.none_or_more, found.part, found.nobody, found.seed) == (0, 0.0, 0, 0)


def numbers(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Names and values of the settings that are numbers, or tuples of some."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        one = value[0] if isinstance(value, tuple) and value else value
        if isinstance(one, int | float) and not isinstance(one, bool):
            yield item.name, value


@pytest.mark.parametrize("name", list(BENCHMARKS))
@pytest.mark.parametrize("quick", [False, True])
def test_no_benchmark_takes_a_count_or_time_that_can_not_be(name: str, quick: bool) -> None:
    settings = BENCHMARKS.get(name).settings(quick)
    checked = list(numbers(settings))
    assert checked
    for key, value in checked:
        with pytest.raises(InputError, match=rf"^setting {key}='-1' must be .*, e\.g\. its default, "):
            override(settings, [f"{key}=-1"])
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert getattr(override(settings, [f"{key}={text}"]), key) == value, "its default is taken"


@pytest.mark.parametrize(
    ("name", "pair"),
    [("chain", "instances=0"), ("fuzz", "minutes=-1"), ("memory", "workers=0"), ("chaos", "kills=0"), ("transport", "cases=")],
)
def test_no_benchmark_measures_nothing(name: str, pair: str) -> None:
    with pytest.raises(InputError, match=f"^setting {pair.partition('=')[0]}="):
        override(BENCHMARKS.get(name).settings(quick=True), [pair])


def report(*passed: bool | None) -> Report:
    checks = [Check(name=f"c{i}", target="t", measured="m", passed=value, note="why") for i, value in enumerate(passed)]
    return Report(figures={"x": 1}, columns=("a", "long column"), rows=[(1.23456789, "b")], checks=checks)


def test_a_report_passes_when_all_that_is_judged_passes() -> None:
    assert report(True, None).passed is True
    assert report(True, False).passed is False
    assert report(None).passed is None
    assert report().passed is None


def test_the_table_has_aligned_columns_and_a_line_for_each_check() -> None:
    lines = report(True, False, None).table().splitlines()
    assert lines[0] == "a      long column"
    assert lines[1] == "1.235  b"
    assert lines[2:] == [
        "c0: m, target t: reached (why)",
        "c1: m, target t: MISSED (why)",
        "c2: m, target t: not judged (why)",
    ]


def test_the_document_holds_settings_machine_figures_and_verdict() -> None:
    document = report(False).document("name", Sample(), {"cores": 2})
    assert document["benchmark"] == "name"
    assert document["settings"]["names"] == ("a", "b")
    assert document["environment"] == {"cores": 2}
    assert document["figures"] == {"x": 1}
    assert document["passed"] is False
    assert document["checks"][0]["name"] == "c0"
