"""What codecs cost and lose is measured while a run goes, for next to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farflung.clock import VirtualClock
from farflung.engines.base import Array
from farflung.plan.model import CodecChoice, LinkPlan
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.telemetry import CodecUse
from tests.support.steps.executor_threads import Case, calm_tangle, job_of, run_threads
from tests.support.steps.sample_cache_cases import CODEC, SIZES, again, case_of

ARRAY = np.array([3.0, 4.0], np.float32)


class Bench:
    """A gauge whose encoding and decoding take as long as it is told, and how often it has measured."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.gauge = CodecGauge(clock=self.clock)
        self.measured = 0

    def encode(self, step: int, seconds: float = 1.0, lost: float = 0.5, decoding: float = 1.0) -> None:
        def make() -> Any:
            self.clock.advance(seconds)
            return {}, ()

        def arrives() -> list[Array]:
            self.measured += 1
            self.clock.advance(decoding)
            return [ARRAY - np.float32(lost) * ARRAY]

        self.gauge.encode(step, (0, 1), make)
        self.gauge.compare(step, (0, 1), [ARRAY], arrives)

    def decode(self, step: int) -> None:
        def make() -> Array:
            self.clock.advance(2.0)
            return ARRAY

        self.gauge.decode(step, (1, 0), make)


def test_seconds_add_up_by_step_and_link() -> None:
    bench = Bench()
    for step in (0, 0, 1):
        bench.encode(step)
        bench.decode(step)
    assert bench.gauge.take(0) == {
        (0, 1): CodecUse(encode_seconds=2.0, error=pytest.approx(0.5)),
        (1, 0): CodecUse(decode_seconds=4.0),
    }
    assert bench.gauge.take(0) == {}
    assert bench.gauge.take(1)[0, 1] == CodecUse(encode_seconds=1.0), "measured in step 0 only"


def test_measuring_takes_a_hundredth_of_encoding_at_most() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.encode(0, seconds=1.0, decoding=2.0)
    assert bench.measured == 5, "the first, and one after each 200 s"
    dear = Bench()
    for _ in range(1000):
        dear.encode(0, seconds=0.001, decoding=1000.0)
    assert dear.measured == 1


def test_errors_that_are_no_numbers_are_left_out() -> None:
    bench = Bench()
    bench.encode(0, lost=float("nan"))
    assert bench.gauge.take(0)[0, 1].error is None
    zero, zeros = CodecGauge(), np.zeros(3, np.float32)
    zero.compare(0, (0, 1), [zeros], lambda: [zeros])
    assert zero.take(0)[0, 1].error == 0.0
    zero.encode(1, (0, 2), lambda: zeros)
    zero.compare(1, (0, 2), [zeros], lambda: [np.ones(3, np.float32)])
    assert zero.take(1)[0, 2].error is None


def test_the_error_of_several_arrays_is_that_of_all_together() -> None:
    gauge = CodecGauge()
    gauge.compare(0, (1, 1), [ARRAY, 2 * ARRAY], lambda: [ARRAY, ARRAY])
    assert gauge.take(0)[1, 1].error == pytest.approx((1 / 5) ** 0.5)


def test_what_comes_after_its_step_counts_in_the_next() -> None:
    bench = Bench()
    bench.encode(3)
    bench.gauge.take(3)
    bench.decode(3)
    assert bench.gauge.take(4) == {(1, 0): CodecUse(decode_seconds=2.0)}


def test_both_ends_of_a_link_are_one_record() -> None:
    one, other = CodecUse(encode_seconds=1.0, error=0.2), CodecUse(decode_seconds=2.0)
    assert one.plus(other) == CodecUse(encode_seconds=1.0, decode_seconds=2.0, error=0.2)
    assert one.plus(CodecUse(error=0.4)).error == pytest.approx(0.3)


@pytest.mark.parametrize("encoder", ["host, with memory", "host", "device"])
def test_runs_report_them(encoder: str) -> None:
    case = case_of() if encoder == "host, with memory" else plain_case(encoder)
    reports = run_threads(case).reports
    links = {link for report in reports for link in report.codecs}
    assert links == {(0, 1), (1, 0)}
    uses = [use for report in reports for use in report.codecs.values()]
    assert all(use.encode_seconds >= 0 and use.decode_seconds >= 0 for use in uses)
    errors = [use.error for use in uses if use.error is not None]
    assert errors
    assert all(0 < error < 0.5 for error in errors), "of 4 bits, or of differences"


def plain_case(encoder: str = "host") -> Case:
    job = job_of(steps=2, micro_batch_sizes=SIZES, codec={"name": "int4", "encoder": encoder})
    links = [LinkPlan(source=0, target=1, activations=CODEC, gradients=CODEC)]
    return Case(job=job, devices=("a", "b"), make=calm_tangle, cut_seed=3, batch=again(2), links=links)


def test_lossless_links_report_nothing() -> None:
    plain = CodecChoice()
    case = plain_case()
    case.links = [LinkPlan(source=0, target=1, activations=plain, gradients=plain)]
    assert all(not report.codecs for report in run_threads(case).reports)
