"""The warm-up of a device bears that something else has the processor for a while."""

from __future__ import annotations

from itertools import pairwise

import pytest

from farflung.cost import SpeedFit, fit_speed_factor
from farflung.engines import warmup
from farflung.engines.torch.warmup import warm_up_device
from farflung.errors import InputError


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_it_goes_on_until_its_times_make_sense(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    answers = iter([False] * bad + [True])
    rounds = []

    def fit(calls: list[float], flops: list[float], seconds: list[float], peak: float) -> SpeedFit:
        rounds.append(seconds)
        if not next(answers):
            raise InputError("the warm-up's times do not grow with its FLOPs; give it larger operators")
        return fit_speed_factor(calls, flops, [one / 1e9 for one in flops], peak)

    monkeypatch.setattr(warmup, "fit_speed_factor", fit)
    report = warmup.measure_device(warm_up_device("cpu"), 1e12)
    assert report.flops_per_second == pytest.approx(1e9)
    assert len(rounds) == bad + 1
    assert all(b <= a for one, two in pairwise(rounds) for a, b in zip(one, two, strict=True))


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: object) -> SpeedFit:
        raise InputError("the warm-up's times do not grow with its FLOPs; give it larger operators")

    monkeypatch.setattr(warmup, "fit_speed_factor", fit)
    with pytest.raises(InputError, match="do not grow with its FLOPs"):
        warmup.measure_device(warm_up_device("cpu"), 1e12)
