"""A replica that forges its results is named by two others, and the run goes back to before the forged step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farflung.engines.base import Array, StageRunner
from farflung.graph.ir import Use
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.verification import recomputation, retained_inputs
from tests.support.runs.loopback import Finished, Loopback, same, text_job

STEPS, FORGED = 16, 5


class Forger:
    """A runner whose gradients of parameters are multiplied by ``factor``."""

    def __init__(self, runner: StageRunner, factor: float) -> None:
        self._runner, self._factor = runner, factor

    def take_gradients(self) -> Mapping[Use, Array]:
        return {use: array * array.dtype.type(self._factor) for use, array in self._runner.take_gradients().items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


@contextmanager
def forging(device: str, step: int = FORGED, factor: float = -1.0) -> Iterator[None]:
    """Inside, ``device`` forges its gradients of ``step``: the wrong sign, or another factor."""
    honest = GradientExchange.after_backward

    def after(self: GradientExchange, at: int, stage: int, micro_batch: int, runner: StageRunner) -> None:
        forges = at == step and self._order.device == device
        honest(self, at, stage, micro_batch, Forger(runner, factor) if forges else runner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientExchange, "after_backward", after)
        yield


def verified(cluster: Loopback, share: float = 1.0, **changes: Any) -> Finished:
    """A run with three replicas whose work is verified."""
    job = text_job(
        steps=STEPS,
        micro_batch_sizes=[2] * 3,
        plan={"replicas": 3, "again": False},
        verify={"share": share},
        checkpoint={"every": 2, "keep": 99},
        workers=3,
        **changes,
    )
    found = cluster.run(job, on_record=lambda run, record: None)  # workers do not run far ahead of their reports
    assert (found.result.status, found.result.cause) == ("finished", "")
    return found


def standings(cluster: Loopback) -> dict[str, str]:
    """What became of the members with a bad standing."""
    members = cluster.client.status()["members"]
    assert isinstance(members, list)
    return {
        str(one["name"]): str(one["idle"]) for one in members if "quarantine" in str(one["idle"]) or "last" in str(one["idle"])
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.runs.loopback import text_folder

    found = tmp_path_factory.mktemp("verified")
    text_folder(found)
    return found


@pytest.fixture
def wide_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is verified, so the usual windows are a few milliseconds. A starved thread misses them, as a slow link may."""
    monkeypatch.setattr(recomputation, "_MOST", STEPS)
    monkeypatch.setattr(retained_inputs, "_STEPS", STEPS)
    monkeypatch.setattr(retained_inputs, "_VERIFIED", 3 * STEPS)


@pytest.mark.usefixtures("wide_windows")
def test_units_of_float16_are_verified_with_the_scale_of_their_step(place: Path) -> None:
    """The scale changes in many steps, and a unit is computed again some steps later."""
    with Loopback(place, 4, folder="scaled") as cluster:
        scale = {"initial": 2.0**24, "every": 2}
        found = verified(cluster, precision="fp16", loss_scale=scale)
        assert standings(cluster) == {}, "everything was verified, and nobody is named"
        with forging("b", 9):
            forged = verified(cluster, precision="fp16", loss_scale=scale)
        assert list(standings(cluster)) == ["b"]
    assert 0 < sum(record.skipped for record in found.steps) < STEPS
    assert same(found.tensors(STEPS), forged.tensors(STEPS)) == []


@pytest.mark.usefixtures("wide_windows")
@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_forger_is_named_and_the_weights_are_those_of_an_honest_run(place: Path, index: int) -> None:
    liar = "abc"[index]
    with Loopback(place, 4, folder=f"broker-{index}") as cluster:
        truth = verified(cluster)
        assert standings(cluster) == {}, "everything was verified, and nobody is named"
        with forging(liar):
            found = verified(cluster)
        told = standings(cluster)
    assert list(told) == [liar]
    assert told[liar].startswith("in quarantine, since it broke the protocol: its results for micro-batch ")
    assert f"of step {FORGED} in stage 0 differ from those of " in told[liar]
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    lines = [json.loads(line) for line in (found.folder / "metrics.jsonl").read_text().splitlines()]
    (recovery,) = [line for line in lines if line["kind"] == "recovery"]
    assert recovery["source"] == "checkpoint"
    assert recovery["step"] <= FORGED
    assert liar not in recovery["devices"]


@pytest.mark.slow
@pytest.mark.usefixtures("wide_windows")
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_member_whose_gradients_are_not_finite_is_replaced_and_nobody_else(place: Path, factor: float) -> None:
    """All workers see norms that are not finite; the members that add its gradients know from whom they came."""
    with Loopback(place, 4, folder=f"infinite-{factor}") as cluster:
        clipped = {"optimizer": {"clip_norm": 1.0}}
        truth = verified(cluster, **clipped)
        with forging("b", factor=factor):
            found = verified(cluster, **clipped)
        assert list(standings(cluster)) == ["b"]
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
