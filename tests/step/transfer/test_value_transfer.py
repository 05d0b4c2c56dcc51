"""What travels: values under every codec, tensors in pieces, step reports, progress; and what hostile peers send instead."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.progress import Progress
from farflung.clock import VirtualClock
from farflung.codecs import CODECS, get_codec
from farflung.errors import CodecError, FarflungError, WireError
from farflung.job.load import make_job
from farflung.messages.array_stream import pieces_of, read_arrays, write_arrays
from farflung.messages.arrays import decode_array, encode_array
from farflung.messages.conversions.step_reports import StepReport, read_report, write_report
from farflung.plan.model import CodecChoice
from farflung.step.inbox import Inbox
from farflung.step.run_setup import Phase
from farflung.step.transfer.outbox import Outbox
from farflung.step.transfer.value_transfer import ValueTransfer
from farflung.telemetry.records import CodecUse, EvaluationRecord, StepRecord
from farflung.transports.memory import MemoryHub
from farflung.wire.frames import Frame, decode_frame, encode_frame
from tests.support.small_runs import small_graph, small_plan, small_setup

LIMIT = 1 << 20


def through_the_wire(header: dict[str, Any], sections: tuple[Any, ...]) -> Frame:
    return decode_frame(b"".join(encode_frame(Frame("value", header, sections))))


# -- values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_gives_back_shape_strides_and_type(name: str) -> None:
    array = np.asfortranarray(np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32))
    codec = None if name == "identity" else get_codec(name)
    frame = through_the_wire(*encode_array(array, codec))
    back = decode_array(frame.header, frame.sections, LIMIT)
    assert (back.shape, back.dtype, back.strides) == (array.shape, array.dtype, array.strides)
    if name == "identity":
        assert back.tobytes("F") == array.tobytes("F")


def test_integers_and_empty_arrays_are_never_compressed() -> None:
    codec = get_codec("topk", ratio=10)
    for array in (np.arange(12).reshape(3, 4), np.zeros((0, 4), np.float32)):
        header, sections = encode_array(array, codec)
        assert "payload" not in header
        frame = through_the_wire(header, sections)
        np.testing.assert_array_equal(decode_array(frame.header, frame.sections, LIMIT), array)


class Ends:
    """Couriers of the workers a and b, who are joined by memory."""

    def __init__(self, codec: CodecChoice | None = None) -> None:
        hub, plan = MemoryHub(), small_plan(codec=codec)
        self.boxes = {name: Inbox() for name in "ab"}
        self.couriers: dict[str, ValueTransfer] = {}
        self.endpoints = {
            name: hub.endpoint(name, lambda peer, frame, name=name: self.couriers[name].receive(peer, frame)) for name in "ab"
        }
        self.links: dict[str, Outbox] = {}
        for name, peer in ("ab", "ba"):
            self.endpoints[name].connect(peer, self.endpoints[peer].address)
            self.links[name] = Outbox(self.endpoints[name], [peer], self.boxes[name].abort)
            self.couriers[name] = ValueTransfer(small_setup(name, plan), self.boxes[name], self.links[name])

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *error: object) -> None:
        for one in (*self.links.values(), *self.endpoints.values()):
            one.close()


def test_a_value_crosses_and_its_gradient_comes_back() -> None:
    with Ends() as ends:
        (edge,) = small_setup("b").subgraphs[1].requires_activations
        value = np.random.default_rng(1).standard_normal(edge.spec.shape).astype(np.float32)
        for sender, receiver, gradient in (("a", "b", False), ("b", "a", True)):
            ends.couriers[sender].send(Phase.TRAIN, 0, 1, edge, value, gradient=gradient)
            key = ends.couriers[receiver].key(Phase.TRAIN, 0, 1, edge, gradient=gradient)
            np.testing.assert_array_equal(ends.boxes[receiver].take(key), value)


def test_random_numbers_of_a_codec_belong_to_the_message() -> None:
    codec = CodecChoice(name="int4", params=(("block", 16), ("rounding", "stochastic")))
    (edge,) = small_setup("b").subgraphs[1].requires_activations
    value = np.random.default_rng(1).standard_normal(edge.spec.shape).astype(np.float32)

    def arrived(step: int, micro_batch: int, gradient: bool) -> bytes:
        sender, receiver = "ba" if gradient else "ab"
        with Ends(codec) as ends:
            ends.couriers[sender].send(Phase.TRAIN, step, micro_batch, edge, value, gradient=gradient)
            key = ends.couriers[receiver].key(Phase.TRAIN, step, micro_batch, edge, gradient=gradient)
            return ends.boxes[receiver].take(key).tobytes()

    messages = [(0, 0, False), (1, 0, False), (0, 1, False), (0, 0, True)]
    assert len({arrived(*message) for message in messages}) == 4
    assert arrived(0, 0, False) == arrived(0, 0, False)


def test_codecs_see_the_rows_of_a_value() -> None:
    header, sections = encode_array(np.ones((10, 30, 6), np.float32), get_codec("int8", block="row"))
    assert header["payload"]["fields"]["block"] == 6
    assert len(sections[1]) == 4 * 300


KEY = ["value", "train", 0, 0, "bend", 0, 1, False]


def value_frame(key: object = KEY, shape: tuple[int, ...] = (4, 16), dtype: Any = np.float32, **extra: Any) -> Frame:
    header, sections = encode_array(np.zeros(shape, dtype), None)
    return Frame("value", {"run": "run-small", "key": key} | header | extra, sections)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (value_frame(key=None), "a value's key must be a list"),
        (value_frame(key=[["x"]]), "a value's key must be a list"),
        (value_frame(key=["x"] * 13), "a value's key must be a list"),
        (value_frame(key=["value", "train", 0, 0, "first", 0, 1, False]), "the plan sends nothing under the key"),
        (value_frame(shape=(5, 16)), r"oversized value 'bend': float32 \[5, 16\] has more than the 256 bytes of the plan"),
        (value_frame(shape=(4, 16), dtype=np.float64), "oversized value 'bend'"),
        (value_frame(key=["side", "eval"], shape=(100, 100)), "oversized array"),
        (value_frame(array=["float32", [2**40], None]), "oversized value"),
        (value_frame(array=None), "bad array description"),
        (Frame("value", {"key": KEY, "array": ["float32", [4, 16], None]}, (b"1", b"2")), "one section"),
        (Frame("value", {"key": KEY, "array": ["float32", [4, 16], None]}, (b"12",)), "needs 256 bytes, got 2"),
        (Frame("value", {"key": KEY, "array": ["float32", [4, 16], None], "payload": 3}, ()), "bad payload"),
        (value_frame(key=["verdict", 0]), r"a value has no place under the key \['verdict', 0\]"),
        (value_frame(key=["data", 0, 0, "x"]), "it begins with value, use, side"),
        (Frame("data", {"key": KEY, "step": 0}), "a data has no place under the key"),
        (Frame("data", {"key": ["data", 9, 0, "x"], "step": 0}), r"data have the key data \(or eval\), step, micro-batch"),
        (Frame("data", {"key": ["eval", 9, 0, "x"], "step": 0}), r"data have the key data \(or eval\), step, micro-batch"),
        (Frame("data", {"key": ["data", 0], "step": 0}), r"data have the key data \(or eval\), step, micro-batch"),
    ],
)
def test_what_the_plan_does_not_send_is_refused(frame: Frame, says: str) -> None:
    with Ends() as ends:
        with pytest.raises((WireError, CodecError), match=says):
            ends.couriers["b"].receive("a", frame)
        assert len(ends.boxes["b"]) == 0


def test_a_peer_can_not_fill_the_memory_with_keys() -> None:
    """Keys of the plan's own edges, but of micro-batches and steps that nobody asked for."""
    setup = small_setup("b")
    courier = ValueTransfer(setup, Inbox(setup.most_keys), Outbox(None, [], lambda error: None))  # type: ignore[arg-type]
    for number in range(setup.most_keys):
        courier.receive("a", value_frame(key=[*KEY[:2], number, 0, *KEY[4:]]))
    with pytest.raises(WireError, match="values wait already, more than this run can have"):
        courier.receive("a", value_frame(key=[*KEY[:2], -1, 0, *KEY[4:]]))
    assert 1000 < setup.most_keys < 3000


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(["value", "data"]),
    header=st.dictionaries(st.sampled_from(["key", "array", "payload", "step", "fields", "run"]), plain),
    sections=st.lists(st.binary(max_size=64), max_size=3),
)
def test_any_frame_is_taken_or_refused_by_an_error_of_ours(kind: str, header: dict[str, Any], sections: list[bytes]) -> None:
    courier = ValueTransfer(small_setup("b"), Inbox(), Outbox(None, [], lambda error: None))  # type: ignore[arg-type]
    with suppress(FarflungError):
        courier.receive("a", Frame(kind, header, tuple(sections)))


