"""The benchmark of punched links: what it needs, and that it measures both links."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network.nat import NatSettings
from farflung.emulation import nat_network
from farflung.emulation.nat_network import NatNetwork, missing_programs
from farflung.errors import EmulationError


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
        NatNetwork(dict.fromkeys(map(str, range(201)), nat_network.NatType.NONE))


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or bool(missing_programs()), reason="needs root, iproute2 and nftables")
def test_it_measures_both_links() -> None:
    report: Any = BENCHMARKS.get("nat").run(NatSettings(quick=True, pieces=2, warm_up=1, repeats=1), silent)
    assert {kind: len(found) for kind, found in report.figures["bytes_per_second"].items()} == {"plain": 1, "punched": 1}
    assert min(report.figures["median"].values()) > 1e6
    assert [check.passed for check in report.checks] == [None]
