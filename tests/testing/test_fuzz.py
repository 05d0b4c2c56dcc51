"""The fuzzer is deterministic, finds planted faults, and finds none in the decoders."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from farflung.clock import VirtualClock
from farflung.codecs import Payload
from farflung.codecs.base import Array
from farflung.errors import CodecError
from farflung.testing import fuzz
from farflung.testing.fuzz import fuzz_decoders, summary


def test_the_decoders_stand() -> None:
    findings = fuzz_decoders(1200, seed=1, clock=VirtualClock())
    assert findings.faults == []
    assert findings.inputs == 1200
    assert findings.outcomes["decoded"] > 100
    assert findings.outcomes["refused"] > 500
    again = fuzz_decoders(100, seed=1, clock=VirtualClock())
    assert again.outcomes == fuzz_decoders(100, seed=1, clock=VirtualClock()).outcomes
    assert summary(findings)["inputs"] == 1200


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_decoders_stand_for_longer() -> None:
    assert fuzz_decoders(20_000, seed=2).faults == []


def test_inputs_depend_on_the_seed_alone() -> None:
    first, second, other = ([fuzz._input(np.random.default_rng([seed, n])) for n in range(30)] for seed in (5, 5, 6))
    assert first == second != other


def planted(monkeypatch: pytest.MonkeyPatch, decode: Any) -> str:
    monkeypatch.setattr(fuzz, "decode_payload", decode)
    findings = fuzz_decoders(200, clock=CLOCK)
    assert 0 < len(findings.faults) <= 20
    return findings.faults[0]


CLOCK = VirtualClock()


def crash(payload: Payload) -> Array:
    raise KeyError("boom")


def hang(payload: Payload) -> Array:
    CLOCK.advance(6.0)
    raise CodecError("late")


def devour(payload: Payload) -> Array:
    np.zeros(1 << 27, np.uint8)
    raise CodecError("full")


def mislead(payload: Payload) -> Array:
    return np.zeros(7, np.int8)


def chatter(payload: Payload) -> Array:
    raise CodecError("one\ntwo")


def warn(payload: Payload) -> Array:
    warnings.warn("overflow", RuntimeWarning, stacklevel=1)
    raise CodecError("warned")


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (crash, "KeyError: 'boom'"),
        (hang, "took 6.0 s"),
        (devour, "took 13421"),
        (mislead, "got int8 (7,)"),
        (chatter, "an error of several lines"),
        (warn, "RuntimeWarning: overflow"),
    ],
)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, decode: Any, text: str) -> None:
    assert text in planted(monkeypatch, decode)


def test_time_ends_it() -> None:
    clock = VirtualClock(10.0)
    assert fuzz_decoders(50, clock=clock, until=10.0).inputs == 0