# -- tensors in pieces ----------------------------------------------------------------------------------------------------


def test_tensors_come_back_bit_for_bit() -> None:
    arrays = {
        "a": np.random.default_rng(2).standard_normal((3, 5)),
        "none": np.zeros((0, 3), np.float32),
        "one": np.array(7, np.int64),
        "large": np.arange(3 << 20, dtype=np.int32),
    }
    frames = list(write_arrays(arrays.items()))
    assert len(frames) == 3 + 3
    back = read_arrays(frames)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].shape, back[name].tobytes()) == (array.shape, array.tobytes())


def test_cut_or_mixed_streams_are_refused() -> None:
    first, second, third = write_arrays([("large", np.zeros(3 << 20, np.int32))])
    with pytest.raises(WireError, match="tensor 'large' was cut in transfer"):
        read_arrays([first, second])
    with pytest.raises(WireError, match="needs 12582912 bytes, got 8388608"):
        read_arrays([first, third])
    with pytest.raises(WireError, match="larger than it says"):
        read_arrays([first, second, Frame("tensor", third.header, (bytes(5 << 20),))])
    (other,) = write_arrays([("b", np.zeros(1))])
    with pytest.raises(WireError, match="tensor 'b' begins before the one before it has ended"):
        read_arrays([first, other])
    with pytest.raises(WireError, match="pieces with one section each"):
        read_arrays([Frame("tensor", first.header)])


