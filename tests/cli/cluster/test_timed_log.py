"""The log of a broker or worker on its terminal."""

from __future__ import annotations

import re
import sys

import pytest
from rich.console import Console

from farflung.cli.cluster.timed_log import timed_log
from farflung.telemetry.activity import Activity


def test_the_live_line_is_erased_before_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = timed_log(verbose=False)
    with Activity(Console(file=sys.stdout, force_terminal=True, width=80)) as activity:
        activity.phase("loading PyTorch")
        capsys.readouterr()
        log("isolation: full [1]")
        shown = capsys.readouterr().out
    assert re.match(r"\r\x1b\[2K\d\d:\d\d:\d\d isolation: full \[1\] *\n", shown), repr(shown)
    log("joined\nas attic")
    assert re.search(r"\d\d:\d\d:\d\d joined\n         as attic\n$", capsys.readouterr().out)
