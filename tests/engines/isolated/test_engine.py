"""A process of its own computes the bits of the worker's process, and its errors and death are errors of the call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from farflung.engines import EngineSettings
from farflung.engines.isolated import IsolatedEngine
from farflung.job.spec import OptimizerSpec
from tests.support.engine_drive import assert_equal, captured, equal_cuts, plain, run

SETTINGS = EngineSettings(optimizer=OptimizerSpec(lr=0.05, momentum=0.9))


@pytest.mark.parametrize("name", ["gpt2", "resnet18", "user_cnn", "moe"])
def test_the_bits_are_those_of_a_plain_loop(name: str, engine: IsolatedEngine) -> None:
    attempt = engine.attempt("cpu", 1 << 30)
    attempt.set_threads(torch.get_num_threads())
    assert_equal(run(name, equal_cuts(captured(name), 3), 2, SETTINGS, attempt), plain(name, 2, SETTINGS.optimizer))


def test_reduced_precision_and_clipping(engine: IsolatedEngine) -> None:
    optimizer = OptimizerSpec(name="adamw", clip_norm=0.3)
    attempt = engine.attempt("cpu", 1 << 30)
    attempt.set_threads(torch.get_num_threads())
    settings = replace(SETTINGS, optimizer=optimizer, precision="bf16")
    found = run("gpt2", equal_cuts(captured("gpt2"), 2), 2, settings, attempt)
    assert_equal(found, plain("gpt2", 2, optimizer, "bf16"))