@settings(deadline=None, max_examples=80)
@given(
    header=st.dictionaries(st.sampled_from(["name", "array", "last"]), plain),
    sections=st.lists(st.binary(max_size=9), max_size=2),
)
def test_any_stream_is_read_or_refused(header: dict[str, Any], sections: list[bytes]) -> None:
    with suppress(WireError):
        read_arrays([Frame("tensor", header, tuple(sections))])


def test_a_byte_stream_is_cut_into_pieces() -> None:
    head, *pieces, end = pieces_of([bytes(5 << 20), b"abc"], "weights", {"run": "r"})
    assert (head.kind, head.header["run"], end.kind) == ("weights", "r", "end")
    assert [memoryview(piece.sections[0]).nbytes for piece in pieces] == [4 << 20, 1 << 20, 3]


# -- reports and progress -------------------------------------------------------------------------------------------------


def report(step: int, *, stage: int = 0, loss: float | None = None) -> StepReport:
    return StepReport(
        step=step,
        seconds=1.0,
        busy=0.5,
        wait=0.5,
        sent={(stage, stage + 1): 10},
        dense={(stage, stage + 1): 20},
        stage_busy={stage: 0.5},
        loss=loss,
        losses=() if loss is None else (loss, loss),
        samples=5,
        rate=0.1,
        codecs={(stage, stage + 1): CodecUse(encode_seconds=0.5, decode_seconds=0.25, error=loss)},
    )


