"""Takeover in the same step and repetition in later ones: cases by hand, and the table of decision 54."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.repeated_slices import CASES, Setting, later_rounds, same_step, table, waiting

PAGE = Path(__file__).parents[3] / "docs" / "decisions" / "0054-repeated-slices.md"


def test_without_stragglers_all_ways_take_a_step() -> None:
    even = [1.0] * 4
    assert waiting(even) == same_step(even, 4) == 1.0
    assert later_rounds([even] * 3, 4) == (1.0, 1.0)


def test_idle_workers_take_what_has_not_begun_and_copy_what_is_late() -> None:
    # One slice each: the late one is copied at 1.5, and its copy ends before the straggler.
    assert same_step([1.0, 5.0], 1) == 2.5
    assert same_step([1.0, 2.0], 1) == 2.0, "a copy would come too late"
    # Two slices each: at 1.0, the other worker takes the second slice, then copies the first one.
    assert same_step([1.0, 9.0], 2) == 2.0


def test_repeated_slices_lengthen_the_next_round_by_their_part() -> None:
    rows = [[1.0, 4.0], [1.0, 1.0]]
    # The straggler finishes one of four slices. Two sound workers repeat three: two parts of a quarter.
    assert later_rounds(rows, 4)[0] == pytest.approx((1.0 + 1.5) / 2)
    # With one model, the other worker repeats all three before the next step begins.
    assert later_rounds(rows, 4)[1] == pytest.approx((1.75 + 1.0) / 2)


def test_stragglers_are_drawn_by_seed_and_chance() -> None:
    paces = Setting(steps=500, chance=0.1).paces()
    assert paces == Setting(steps=500, chance=0.1).paces() != Setting(steps=500, chance=0.1, seed=1).paces()
    late = sum(pace > 1 for row in paces for pace in row) / (500 * 16)
    assert late == pytest.approx(0.1, abs=0.01)


def test_the_decision_shows_what_the_simulation_finds() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]
    found = table(CASES)
    assert len(shown) == len(found)
    for cells, row in zip(shown, found, strict=True):
        ways = [row[key] for key in ("waiting", "same_step", "later_one_model", "later_two_models")]
        assert cells == [str(row["slices"]), f"{row['chance']:g}", *(f"{seconds:.3f}" for seconds in ways)]
    several = [row for row in found if row["slices"] >= 4]
    assert max(row["same_step"] / row["later_two_models"] for row in several) < 1.0115
