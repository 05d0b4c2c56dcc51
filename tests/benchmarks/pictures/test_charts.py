"""Bars carry their values, marks their targets, and curves their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pictures.charts import Bars, Curves, Panel, draw, number
from farflung.errors import InputError


def words(panels: list[Panel], place: Path) -> list[str]:
    draw(panels, place / "drawn.svg")
    return re.findall(r"<text[^>]*>([^<]*)</text>", (place / "drawn.svg").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.5, "0.5"), (-3.118, "-3.12"), (100, "100"), (2.57e-5, "2.57e-05")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_bars_have_names_values_and_targets(tmp_path: Path) -> None:
    rows = {"slow": {"theirs": 4.25, "ours": 1.5}, "fast": {"theirs": 2.0}}
    found = words([Bars(title="Steps", unit="seconds", rows=rows, targets={"slow": 2.0})], tmp_path)
    assert {"Steps", "seconds", "slow", "fast", "4.25", "1.5", "theirs", "ours", "target"} <= set(found)
    assert found.count("theirs") == found.count("target") == 1


def test_a_text_stands_for_the_value_of_a_bar(tmp_path: Path) -> None:
    found = words([Bars(title="", unit="%", rows={"paint": {"": 80.0}}, text={"paint": "0.8 of 1 s"})], tmp_path)
    assert "0.8 of 1 s" in found


def test_a_value_does_not_stand_on_the_mark_of_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    monkeypatch.setattr("benchmarks.pictures.charts.save", lambda figure, path: saved.append(figure))
    rows = {"near": {"": 9.0}, "far": {"": 2.0}, "below": {"": -1.0}}
    draw([Bars(title="", unit="s", rows=rows, targets=dict.fromkeys(rows, 10.0))], tmp_path / "drawn.svg")
    (axis,) = saved[0].axes
    assert [(note.get_text(), note.xy[0], note.get_ha()) for note in axis.texts] == [
        ("9", 10.0, "left"),
        ("2", 2.0, "left"),
        ("-1", -1.0, "right"),
    ]


@pytest.mark.parametrize("log", [False, True])
def test_curves_and_dots_have_names(tmp_path: Path, log: bool) -> None:
    curves = {"one": [(1.0, 2.0), (3.0, 4.0)], "two": [(1.0, 1.0), (3.0, 2.0)]}
    lines = Curves(title="A", x="seconds", y="GB", curves=curves, levels={"plan": 5.0}, log=log)
    dots = Curves(title="B", x="", y="ratio", curves=curves, dots=True, diagonal=True, log=log)
    found = words([lines, dots], tmp_path)
    assert {"A", "B", "seconds", "GB", "ratio", "plan", "equal"} <= set(found)
    assert found.count("one") == found.count("two") == 2


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a plot is written as .svg, .png or .pdf, not as 'drawn.txt'"):
        draw([Bars(title="", unit="s", rows={"a": {"": 1.0}})], tmp_path / "drawn.txt")
