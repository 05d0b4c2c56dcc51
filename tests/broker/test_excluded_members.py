"""Whom workers agree to have left out of a step, and who began it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farflung.broker.excluded_members import blamed_members, excluded_members
from farflung.messages.conversions.step_reports import StepReport


def reports(excluded: Mapping[str, str], spoilers: Mapping[str, str] | None = None) -> dict[str, StepReport]:
    """Of workers named by one letter: whom each of them left out, and who sent it spoilt values."""
    return {
        name: StepReport(
            step=0,
            seconds=1.0,
            busy=1.0,
            wait=0.0,
            sent={},
            dense={},
            stage_busy={},
            excluded=frozenset(left_out),
            spoilers=frozenset((spoilers or {}).get(name, "")),
        )
        for name, left_out in excluded.items()
    }


def test_more_than_the_faulty_must_say_it() -> None:
    told = reports({"a": "e", "b": "e", "c": "e", "d": "e", "e": ""})
    assert excluded_members(told, 1) == ("e",)
    assert excluded_members(reports({"a": "", "b": "", "c": "", "d": "", "e": "ab"}), 1) == (), "a liar alone accuses nobody"
    assert excluded_members(reports({"a": "e", "b": "e", "c": "", "d": "", "e": ""}), 2) == ()


@pytest.mark.parametrize(
    ("spoilers", "blamed"),
    [
        ({"b": "a"}, ("a",)),
        ({}, ("a", "b")),
        ({"a": "b", "b": "a"}, ("a", "b")),
        ({"b": "c"}, ("a", "b")),
    ],
)
def test_who_only_passed_on_what_it_got_is_not_blamed(spoilers: Mapping[str, str], blamed: tuple[str, ...]) -> None:
    assert blamed_members(reports({"a": "", "b": "", "c": ""}, spoilers), ("a", "b")) == blamed
