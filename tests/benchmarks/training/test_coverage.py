"""The draw follows from its seed; models that need what captures learned last train like the plain loop."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from benchmarks.training.coverage import Coverage, CoverageSettings, try_model
from benchmarks.training.coverage_models import draw_model, of_transformers

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_seed_gives_the_same_models() -> None:
    first, second = ([draw_model(rng, "transformers") for _ in range(5)] for rng in (random.Random(3), random.Random(3)))
    assert [(one.model_class, one.choices) for one in first] == [(one.model_class, one.choices) for one in second]
    assert len({one.model_class for one in first}) > 1


@pytest.mark.parametrize(
    ("kind", "name", "target"),
    [
        ("mixtral", "MixtralForCausalLM", "farflung.grouped_mm"),
        ("bloom", "BloomForCausalLM", "farflung.gradient"),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "farflung.grouped_mm"),
        ("qwen3_next", "Qwen3NextForCausalLM", "aten.linalg_solve_triangular.default"),
        ("olmo_hybrid", "OlmoHybridForCausalLM", "aten.linalg_solve_triangular.default"),
        ("fnet", "FNetForSequenceClassification", "aten.fft_fftn.default"),
        ("jetmoe", "JetMoeForCausalLM", "farflung.grouped_linear"),
        ("fsmt", "FSMTForConditionalGeneration", "aten.masked_fill.Scalar"),
        ("big_bird", "BigBirdForCausalLM", "aten.softmax.int"),
        ("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration", "aten.softmax.int"),
        ("longt5", "LongT5ForConditionalGeneration", "aten.softmax.int"),
        ("modernbert", "ModernBertForMultipleChoice", "aten.index.Tensor"),
    ],
)
def test_models_that_were_refused_or_differed(kind: str, name: str, target: str) -> None:
    from farflung.frontends.torch.capture import capture

    tasks = {"Classification": "sequence classification", "Choice": "multiple choice", "Generation": "sequence to sequence"}
    task = next((task for word, task in tasks.items() if word in name), "causal language modeling")
    draw = of_transformers(name, {"task": task, "model_type": kind, "layers": 2, "attention": "eager", "seed": 5})
    assert target in {op.target for op in capture(draw.make(), draw.batch(0, 0)).ops}
    for stages in (2, 3):
        found = try_model(draw, CoverageSettings(quick=True, stages=stages))
        assert (found.result, found.text) == ("equal", "")


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    report = Coverage().run(CoverageSettings(quick=True, models=2, vision=0), lambda text: None)
    assert report.figures["total"] == 2
    assert report.checks[0].passed is None
