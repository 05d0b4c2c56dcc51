"""Updates with states on a disk have the bits of a plain loop, in this process and in one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farflung.engines import EngineSettings, get_engine, offloaded_states
from farflung.engines.isolated import IsolatedEngine, Zygote
from farflung.engines.state_file import StateFile
from farflung.engines.torch.optimizers.offloaded_update import OffloadedOptimizer
from farflung.engines.torch.optimizers.wide_update import stage_optimizer
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_drive import assert_equal, captured, equal_cuts, plain, run

ADAMW = OptimizerSpec(name="adamw", lr=1e-2, clip_norm=0.3, groups=(GroupSpec(match="bias", weight_decay=0.0),))


@pytest.mark.parametrize("optimizer", [ADAMW, OptimizerSpec(lr=0.05, momentum=0.9)], ids=["adamw", "momentum"])
def test_the_bits_are_those_of_a_plain_loop(optimizer: OptimizerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_states, "_LEAST", 100)
    settings = EngineSettings(optimizer=optimizer, offload=StateFile.create(tmp_path, 8 << 20))
    found = run("gpt2", equal_cuts(captured("gpt2"), 3), 2, settings, get_engine("torch"))
    assert_equal(found, plain("gpt2", 2, optimizer))


def test_a_process_of_its_own_gets_the_file(tmp_path: Path) -> None:
    zygote = Zygote(disk=8 << 20)
    try:
        attempt = IsolatedEngine(zygote).attempt("cpu", 1 << 30)
        attempt.set_threads(torch.get_num_threads())
        file = StateFile.create(tmp_path, 8 << 20)
        found = run("gpt2", [(0, len(captured("gpt2").ops))], 2, EngineSettings(optimizer=ADAMW, offload=file), attempt)
        assert_equal(found, plain("gpt2", 2, ADAMW))
    finally:
        zygote.close()


@pytest.mark.parametrize("update", ["master", "stochastic"])
def test_float32_copies_are_on_the_disk_too(update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_states, "_LEAST", 100)
    spec = OptimizerSpec(name="adamw", lr=1e-2, update=update)
    ours, theirs = ({name: torch.nn.Parameter(torch.ones(30, 20).bfloat16()) for name in "ab"} for _ in range(2))
    disk = OffloadedOptimizer(StateFile.create(tmp_path, 1 << 20), spec, ours, 5)
    memory = stage_optimizer(spec, theirs, 5)
    for step in range(3):
        for name in "ab":
            gradient = torch.randn(30, 20, generator=torch.Generator().manual_seed(step)).bfloat16()
            ours[name].grad, theirs[name].grad = gradient, gradient.clone()
        disk.step([1e-2])
        memory.step([1e-2])
    assert all(torch.equal(ours[name], theirs[name]) for name in "ab")
    found, expected = disk.export(), memory.export()
    assert found.keys() == expected.keys()
    assert all(found[key].tobytes() == expected[key].tobytes() for key in expected)
