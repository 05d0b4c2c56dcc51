"""The fuzzer of graphs finds what ends its child, in a child: the operators themselves hold for as long as the marker allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.fuzz_graphs import FuzzGraphs, FuzzGraphsSettings, describe_end

pytest.importorskip("atheris")

_CRASHES = """
import os, pathlib, sys
present, without = pathlib.Path(sys.argv[1]), sys.argv[2]
if "aten.relu.default" in without:
    sys.stderr.write("Done 7 runs in 1 second(s)\\n")
    sys.exit(0)
present.write_text("aten.relu.default   ")
sys.stderr.write("#128\\tpulse\\n")
sys.stderr.flush()
os.abort()
"""


class Minutes:
    """Each look at the clock is a minute later."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 60.0
        return self.at


def test_a_crash_is_a_fault_with_its_operator_and_the_rest_goes_on_without_it(tmp_path: Path) -> None:
    said: list[str] = []
    program = tmp_path / "child.py"
    program.write_text(_CRASHES)
    bench = FuzzGraphs(Minutes(), [str(program)])
    report = bench.run(FuzzGraphsSettings(seconds=200.0), said.append)
    assert report.rows == [("aten.relu.default", "SIGABRT: #128\tpulse")]
    assert report.figures["inputs"] == 135
    assert report.passed is False
    assert said == ["after 120 s: aten.relu.default: SIGABRT: #128\tpulse"]


_HANGS = """
import os, pathlib, signal, sys
present, without, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
if without:
    sys.stderr.write("Done 1 runs in 1 second(s)\\n")
    sys.exit(0)
present.write_text("aten.relu.default   00ff")
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_PROF, seconds)
while True:
    pass
"""


def test_a_hang_is_found_by_its_time_on_the_processor_and_its_input_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(_HANGS)
    settings = FuzzGraphsSettings(seconds=200.0, hang_seconds=0.1, keep=str(tmp_path / "kept"))
    report = FuzzGraphs(Minutes(), [str(program)]).run(settings, lambda _: None)
    assert report.rows == [("aten.relu.default", "SIGPROF: no words")]
    assert (tmp_path / "kept" / "hang").read_text() == "aten.relu.default   00ff"


def test_what_libfuzzer_says_is_the_fault() -> None:
    text = "INFO: seed\nRuntimeError: strange\n==7== ERROR: libFuzzer: timeout\nSUMMARY: libFuzzer: timeout\n"
    assert describe_end(70, text) == "status 70: RuntimeError: strange"
    assert describe_end(-11, "") == "SIGSEGV: no words"


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_operators_withstand_the_fuzzer(seconds: float) -> None:
    report = FuzzGraphs().run(FuzzGraphsSettings(seconds=seconds), lambda _: None)
    assert report.figures["faults"] == []
    assert report.passed
