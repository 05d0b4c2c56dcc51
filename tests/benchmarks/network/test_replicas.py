"""``replicas``: its reading of times, its verdicts, and a short run in real namespaces."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network.replica_peer import PEERS
from benchmarks.network.replicas import OURS, ReplicasSettings, period_seconds
from farflung.errors import InputError


def silent(text: str) -> None:
    """Say nothing."""


def test_the_first_period_and_an_open_one_do_not_count() -> None:
    assert period_seconds([9.0, 9.0, 1.0, 3.0, 5.0, 7.0, 100.0], 2) == [2.0, 6.0]
    assert period_seconds([9.0], 2) == []


def test_each_peer_has_one_of_our_strategies() -> None:
    assert set(OURS) == set(PEERS)


def test_one_member_has_nobody_to_exchange_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.network.replicas.require_root", lambda: None)
    chosen = BENCHMARKS.get("replicas")
    with pytest.raises(InputError, match="members must be at least 2, got 1"):
        chosen.run(override(chosen.settings(quick=True), ["members=1"]), silent)


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_short_run() -> None:
    chosen = BENCHMARKS.get("replicas")
    settings = chosen.settings(quick=True)
    assert isinstance(settings, ReplicasSettings)
    report: Any = chosen.run(settings, silent)
    assert report.passed is None
    (case,) = report.figures["cases"]
    assert set(case["seconds"]) == {"torch ddp", "wfbp"}
    assert all(seconds > 0 for found in case["seconds"].values() for seconds in found)
    gradients = 4 * case["parameters"]
    assert case["bytes_per_step"]["wfbp"] >= 2 * gradients, "each member sends at least its own gradients"
