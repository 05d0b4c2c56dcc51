"""Lines for experts are left out of a log, all others are printed."""

from __future__ import annotations

from farflung.telemetry.log_line import Detail, without_details


def test_details_are_left_out() -> None:
    lines: list[str] = []
    say = without_details(lines.append)
    say("worker a joined")
    say(Detail("link to a: 3 MB sent"))
    assert lines == ["worker a joined"]
    assert Detail("x") == "x"
