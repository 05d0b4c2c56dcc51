"""The study of losses: what it trains, what it counts, and what it makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.base import override
from benchmarks.training.loss import Loss, LossSettings, _checks, _topology
from benchmarks.training.loss_study.loss_study import VARIANTS, LossStudy, auto_variant, summary
from benchmarks.training.loss_study.runs import Gradients, Training, Values, adaptive_codecs, gpt_stages, train
from benchmarks.training.loss_study.settings import LATENCY, LINKS
from farflung.codecs import words_per_kept
from farflung.codecs.samples import sample_ids
from farflung.errors import InputError


def report_of(*pairs: str) -> Any:
    study = LossStudy()
    return study.run(override(study.settings(quick=True), pairs), lambda text: None)


def test_a_quick_study_has_every_case_and_fewer_bytes_with_codecs(tmp_path: Path) -> None:
    report = report_of(f"partial={tmp_path / 'rows.json'}", f"plot={tmp_path / 'study.svg'}", "models=gpt")
    cases = {(row["way"], row["phase"], row["variant"]): row for row in report.figures["means"]}
    assert len(cases) == 8
    assert all(row["ratio"] > 2 for (_, _, variant), row in cases.items() if variant == "auto")
    assert all(row["ratio"] == pytest.approx(1.0) and row["gap"] == 0 for (_, _, v), row in cases.items() if v == "dense")
    assert json.loads((tmp_path / "rows.json").read_text()) == report.figures["runs"]
    assert (tmp_path / "study.svg").read_text().startswith("<?xml")
    assert report.passed is None


def test_a_study_goes_on_from_what_it_has_left(tmp_path: Path) -> None:
    """Rows of the same settings are kept as they are, others are made again."""
    partial = tmp_path / "rows.json"
    first = report_of(f"partial={partial}", "models=gpt", "only=dense")
    kept = json.loads(partial.read_text())
    kept[0]["loss"], kept[1]["how"] = 7.0, "something else"
    partial.write_text(json.dumps(kept))
    again = report_of(f"partial={partial}", "models=gpt", "only=dense")
    losses = {row["way"] + row["phase"]: row["loss"] for row in again.figures["runs"]}
    truth = {row["way"] + row["phase"]: row["loss"] for row in first.figures["runs"]}
    assert losses == truth | {"pipelinescratch": 7.0}
    assert len(again.figures["runs"]) == 4
    partial.write_text("[1]")
    with pytest.raises(InputError, match=r"rows.json holds no rows of a study; name another file, or remove it"):
        report_of(f"partial={partial}")


def test_auto_is_what_plans_choose() -> None:
    bits = "quantized:bits=4,block=256,rotate=1,scale=normal", "quantized:bits=3,block=256,rotate=1,scale=normal"
    assert auto_variant("pipeline", "scratch") == {"forward": bits[0], "backward": bits[1], "difference": False}
    sign = "quantized:bits=1,block=1024,rotate=1"
    assert auto_variant("pipeline", "fine-tuning") == {"forward": sign, "backward": sign, "difference": True}
    sparse = {"codec": "topk:ratio=36,values=int4", "memory": "error_feedback:decay=0.7"}
    low = {"codec": "lowrank:rank=16,values=int4,ratio=100", "memory": "error_feedback:decay=0.9"}
    assert auto_variant("replicas", "scratch") == sparse
    assert auto_variant("replicas", "fine-tuning") == low


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="unknown variant 'zip': known are 1 bit"):
        report_of("only=zip")
    with pytest.raises(InputError, match="unknown model 'bert': known are gpt, resnet18"):
        report_of("models=bert")
    with pytest.raises(InputError, match="unknown way 'ring': known are pipeline, replicas"):
        report_of("ways=ring")


def test_models_with_waists_stand_beside_the_dense_one() -> None:
    rows = report_of("models=gpt", "ways=waist", "only=dense,learned 1/4,random 1/4").figures["runs"]
    found = {row["variant"]: row for row in rows}
    assert {name: row["ratio"] for name, row in found.items()} == {"dense": 1.0, "learned 1/4": 4.0, "random 1/4": 4.0}
    assert all(found["dense"]["bytes"] == 4 * row["bytes"] for name, row in found.items() if name != "dense")
    assert len({row["loss"] for row in rows}) == 3
    assert found["learned 1/4"]["parameters"] == found["dense"]["parameters"] + 3 * 2 * 4 * 16
    with pytest.raises(InputError, match="way 'waist' is for the model gpt, not resnet18: set models=gpt"):
        report_of("models=resnet18", "ways=waist")


def trained(values: Values, gradients: Gradients, members: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    network = gpt_stages(4, 16, 8)
    tokens = torch.arange(32).reshape(4, 8) % 11
    batch = tokens, tokens + 1, sample_ids([tokens.numpy()], 4)
    train(network, Training(steps=3, lr=1e-2, batch=lambda step: batch, members=members), values, gradients, lambda *at: None)
    return {name: value.clone() for name, value in network.stages.state_dict().items()}


def test_lossless_cuts_and_replicas_are_plain_training() -> None:
    plain = trained(Values(), Gradients())
    cut = trained(Values(forward="fp16", backward="fp16"), Gradients())
    apart = trained(Values(), Gradients(), members=2)
    for name, value in plain.items():
        torch.testing.assert_close(cut[name], value, rtol=0.05, atol=0.02)
        torch.testing.assert_close(apart[name], value, rtol=0.05, atol=0.02)
    rough = trained(Values(forward="sign", backward="sign"), Gradients())
    assert any(not torch.equal(rough[name], value) for name, value in plain.items())


def test_means_are_of_seeds_that_all_variants_have() -> None:
    def row(variant: str, seed: int, loss: float) -> dict[str, Any]:
        case = {"model": "gpt", "way": "pipeline", "phase": "scratch"}
        return case | {"variant": variant, "seed": seed, "loss": loss, "ratio": 4.0}

    found = summary([row("dense", 0, 2.0), row("auto", 0, 2.1), row("dense", 1, 9.0)])
    assert [(one["variant"], one["loss"], one["seeds"]) for one in found] == [("dense", 2.0, 1), ("auto", 2.1, 1)]
    assert found[1]["gap"] == pytest.approx(0.05)


def test_auto_is_held_against_dense_training_at_a_rate() -> None:
    """The time of training is computed from curves and seconds of a step; links get the rate."""
    settings = LossSettings(rate="80 Mbit/s")
    topology = _topology(settings)
    assert {float(topology.beta[a, b]) for a in range(4) for b in range(4) if a != b} == {1e7}
    assert _topology(LossSettings()).beta.max() > 1e7
    point = {"bytes": 1.0, "train_loss": 1.0}
    dense = [{"eval_loss": 3.0, "seconds": 5.0, **point}, {"eval_loss": 2.0, "seconds": 10.0, **point}]
    auto = [{"eval_loss": 2.5, "seconds": 2.0, **point}, {"eval_loss": 1.9, "seconds": 4.0, **point}]
    figures = {"seconds_per_step": {"dense": 1.0}, "phases": {"scratch": {"dense": dense, "auto": auto}}}
    (check,) = _checks(settings, figures)
    assert (check.passed, check.measured) == (True, "2.50 x shorter (4 s against 10 s)")
    figures["phases"]["scratch"]["auto"] = auto[:1]
    assert _checks(settings, figures)[0].passed is False
    assert _checks(settings, {**figures, "seconds_per_step": {}}) == []


def test_other_variants_may_train_longer() -> None:
    bench = Loss()
    small = override(bench.settings(quick=True), ["variants=dense,auto", "longer=2", "data=", "tune="])
    phases = bench.run(small, lambda text: None).figures["phases"]
    assert {name: curve[-1]["step"] for name, curve in phases["scratch"].items()} == {"dense": 4, "auto": 8}
    assert {name: curve[-1]["step"] for name, curve in phases["fine-tuning"].items()} == {"dense": 2, "auto": 4}


def test_adatopk_is_equation_seven_on_the_stated_links() -> None:
    """The slowest cut gets the most, each other in proportion to its time, and a fast one none; also where cuts differ."""
    equal = adaptive_codecs([65536] * 3, LINKS, LATENCY, 30.0, "int8")
    seconds = [LATENCY + 65536 / rate for rate in LINKS]
    ratios = [float(one.partition("ratio=")[2].partition(",")[0]) for one in equal]
    for ratio, took in zip(ratios, seconds, strict=True):
        assert ratio / words_per_kept(ratio, "int8") == pytest.approx(30.0 * took / max(seconds), rel=1e-3)
    assert adaptive_codecs([65536] * 3, (1e12, 1e6, 1e12), 0.0, 8.0, "float16")[::2] == ("identity", "identity")
    assert adaptive_codecs([1, 10**6, 1], (1e6, 1e6, 1e6), 0.0, 8.0, "float16")[::2] == ("identity", "identity")


def test_a_study_takes_adatopks_ratios_from_the_cuts_of_its_model() -> None:
    rows = report_of("only=AdaTopK,dense", "ways=pipeline").figures["means"]
    ratios = {(row["model"], row["phase"]): row["ratio"] for row in rows if row["variant"] == "AdaTopK"}
    assert len(ratios) == 4
    assert all(ratio > 1.0 for ratio in ratios.values())
    fixed = VARIANTS["pipeline", "scratch"]["AdaTopK"]
    assert "by_link" not in fixed
