"""The fuzzer is deterministic, finds planted faults, and finds none in the decoders."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

from farflung.clock import ThreadClock, VirtualClock
from farflung.codecs import Payload
from farflung.codecs.base import Array
from farflung.errors import CodecError
from farflung.testing import decoders
from farflung.testing.damage import damaged, some_payload
from farflung.testing.decoders import DECODERS, Case
from farflung.testing.fuzz import MAX_WALL_SECONDS, Fuzzing, Watch, fuzz_decoders, summary


def limits(inputs: int, seed: int = 1) -> Fuzzing:
    return Fuzzing(inputs=inputs, seed=seed, clock=VirtualClock(), processor=VirtualClock())


def test_the_decoders_stand() -> None:
    findings = fuzz_decoders(limits(700))
    assert findings.faults == []
    assert findings.inputs == 700 == sum(findings.decoders.values())
    assert findings.outcomes["decoded"] > 60
    assert findings.outcomes["refused"] > 300
    assert findings.decoders.keys() == DECODERS.keys()
    assert fuzz_decoders(limits(60)).outcomes == fuzz_decoders(limits(60)).outcomes
    assert summary(findings)["inputs"] == 700


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_decoders_stand_for_longer() -> None:
    assert fuzz_decoders(Fuzzing(inputs=20_000, seed=2)).faults == []


@pytest.mark.parametrize("name", DECODERS)
def test_each_decoder_takes_some_inputs_and_refuses_others(name: str) -> None:
    ends = set()
    for number in range(200):
        case = DECODERS[name](np.random.default_rng([7, number]))
        assert case.decoder == name
        try:
            assert case.decode() == ""
            ends.add("decoded")
        except case.refuses:
            ends.add("refused")
        if len(ends) == 2:
            break
    assert ends == {"decoded", "refused"}


def test_inputs_depend_on_the_seed_alone() -> None:
    def inputs(seed: int) -> list[bytes]:
        generators = [np.random.default_rng([seed, number]) for number in range(30)]
        return [damaged(some_payload(generator), generator).to_bytes() for generator in generators]

    assert inputs(5) == inputs(5) != inputs(6)


PROCESSOR, WALL = VirtualClock(), VirtualClock()


def crash(payload: Payload) -> Array:
    raise KeyError("boom")


def burn(payload: Payload) -> Array:
    PROCESSOR.advance(6.0)
    raise CodecError("late")


def starve(payload: Payload) -> Array:
    WALL.advance(60.0)
    raise CodecError("the machine was busy")


def hang(payload: Payload) -> Array:
    WALL.advance(MAX_WALL_SECONDS + 1)
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


def planted(monkeypatch: pytest.MonkeyPatch, decode: Any, inputs: int = 200) -> list[str]:
    monkeypatch.setattr(decoders, "decode_payload", decode)
    findings = fuzz_decoders(Fuzzing(inputs=inputs, clock=WALL, processor=PROCESSOR))
    assert len(findings.faults) <= 20
    return findings.faults


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (crash, "payload: fault: KeyError: 'boom'"),
        (burn, "took 6.0 s of the processor"),
        (hang, "hung for 901 s"),
        (devour, "took 13421"),
        (mislead, "got int8 (7,)"),
        (chatter, "an error of several lines"),
        (warn, "RuntimeWarning: overflow"),
    ],
)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, decode: Any, text: str) -> None:
    assert text in planted(monkeypatch, decode)[0]


def test_a_busy_machine_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planted(monkeypatch, starve, 40) == []


def test_processor_time_is_the_threads_own() -> None:
    clock = ThreadClock()
    before = clock.now()
    other = threading.Thread(target=lambda: sum(range(3_000_000)))
    other.start()
    other.join()
    spent = clock.now() - before
    sum(range(3_000_000))
    assert clock.now() - before > 2 * spent


def test_who_hangs_is_told_once_while_it_hangs() -> None:
    clock, told = VirtualClock(), list[str]()
    watch = Watch(Fuzzing(inputs=1, seed=4, clock=clock, hung=told.append))
    watch.look()
    watch.begin(17)
    clock.advance(MAX_WALL_SECONDS)
    watch.look()
    assert told == []
    clock.advance(1.0)
    watch.look()
    watch.look()
    assert told == ["seed 4, input 17: fault: hangs for 900 s"]
    watch.begin(18)
    clock.advance(5.0)
    watch.begin(None)
    clock.advance(MAX_WALL_SECONDS)
    watch.look()
    assert len(told) == 1


def test_a_watch_ends_with_the_fuzzing() -> None:
    def hung(text: str) -> None:
        raise AssertionError(text)

    fuzz_decoders(Fuzzing(inputs=3, clock=VirtualClock(), hung=hung))
    assert "fuzz-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_result_that_was_not_declared_is_a_fault() -> None:
    case = Case(decoder="some", nbytes=1, refuses=(CodecError,), run=lambda case: "seven elements too many")
    assert case.decode() == "seven elements too many"


def test_time_ends_it() -> None:
    clock = VirtualClock(10.0)
    assert fuzz_decoders(Fuzzing(inputs=50, clock=clock, until=10.0)).inputs == 0
