"""Replicas on emulated links at the smallest size: that the bench measures what it says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from benchmarks.network.sync_network import SyncNetworkSettings, _report
from benchmarks.network.sync_network_plot import draw
from benchmarks.training.sync_loss import exchange_share, step_seconds, time_to_loss
from benchmarks.training.sync_loss_models import torch_network
from benchmarks.training.sync_loss_networks import PixelNetwork, SyncLossSettings, network_of
from farflung.errors import InputError
from farflung.job.spec import JobSpec


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
@pytest.mark.timeout(400)
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


def test_more_steps_in_the_same_time_end_lower(tmp_path: Path) -> None:
    chosen = BENCHMARKS.get("sync-loss")
    settings = override(chosen.settings(quick=True), ["asc_steps=8", f"plot={tmp_path / 'loss.svg'}"])
    report: Any = chosen.run(settings, lambda text: None)
    curves = report.figures["curves"]["text"]
    steps = {name: points[-1]["steps"] for name, points in curves.items()}
    assert steps["asc_wfbp"] == 8
    assert steps["asc_wfbp"] < steps["local_sgd"] < steps["contiguous"] <= steps["free_sets"]
    assert {points[-1]["seconds"] for points in curves.values()} == {8 * report.figures["step_seconds"]["asc_wfbp"]}
    assert curves["free_sets"][-1]["loss"] < curves["asc_wfbp"][-1]["loss"]
    assert "<svg" in (tmp_path / "loss.svg").read_text(encoding="utf-8")


def test_each_period_has_its_curves_at_equal_steps(tmp_path: Path) -> None:
    chosen = BENCHMARKS.get("sync-loss")
    pairs = ["periods=2,4", "strategies=asc_wfbp,local_sgd,contiguous", "asc_steps=8", f"plot={tmp_path / 'steps.svg'}"]
    report: Any = chosen.run(override(chosen.settings(quick=True), pairs), lambda text: None)
    curves, seconds = report.figures["curves"]["text"], report.figures["step_seconds"]
    assert set(curves) == {"asc_wfbp", *(f"{name}, H = {period}" for name in ("local_sgd", "contiguous") for period in (2, 4))}
    assert {points[-1]["steps"] for points in curves.values()} == {8}
    assert seconds["asc_wfbp"] > seconds["local_sgd, H = 2"] > seconds["local_sgd, H = 4"] > seconds["contiguous, H = 4"]
    assert curves["local_sgd, H = 2"][-1]["seconds"] == 8 * seconds["local_sgd, H = 2"]
    assert len({points[-1]["loss"] for points in curves.values()}) == 5
    loss, divergence = report.checks
    assert "loss of partial sets over local_sgd after equal steps, the worst of 2" in loss.name
    assert "divergence of partial sets over local_sgd, mean over all steps, the worst of 2" in divergence.name
    assert curves["local_sgd, H = 2"][-1]["divergence"] > curves["asc_wfbp"][-1]["divergence"] == 0
    assert "<svg" in (tmp_path / "steps.svg").read_text(encoding="utf-8")


def test_seconds_of_several_periods_are_those_of_dreamddp(tmp_path: Path) -> None:
    seconds = {"ssgd": 4.0, "local_sgd": 2.0, "equal_number": 1.5, "dreamddp": 1.0, "free": 0.5}
    runs = [
        {"model": "gpt2", "workers": 32, "sync_every": period, "seconds": {name: one / period for name, one in seconds.items()}}
        for period in (5, 10)
    ]
    file = tmp_path / "dreamddp.json"
    file.write_text(json.dumps({"figures": {"periods": runs}}), encoding="utf-8")
    settings = SyncLossSettings(measured=str(file), members=32, periods=(5, 10), strategies=("ssgd", "partial", "free_sets"))
    assert step_seconds(settings) == pytest.approx(
        {"ssgd": 0.8, "partial, H = 5": 0.3, "free_sets, H = 5": 0.1, "partial, H = 10": 0.15, "free_sets, H = 10": 0.05}
    )
    exchange = (0.8 - 0.4) / 0.8
    assert exchange_share(settings) == pytest.approx(exchange / ((0.8 - exchange) * 2 / 3))
    assert exchange_share(SyncLossSettings()) == 1.0
    with pytest.raises(InputError, match="has no runs of gpt2 with 8 workers and all of the periods; choose others"):
        step_seconds(replace(settings, members=8))
    with pytest.raises(InputError, match="holds no figures of sync-network or dreamddp"):
        step_seconds(replace(settings, periods=(5,)))
    file.write_text(json.dumps({"figures": {"runs": [item("asc_wfbp", 3.0)]}}), encoding="utf-8")
    with pytest.raises(InputError, match="measured seconds are those of one period: leave measured out, or periods"):
        step_seconds(settings)


def test_the_time_to_a_loss_lies_between_two_points() -> None:
    curves = {
        "slow": [{"seconds": 10.0, "loss": 4.0}, {"seconds": 20.0, "loss": 2.0}],
        "fast": [{"seconds": 1.0, "loss": 3.0}, {"seconds": 2.0, "loss": 1.0}],
        "at once": [{"seconds": 0.5, "loss": 1.0}],
    }
    assert time_to_loss(curves) == {"slow": 20.0, "fast": 1.5, "at once": 0.5}


def test_strategies_that_exchange_each_step_share_a_curve(tmp_path: Path) -> None:
    chosen = BENCHMARKS.get("sync-loss")
    pairs = ["periods=2,4", "strategies=ssgd,asc_wfbp,local_sgd", "asc_steps=4", "tasks=gpt", "width=16", "hidden=1"]
    report: Any = chosen.run(override(chosen.settings(quick=True), pairs), lambda text: None)
    curves, seconds = report.figures["curves"]["gpt"], report.figures["step_seconds"]
    assert [point["loss"] for point in curves["ssgd"]] == [point["loss"] for point in curves["asc_wfbp"]]
    for name in ("ssgd", "asc_wfbp"):
        assert curves[name][-1]["seconds"] == 4 * seconds[name]
    assert report.figures["time_to_loss"]["gpt"].keys() == curves.keys()


@pytest.mark.parametrize("task", ["gpt", "resnet-18"])
def test_gradients_of_a_model_are_those_of_its_loss(task: str) -> None:
    network = torch_network(SyncLossSettings(width=16, hidden=1, channels=2, samples=4), task, 0)
    start = network.start()
    loss, grads = network.gradient(start, 0, 0)
    assert [grad.shape for grad in grads] == [layer.shape for layer in start]
    moved = [layer - 1e-3 * grad for layer, grad in zip(start, grads, strict=True)]
    slope = sum(float((grad**2).sum()) for grad in grads)
    assert loss - network.gradient(moved, 0, 0)[0] == pytest.approx(1e-3 * slope, rel=0.2)
    assert network.gradient(start, 0, 0)[0] == loss
    assert network.gradient(start, 0, 1)[0] != loss, "another member has other samples"


def test_a_task_that_is_not_known() -> None:
    with pytest.raises(InputError, match="unknown task 'vgg': known are text, images, gpt, resnet-18"):
        network_of(SyncLossSettings(), "vgg", 0)


def test_measured_times_are_those_nearest_to_one(tmp_path: Path) -> None:
    runs = [item("asc_wfbp", 3.0, 0.5), item("asc_wfbp", 2.0, 1.1), item("free_sets", 1.0, 1.1)]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"figures": {"runs": runs}}), encoding="utf-8")
    settings = SyncLossSettings(measured=str(file), strategies=("asc_wfbp", "free_sets"))
    assert step_seconds(settings) == {"asc_wfbp": 2.0, "free_sets": 1.0}
    with pytest.raises(InputError, match="has no run of local_sgd with gpt2: measure it, too"):
        step_seconds(SyncLossSettings(measured=str(file), strategies=("local_sgd",)))
    with pytest.raises(InputError, match="holds no figures of sync-network or dreamddp"):
        step_seconds(SyncLossSettings(measured=str(tmp_path / "none.json")))


def test_gradients_of_the_pixel_network_are_those_of_its_loss() -> None:
    random = np.random.default_rng(0)
    images = random.standard_normal((6, 5)), np.array([0, 1, 2, 0, 1, 2])
    network = PixelNetwork(SyncLossSettings(width=4, samples=6), {"train": images, "test": images}, 0)
    start = [layer.astype(np.float64) for layer in network.start()]
    loss, grads = network.gradient(start, 0, 0)
    for layer, grad in zip(start, grads, strict=True):
        layer[0, 0] += 1e-6
        assert (network.gradient(start, 0, 0)[0] - loss) / 1e-6 == pytest.approx(grad[0, 0], abs=1e-4)
        layer[0, 0] -= 1e-6


def test_what_sync_loss_can_not_read(tmp_path: Path) -> None:
    chosen = BENCHMARKS.get("sync-loss")
    for pair, text in ((f"text={tmp_path / 'none'}", "can't be read"), (f"images={tmp_path}", "has no folder per class")):
        with pytest.raises(InputError, match=text):
            chosen.run(override(chosen.settings(quick=True), [pair, "asc_steps=2"]), lambda text: None)


def test_extra_memory_is_counted_against_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def peaks(folder: Path, job: JobSpec, members: int) -> tuple[list[int], int]:
        assert (job.plan.replicas, job.micro_batches, job.sync.strategy != "exact") == (members, members, members > 1)
        return [1000] if members == 1 else [1030, 1050], 500

    monkeypatch.setattr("benchmarks.training.sync_memory._peaks", peaks)
    chosen = BENCHMARKS.get("sync-memory")
    report: Any = chosen.run(chosen.settings(quick=False), lambda text: None)
    assert report.figures["extra_percent"] == pytest.approx(8.0)
    assert report.passed is False
