"""Figure 8 of FusionLLM at the smallest size: what each link compresses, and that all compressions train the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.harness.base import override
from benchmarks.training.fusionllm_loss import FusionLlmLoss, FusionLlmLossSettings, chain_seconds, codec_values
from farflung.cluster import Topology
from farflung.errors import InputError


def report_of(*pairs: str) -> Any:
    bench = FusionLlmLoss()
    return bench.run(override(bench.settings(quick=True), pairs), lambda text: None)


def test_the_slowest_link_keeps_a_third_of_what_uniform_top_k_keeps() -> None:
    found = codec_values([1.0, 0.25, 0.005], 100.0)
    assert found["top-k"]["forward"] == found["top-k"]["backward"] == "topk:ratio=100,format=paper"
    assert found["AdaTopK"]["by_link"] == ("topk:ratio=300.000,format=paper", "topk:ratio=75.000,format=paper", "identity")


def test_seconds_of_a_chain_are_those_of_the_links_between_neighbors() -> None:
    topology = Topology.preset("local4-two-regions")
    found = chain_seconds(topology, [1000, 1000, 1000])
    slowest = float(topology.alpha.max() + 1000 / topology.beta.min())
    assert np.argmax(found) == 1, "one community after the other, so that the middle link is between regions"
    assert max(found) == pytest.approx(slowest)
    assert len(chain_seconds(topology, [1000])) == 1


def test_each_model_has_a_curve_for_each_compression() -> None:
    report = report_of()
    for model, stages in (("resnet-18", 4), ("gpt", 4)):
        found = report.figures["models"][model]
        assert found["stages"] == stages
        assert len(found["links"]) == stages - 1
        assert found["steps"] == [2, 4]
        ratios = {name: one["ratio"] for name, one in found["variants"].items()}
        assert ratios["dense"] == pytest.approx(1.0)
        assert ratios["top-k"] > 10.0
        losses = {name: one["losses"] for name, one in found["variants"].items()}
        assert len({tuple(one) for one in losses.values()}) == 3
        assert all(len(one) == 2 for one in losses.values())
    assert report.passed is None


def test_compressions_begin_with_the_same_weights() -> None:
    """At ratio 1, top-k sends everything, so that all curves are those of dense training."""
    found = report_of("models=resnet-18", "ratio=1").figures
    losses = [one["losses"] for one in found["models"]["resnet-18"]["variants"].values()]
    assert losses[0] == losses[1]


def test_a_divergence_has_no_loss() -> None:
    report = report_of("models=resnet-18", "image_lr=1e30")
    found = report.figures["models"]["resnet-18"]["variants"]["dense"]
    assert found["losses"][-1] is found["held_out"] is None
    assert [row[4:] for row in report.rows if row[1] == "top-k"] == [("-", "-", "diverged")]
    assert all(check.measured == "diverged" for check in report.checks)


def test_a_model_that_is_not_known() -> None:
    with pytest.raises(InputError, match=r"unknown model 'vgg': known are resnet-18, resnet-101, gpt"):
        report_of("models=vgg")
    assert FusionLlmLossSettings().models == ("resnet-18", "resnet-101", "gpt")
