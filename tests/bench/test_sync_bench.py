"""Replicas on emulated links at the smallest size: that the bench measures what it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from farflung.bench.catalog import BENCHMARKS
from farflung.bench.sync_network import SyncNetworkSettings, _report
from farflung.bench.sync_network_plot import draw
from farflung.errors import InputError


def item(strategy: str, seconds: float, x: float = 1.0, predicted: float = 1.0) -> dict[str, Any]:
    return {"model": "gpt2", "x": x, "strategy": strategy, "seconds": seconds, "predicted": predicted, "backward": 0.5}


def test_targets_are_judged_by_the_ratios_of_what_was_measured() -> None:
    settings = SyncNetworkSettings(models=("gpt2",), ratios=(1.0,))
    found = [item("asc_wfbp", 2.6), item("local_sgd", 1.1), item("contiguous", 1.01), item("free_sets", 1.0)]
    checks = {check.name: check.passed for check in _report(settings, found).checks}
    assert checks == {
        "measured period against the scheduler's prediction, median": True,
        "gpt2: free sets against asc_wfbp at x = 1": True,
        "gpt2: free sets against local_sgd at x = 1": False,
        "gpt2: free sets against contiguous ones at x = 1": True,
    }
    assert _report(SyncNetworkSettings(quick=True, models=("gpt2",)), found).passed is None


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_iterations_are_measured_beside_their_prediction() -> None:
    chosen = BENCHMARKS.get("sync-network")
    report: Any = chosen.run(chosen.settings(quick=True), lambda text: None)
    runs = {run["strategy"]: run for run in report.figures["runs"]}
    assert set(runs) == {"asc_wfbp", "local_sgd", "free_sets"}
    for run in runs.values():
        assert run["seconds"] > 0.9 * (run["forward"] + run["backward"])
        assert run["predicted"] >= run["paper_seconds"] > run["forward"] + run["backward"] - 1e-9
        assert run["communication"] == pytest.approx(3 * run["backward"], rel=0.05)
    whole = runs["asc_wfbp"]["sent_bytes_per_step"]
    assert runs["local_sgd"]["sent_bytes_per_step"] == pytest.approx(whole / 3, rel=0.01)
    assert runs["free_sets"]["sent_bytes_per_step"] == pytest.approx(whole / 3, rel=0.01)
    assert runs["free_sets"]["seconds"] < runs["asc_wfbp"]["seconds"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_model_that_is_not_known() -> None:
    chosen = BENCHMARKS.get("sync-network")
    with pytest.raises(InputError, match="unknown model 'vgg': known are gpt2, llama"):
        chosen.run(SyncNetworkSettings(models=("vgg",)), lambda text: None)


def test_curves_are_drawn(tmp_path: Path) -> None:
    runs = [item(name, 2.0 / x, x) | {"forward": 0.25} for name in ("asc_wfbp", "free_sets") for x in (0.5, 1.0)]
    draw({"runs": runs}, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert "<svg" in text
    with pytest.raises(InputError, match=r"a plot is written as .svg, .png or .pdf, not as 'curves.txt'"):
        draw({"runs": runs}, tmp_path / "curves.txt")