def test_reports_travel() -> None:
    one = report(3, loss=1.5)
    assert read_report(decode_frame(b"".join(encode_frame(Frame("step", write_report(one))))).header) == one
    torn = write_report(one) | {"codecs": [[0, 1, 0.5]]}
    with pytest.raises(WireError, match="a step report is malformed"):
        read_report(torn)
    spoilt = write_report(one) | {"sent": [[1, 2]]}
    with pytest.raises(WireError, match="a step report is malformed"):
        read_report(spoilt)


@settings(deadline=None, max_examples=80)
@given(changes=st.dictionaries(st.sampled_from(sorted(write_report(report(0)))), plain, min_size=1))
def test_any_report_is_read_or_refused(changes: dict[str, Any]) -> None:
    with suppress(WireError):
        read_report(write_report(report(0)) | changes)


def progress(workers: int, steps: int = 10, first: int = 0) -> tuple[Progress, list[StepRecord | EvaluationRecord], VirtualClock]:
    clock, told = VirtualClock(), list[StepRecord | EvaluationRecord]()
    job = make_job({"steps": steps, "micro_batch_sizes": [2, 3], "data": {"kind": "text", "path": "x", "sequence": 8}})
    return Progress(job, workers, clock, told.append, 0.25, first), told, clock


def test_a_step_is_on_record_when_all_have_told_it() -> None:
    made, told, clock = progress(2)
    clock.advance(5)
    made.begin()
    clock.advance(2)
    made.report(report(0, loss=3.0))
    assert told == []
    made.report(report(0, stage=1))
    (record,) = told
    assert isinstance(record, StepRecord)
    assert (record.step, record.loss, record.seconds, record.elapsed) == (0, 3.0, 2.0, 2.0)
    assert (record.samples, record.tokens, record.predicted_seconds) == (5, 40, 0.25)
    assert record.link_bytes == {(0, 1): 10, (1, 2): 10}
    assert record.busy_seconds == {0: 0.5, 1: 0.5}


@settings(deadline=None, max_examples=50)
@given(order=st.permutations([(step, worker) for step in range(4) for worker in range(3)]), first=st.integers(0, 5))
def test_records_come_in_order_whatever_the_order_of_reports(order: list[tuple[int, int]], first: int) -> None:
    made, told, _ = progress(3, first=first)
    for step, worker in order:
        made.report(report(step + first, stage=worker, loss=float(step) if worker == 2 else None))
    assert [(record.step, record.loss) for record in told if isinstance(record, StepRecord)] == [
        (step + first, float(step)) for step in range(4)
    ]
    assert (made.count, made.last) == (4, told[-1])


def test_a_long_run_is_followed() -> None:
    made, told, _ = progress(1, steps=1000)
    for step in range(1000):
        made.report(report(step, loss=1.0))
    made.evaluation(1000, {"loss": 1.0})
    assert (made.count, len(told)) == (1000, 1001)


@pytest.mark.parametrize("step", [10, 4, 200])
def test_steps_that_cannot_be_are_refused(step: int) -> None:
    made, _, _ = progress(1, steps=10, first=5)
    with pytest.raises(WireError, match=f"a report of step {step} came while step 5 of 10 is open"):
        made.report(report(step))


def test_a_worker_cannot_open_steps_without_end() -> None:
    made, _, _ = progress(2, steps=1000)
    for step in range(64):
        made.report(report(step))
    with pytest.raises(WireError, match="a report of step 64 came while step 0"):
        made.report(report(64))


def test_evaluations() -> None:
    made, told, _ = progress(1)
    made.evaluation(4, {"loss": 0.0, "correct": 1.5})
    assert told == [EvaluationRecord(step=4, elapsed=0.0, loss=0.0, perplexity=1.0, accuracy=0.5)]
    with pytest.raises(WireError, match="an evaluation must have a loss, this one has correct"):
        made.evaluation(4, {"correct": 1.0})


def test_the_small_graph_is_what_these_tests_think() -> None:
    assert [str(edge.value) for edge in small_setup("b").subgraphs[1].requires_activations] == ["bend"]
    assert small_graph().loss.op == "loss"
