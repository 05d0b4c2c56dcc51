"""The benchmark of links between NATs: what it needs, what it judges, and that it measures each pair."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network.nat import _PAIRS, NatSettings, _report
from farflung.emulation import nat_network
from farflung.emulation.nat_network import NatNetwork, missing_programs
from farflung.errors import EmulationError
from farflung.nat_types import NatType, Way, way_between


def silent(text: str) -> None:
    del text


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match="emulation needs root"):
        BENCHMARKS.get("nat").run(NatSettings(quick=True), silent)


def test_without_its_programs_or_with_too_many_devices_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_network, "require_root", lambda: None)
    monkeypatch.setattr(nat_network, "_SYSTEM_FOLDERS", "/nowhere")
    with pytest.raises(EmulationError, match="needs ip, nft, tc; install the packages iproute2 and nftables"):
        NatNetwork({})
    monkeypatch.setattr(nat_network, "missing_programs", list)
    with pytest.raises(EmulationError, match="has at most 200 devices, got 201; use fewer"):
        NatNetwork(dict.fromkeys(map(str, range(201)), NatType.NONE))


def test_the_worst_pair_is_judged() -> None:
    good: dict[tuple[NatType, NatType], tuple[Way, float]] = {pair: (way_between(*pair), 0.95) for pair in _PAIRS}
    assert [check.passed for check in _report(good, 2e7, NatSettings()).checks] == [True]
    slow = good | {(NatType.SYMMETRIC, NatType.RESTRICTED): (Way.PUNCHED, 0.89)}
    report = _report(slow, 2e7, NatSettings())
    assert [(check.measured, check.passed) for check in report.checks] == [("0.890", False)]
    assert len(report.rows) == 20, "five of 25 pairs need a relay"


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or bool(missing_programs()), reason="needs root, iproute2 and nftables")
def test_it_measures_a_link_between_all_pairs_that_connect_directly() -> None:
    settings = NatSettings(quick=True, pieces=1, warm_up=1, repeats=1, mbit=1000)
    report: Any = BENCHMARKS.get("nat").run(settings, silent)
    assert len(report.figures["ratios"]) == 20
    assert min(report.figures["ratios"].values()) > 0.0
    assert [check.passed for check in report.checks] == [None]
