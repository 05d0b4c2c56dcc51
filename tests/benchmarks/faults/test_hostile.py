"""The benchmark of hostile members: what its checks judge, and that a verified cluster of it trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.faults import hostile
from benchmarks.faults.hostile import Hostile, HostileSettings
from benchmarks.faults.hostile_verified import FORGER, VerifiedRun, train_verified


def run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[bool | None]:
    """What the checks say if all losses are 1, except for the run with scaled gradients, which has ``changes``."""
    plain: dict[str, Any] = {"loss": 1.0, "status": "finished", "cause": "", "named": (FORGER,)}
    attacks = [None, *hostile.ATTACKS.values()]

    def train(attack: Any, **settings: Any) -> VerifiedRun:
        return VerifiedRun(**(plain | (changes if attacks.index(attack) == 3 else {})))

    monkeypatch.setattr(hostile, "train_verified", train)
    monkeypatch.setattr(hostile, "_final", lambda settings: 1.0)
    return [check.passed for check in Hostile().run(HostileSettings(), lambda line: None).checks]


def test_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch) == [True, True, True]
    assert run(monkeypatch, loss=1.06) == [True, False, True]
    assert run(monkeypatch, loss=float("nan")) == [True, False, True]
    assert run(monkeypatch, status="failed", cause="it broke") == [True, True, False]
    assert run(monkeypatch, named=("w1",)) == [True, True, False], "it is honest"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_forger_among_ten_workers_changes_no_loss() -> None:
    honest = train_verified(None, steps=10, share=1.0, last=5)
    assert honest.status == "finished"
    assert honest.named == ()
    forged = train_verified(lambda array, old: np.negative(array), steps=10, share=1.0, last=5)
    assert (forged.status, forged.named, forged.loss) == ("finished", (FORGER,), honest.loss)
