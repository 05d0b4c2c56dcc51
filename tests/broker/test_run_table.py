"""The runs in memory: an unknown name is answered with those that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.errors import InputError
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.watched_runs import watched


def test_an_unknown_run_is_answered_with_runs_and_the_names_of_their_jobs(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        runs: list[Any] = [cluster.submit(text_job(name=name))[0].run for name in ("first", "second")]
        known = f"there is no run 'run-x'; known runs: {runs[0]} \\(first\\), {runs[1]} \\(second\\)$"
        with pytest.raises(InputError, match=known):
            cluster.client.stop("run-x")
        with pytest.raises(InputError, match=known):
            list(watched(cluster.client, "run-x"))
