"""Invariant 1 at the engine: any cut gives the losses, gradients and weights of a plain PyTorch loop, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.engines import EngineSettings, gradient_parts
from farflung.graph.cut import cut
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_drive import assert_equal, captured, equal_cuts, plain, random_cuts, run
from tests.support.models.engine_models import MODELS

SGD = OptimizerSpec(lr=0.05, momentum=0.9)
ADAMW = OptimizerSpec(name="adamw", lr=1e-3)
SETTINGS = EngineSettings(optimizer=SGD)


@pytest.mark.parametrize("name", MODELS)
def test_equal_cuts(name: str) -> None:
    for stages, micro_batches in ((1, 3), (2, 3), (3, 1), (5, 3)):
        found = run(name, equal_cuts(captured(name), stages), micro_batches, SETTINGS)
        assert_equal(found, plain(name, micro_batches, SGD))


@pytest.mark.parametrize("name", MODELS)
def test_random_cuts(name: str) -> None:
    for stages, seed in ((2, 0), (5, 1), (8, 2)):
        assert_equal(run(name, random_cuts(captured(name), stages, seed), 3, SETTINGS), plain(name, 3, SGD))


@pytest.mark.parametrize("name", MODELS)
def test_split_backwards(name: str) -> None:
    settings = replace(SETTINGS, split_backward=True)
    for bounds in (equal_cuts(captured(name), 1), equal_cuts(captured(name), 3), random_cuts(captured(name), 5, 1)):
        assert_equal(run(name, bounds, 3, settings), plain(name, 3, SGD))


@pytest.mark.parametrize("name", ["gpt2", "albert", "resnet18", "user_cnn"])
def test_recomputation(name: str) -> None:
    settings = replace(SETTINGS, recompute=True)
    assert_equal(run(name, random_cuts(captured(name), 3, 5), 3, settings), plain(name, 3, SGD))


@pytest.mark.parametrize(
    "optimizer",
    [
        ADAMW,
        ADAMW.model_copy(update={"clip_norm": 0.3}),
        SGD.model_copy(update={"clip_norm": 0.3, "nesterov": True, "weight_decay": 0.1}),
        ADAMW.model_copy(
            update={
                "groups": (
                    GroupSpec(match=r"bias|ln_", weight_decay=0.0),
                    GroupSpec(match="wte", frozen=True),
                    GroupSpec(match="mlp", lr=1e-2),
                )
            }
        ),
    ],
    ids=["adamw", "adamw-clipped", "sgd-nesterov-clipped", "groups"],
)
def test_optimizers(optimizer: OptimizerSpec) -> None:
    settings = EngineSettings(optimizer=optimizer)
    assert_equal(run("gpt2", random_cuts(captured("gpt2"), 4, 3), 2, settings), plain("gpt2", 2, optimizer))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_bfloat16(name: str) -> None:
    for recompute, split in ((False, False), (True, False), (False, True), (True, True)):
        settings = EngineSettings(optimizer=ADAMW, precision="bf16", recompute=recompute, split_backward=split)
        found = run(name, equal_cuts(captured(name), 3), 2, settings)
        assert_equal(found, plain(name, 2, ADAMW, "bf16"))
    assert found.micro_losses != list(plain(name, 2, ADAMW).micro_losses)


def _crowded() -> list[tuple[int, int]]:
    """A cut of BERT in which a stage reads a value several times that a farther stage reads too."""
    graph = captured("bert")
    for seed in range(200):
        bounds = random_cuts(graph, 5, seed)
        if any(gradient_parts(sub, edge.value) > 1 for sub in cut(graph, bounds) for edge in sub.sends_gradients):
            return bounds
    raise AssertionError("no such cut")


def test_several_readers_in_one_stage_before_a_farther_one() -> None:
    assert_equal(run("bert", _crowded(), 2, SETTINGS), plain("bert", 2, SGD))


def test_parts_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.engines.torch.runner.gradient_parts", lambda subgraph, value: 1)
    with pytest.raises(AssertionError):
        assert_equal(run("bert", _crowded(), 2, SETTINGS), plain("bert", 2, SGD))
