"""The fuzzer of decoders: its targets take their seeds, its changes keep the form, and a fault stays open until it is mended."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.decoders.catalog import TARGETS
from benchmarks.faults.decoders.mutation import mutate
from benchmarks.faults.decoders.target import Form, Target, parse_input, write_input
from benchmarks.faults.decoders.wire import sealed
from benchmarks.faults.fuzz_decoders import FuzzDecoders, FuzzDecodersSettings
from benchmarks.harness.base import Report
from farflung.errors import InputError, WireError
from farflung.wire.frames import Frame, decode_frame, encode_frame


@pytest.mark.parametrize("name", TARGETS)
def test_each_decoder_takes_seeds_and_survives_changes_of_them(name: str) -> None:
    target, seeds = TARGETS[name], TARGETS[name].seed_bytes()
    assert any(target.run(seed) for seed in seeds)
    generator = np.random.default_rng(5)
    ends: Counter[bool] = Counter()
    for number in range(60):
        seed = seeds[number % len(seeds)]
        ends[target.run(mutate(target.form, seed, generator, lambda data: data[: len(data) // 2]))] += 1
    assert ends[False] > 0


def test_a_frame_that_was_changed_is_right_again() -> None:
    data = bytearray(b"".join(map(bytes, encode_frame(Frame("some", {"a": 1}, (b"abc",))))))
    data[-1] ^= 1
    with pytest.raises(WireError):
        decode_frame(bytes(data))
    assert bytes(decode_frame(sealed(bytes(data))).sections[0]) == b"abb"
    assert sealed(b"short") == b"short"


@pytest.mark.parametrize("form", [Form.VALUE, Form.JSON, Form.PARSED])
def test_changes_keep_the_form(form: Form) -> None:
    value = {"a": [1, 2.5, "text"], "b": {"c\0": None}}
    data = write_input(form, json.dumps(value) if form is Form.JSON else value)
    generator = np.random.default_rng(1)
    found = {mutate(form, data, generator, lambda given: given) for _ in range(100)}
    assert len(found) > 50
    for one in found:
        parse_input(form, one)


class Seconds:
    """Each look at the clock is three seconds later."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 3.0
        return self.at


_SERVER = """
import json, pathlib, sys
{answer}
print("ready", flush=True)
for line in sys.stdin:
    name, log, corpus, *words = json.loads(line)
    status, text = answer(name, pathlib.Path(corpus), dict(word.split("=", 1) for word in words))
    pathlib.Path(log).write_text(text)
    print(status, 1.5, flush=True)
"""


def run(tmp_path: Path, only: tuple[str, ...], answer: str) -> tuple[Report, list[str]]:
    """What half a minute of turns gives if the process that fuzzes gives the answers of ``answer``."""
    pytest.importorskip("atheris")
    program, said = tmp_path / "fuzzer.py", list[str]()
    program.write_text(_SERVER.replace("{answer}", answer))
    settings = FuzzDecodersSettings(minutes=0.5, turn=5.0, only=only, corpus=str(tmp_path / "corpus"))
    return FuzzDecoders(Seconds(), [str(program)]).run(settings, said.append), said


_CALM = """
def answer(name, corpus, words):
    return 0, "#9 INITED cov: 5 ft: 7 corp: 1\\nDone 40 runs in 1 second(s)\\n"
"""


def test_inputs_and_reached_code_are_counted(tmp_path: Path) -> None:
    report, said = run(tmp_path, ("plan", "payload"), _CALM)
    assert report.passed
    assert said == []
    assert report.figures["targets"]["plan"]["edges"] == 5
    assert report.figures["targets"]["plan"]["features"] == 7
    assert report.figures["inputs"] % 40 == 0
    assert report.figures["inputs"] > 0
    assert report.figures["processor_minutes"] == pytest.approx(report.figures["inputs"] / 40 * 1.5 / 60.0)
    assert list((tmp_path / "corpus" / "payload").iterdir()), "seeds were written"


_FAULT = """
def answer(name, corpus, words):
    if corpus.is_file():
        return {tried}, "tried again"
    kept = pathlib.Path(words["-artifact_prefix"])
    (kept / "crash-1").write_bytes(b"x")
    return 77, "KeyError: 'boom'\\nDone 3 runs in 1 second(s)\\n"
"""


def test_a_fault_ends_the_turns_of_its_decoder(tmp_path: Path) -> None:
    report, said = run(tmp_path, ("plan",), _FAULT.replace("{tried}", "77"))
    assert report.passed is False
    assert report.figures["faults"] == ["plan: status 77: KeyError: 'boom'"]
    assert report.figures["inputs"] == 3, "one turn"
    assert said == [f"plan: status 77: KeyError: 'boom', input {tmp_path}/corpus/faults/plan/crash-1"]


def test_a_fault_whose_input_is_taken_by_now_is_mended(tmp_path: Path) -> None:
    report, said = run(tmp_path, ("plan",), _FAULT.replace("{tried}", "0"))
    assert report.passed
    assert report.figures["faults"] == []
    assert set(report.figures["mended"]) == {"plan: status 77: KeyError: 'boom'"}
    assert report.figures["inputs"] > 3, "its decoder has turns again"
    assert said[1] == "plan: mended: status 77: KeyError: 'boom'"


def test_unknown_targets_are_named() -> None:
    pytest.importorskip("atheris")
    with pytest.raises(InputError, match=r"^unknown target 'nothing': known are frame, header, "):
        FuzzDecoders().run(FuzzDecodersSettings(only=("nothing",)), lambda line: None)


def test_without_atheris_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.faults.fuzz_decoders.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^fuzz-decoders needs atheris: pip install 'farflung\[fuzz\]'$"):
        FuzzDecoders().run(FuzzDecodersSettings(), lambda line: None)


def test_what_a_target_refuses_is_no_fault() -> None:
    def refuse(value: object) -> None:
        raise InputError("no")

    target = Target(decode=refuse, seeds=lambda: [b"a"])
    assert target.run(b"a") is False
    assert Target(decode=json.loads, seeds=lambda: ["{}"], form=Form.JSON).run(b"\xff") is False
    with pytest.raises(ValueError, match="Expecting"):
        Target(decode=json.loads, seeds=lambda: ["{}"], form=Form.JSON).run(b"{")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_decoders_withstand_the_fuzzer() -> None:
    pytest.importorskip("atheris")
    report = FuzzDecoders().run(FuzzDecodersSettings(minutes=1.0, turn=4.0), lambda line: None)
    assert report.figures["faults"] == []
    assert report.figures["inputs"] > 0
