"""The trace: rings, packing, files, clocks, and what is read out of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.cli.runs.trace import whole_percents
from farflung.errors import DataError, WireError
from farflung.telemetry import (
    ClockOffset,
    ProcessTrace,
    Span,
    SpanKind,
    SpanRing,
    perfetto,
    read_traces,
    time_shares,
    write_spans,
)
from farflung.telemetry.trace import estimate_offset, pack_spans, unpack_spans

SPANS = st.builds(
    Span,
    what=st.sampled_from(SpanKind),
    name=st.text(max_size=8),
    start=st.floats(0, 1e9),
    seconds=st.floats(0, 1e3, width=32),
    stage=st.integers(-1, 99),
    micro_batch=st.integers(-1, 99),
    step=st.integers(-1, 10**6),
    peer=st.sampled_from(["", "a", "b"]),
    nbytes=st.integers(0, 2**50),
)


def span(what: SpanKind, start: float, end: float, **facts: object) -> Span:
    return Span(what=what, name=what.value, start=start, seconds=end - start, **facts)  # type: ignore[arg-type]


@given(st.lists(SPANS, max_size=20))
def test_packed_spans_come_back(spans: list[Span]) -> None:
    names, packed = pack_spans(spans)
    assert unpack_spans(names, packed) == spans


def test_a_pack_has_no_more_names_than_are_read() -> None:
    spans = [
        Span(what=SpanKind.WAIT, name=f"for {number}", start=1.0, seconds=0.5, peer="ab"[number % 2]) for number in range(5000)
    ]
    names, packed = pack_spans(spans)
    back = unpack_spans(names, packed)
    assert len(back) == 5000
    assert [span.peer for span in back] == [span.peer for span in spans], "links are measured by peers"
    assert back[:4000] == spans[:4000]
    assert {span.name for span in back[4200:]} == {"others"}


@given(st.binary(max_size=200))
def test_noise_is_no_trace(noise: bytes) -> None:
    try:
        spans = unpack_spans(["a"], noise)
    except WireError:
        return
    assert all(span.seconds >= 0 for span in spans)


@pytest.mark.parametrize(("names", "packed"), [("no", b""), ([1], b""), (["x" * 999], b""), ([], b"abc"), ([], "text")])
def test_malformed_packs_are_refused(names: object, packed: object) -> None:
    with pytest.raises(WireError, match=r"a trace's names must|a trace must be whole records"):
        unpack_spans(names, packed)


def test_a_ring_keeps_the_newest_and_counts_the_rest() -> None:
    now = [0.0]
    ring = SpanRing(capacity=3, clock=lambda: now[0])
    for step in range(5):
        now[0] += 1.0
        ring.note(SpanKind.COMPUTE, "F", now[0] - 0.5, step=step)
    spans, lost = ring.drain()
    assert [(found.step, found.seconds) for found in spans] == [(2, 0.5), (3, 0.5), (4, 0.5)]
    assert lost == 2
    assert ring.drain() == ([], 0)


def test_the_quickest_ping_gives_the_offset() -> None:
    """The other clock is 100 s ahead; the second ping takes 10 ms there and 10 ms back, the others are slow one way."""
    times = iter([0.0, 0.5, 1.0, 1.02, 2.0, 2.9])
    theirs = iter([100.4, 101.01, 102.1])
    offset = estimate_offset(lambda: next(theirs), lambda: next(times), rounds=3)
    assert offset.seconds == pytest.approx(100.0)
    assert offset.error == pytest.approx(0.01)


@given(st.lists(SPANS, min_size=1, max_size=10))
def test_files_keep_spans_and_clock(tmp_path_factory: pytest.TempPathFactory, spans: list[Span]) -> None:
    folder = tmp_path_factory.mktemp("events")
    write_spans(folder, "w", spans[:1], offset=ClockOffset(seconds=2.0, error=0.1), lost=3)
    write_spans(folder, "w", spans[1:], lost=1)
    with (folder / "w.jsonl").open("a") as file:
        file.write('{"kind":"span","wha')  # cut off by a crash
    (trace,) = read_traces(folder)
    assert (trace.process, trace.offset, trace.lost) == ("w", ClockOffset(seconds=2.0, error=0.1), 4)
    assert [(found.what, found.name, found.step, found.peer, found.nbytes) for found in trace.spans] == [
        (found.what, found.name, found.step, found.peer, found.nbytes) for found in spans
    ]
    assert [found.start for found in trace.spans] == pytest.approx([found.start for found in spans], abs=1e-6)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write telemetry to .*file/events: .*; choose a folder that can be written"):
        write_spans(tmp_path / "file" / "events", "w", [])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text('{"kind":"span","what":"sleep","start":1,"seconds":1}\n')
    with pytest.raises(DataError, match=r"w\.jsonl, line 1 is no event"):
        read_traces(tmp_path)


def test_time_shares_count_overlap_once() -> None:
    trace = ProcessTrace(
        process="w",
        spans=(
            span(SpanKind.COMPUTE, 0, 4),
            span(SpanKind.SEND, 2, 6),
            span(SpanKind.SEND, 3, 7),
            span(SpanKind.ENCODE, 1.5, 2),
            span(SpanKind.DECODE, 8, 9),
            span(SpanKind.WAIT, 4, 8),
            span(SpanKind.COMPUTE, 8, 10),
        ),
    )
    (shares,) = time_shares([trace])
    assert (shares.total, shares.compute, shares.wait) == (10, 6, 4)
    assert (shares.send, shares.receive, shares.transfer) == (5.5, 1, 6.5)
    assert shares.hidden == 3.5  # 1.5 to 4, and 8 to 9
    assert shares.hidden_share == pytest.approx(3.5 / 6.5)
    # what does not overlap adds up: computing, transfers and waiting beside it, and what no span covers
    assert (shares.compute, shares.exposed, shares.idle, shares.other) == (6, 3, 1, 0)


@given(st.lists(st.tuples(st.sampled_from(SpanKind), st.floats(0, 9), st.floats(0, 5)), min_size=1, max_size=30))
def test_shares_add_up_to_the_whole(drawn: list[tuple[SpanKind, float, float]]) -> None:
    spans = tuple(span(what, start, start + seconds, step=0) for what, start, seconds in drawn)
    (shares,) = time_shares([ProcessTrace(process="w", spans=spans)])
    parts = (shares.compute, shares.exposed, shares.idle, shares.other)
    assert sum(parts) == pytest.approx(shares.total)
    assert min(parts) >= 0
    assert sum(whole_percents(parts)) == (100 if shares.total > 0 else 0)


def test_perfetto_joins_sent_and_received_frames_by_arrows() -> None:
    def moved(what: SpanKind, name: str, start: float, end: float, **facts: int | str) -> Span:
        return replace(span(what, start, end, step=3, **facts), name=name)

    a = ProcessTrace(
        process="a",
        spans=(
            moved(SpanKind.SEND, "send activation", 1, 2, micro_batch=0, peer="b", nbytes=8),
            moved(SpanKind.SEND, "send activation", 2, 3, micro_batch=0, peer="b", nbytes=8),
            moved(SpanKind.RECEIVE, "receive gradient", 8, 9, micro_batch=0, peer="b", nbytes=8),
            moved(SpanKind.SEND, "send losses", 1.5, 6, peer="b"),
            moved(SpanKind.SEND, "send activation", 4, 5, micro_batch=1, peer="b", nbytes=8),
            moved(SpanKind.WAIT, "for B", 4, 8, micro_batch=0),
            moved(SpanKind.COMPUTE, "B", 8, 9, micro_batch=0),
        ),
    )
    b = ProcessTrace(
        process="b",
        spans=(
            moved(SpanKind.RECEIVE, "receive activation", 2, 2.5, micro_batch=0, peer="a", nbytes=9),
            moved(SpanKind.RECEIVE, "receive activation", 2.5, 3.5, micro_batch=0, peer="a", nbytes=9),
            moved(SpanKind.SEND, "send gradient", 6, 7, micro_batch=0, peer="a", nbytes=8),
        ),
    )
    events = json.loads(perfetto([a, b]))["traceEvents"]
    begun = {event["id"]: (event["name"], event["pid"], event["ts"]) for event in events if event["ph"] == "s"}
    ended = {event["id"]: (event["name"], event["pid"], event["ts"]) for event in events if event["ph"] == "f"}
    assert begun.keys() == ended.keys()
    pairs = sorted((begun[key], ended[key]) for key in begun)
    assert pairs == [
        (("backward", 2, 5e6), ("backward", 1, 7e6)),
        (("forward", 1, 0.0), ("forward", 2, 1e6)),
        (("forward", 1, 1e6), ("forward", 2, 1.5e6)),
    ]  # micro-batch 1 was not recorded by its receiver: no arrow
    assert all(event["bp"] == "e" for event in events if event["ph"] == "f")
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1]
    assert names == ["compute", "receive", "send", "messages"]  # waiting is on the compute track, messages are instants
    assert [event["name"] for event in events if event["ph"] == "i"] == ["send losses"]


def test_perfetto_draws_a_span_within_another_one_on_the_same_track() -> None:
    trace = ProcessTrace(process="a", spans=(span(SpanKind.SEND, 1, 9), span(SpanKind.SEND, 2, 3), span(SpanKind.SEND, 3, 9)))
    events = json.loads(perfetto([trace]))["traceEvents"]
    assert len([event for event in events if event["name"] == "thread_name"]) == 1


def test_the_total_begins_with_the_first_step() -> None:
    spans = (
        span(SpanKind.DECODE, 1, 3),
        span(SpanKind.SEND, 4, 7),
        span(SpanKind.WAIT, 5, 6, step=0),
        span(SpanKind.COMPUTE, 6, 8, step=0),
        span(SpanKind.SEND, 9, 10),
    )
    (shares,) = time_shares([ProcessTrace(process="w", spans=spans)])
    assert (shares.before, shares.total) == (4, 5)
    assert (shares.receive, shares.send, shares.hidden) == (0, 3, 1)


def test_perfetto_moves_clocks_and_parts_what_overlaps() -> None:
    early = ProcessTrace(process="a", spans=(span(SpanKind.SEND, 1, 3, nbytes=7), span(SpanKind.SEND, 2, 4, peer="b")))
    late = ProcessTrace(
        process="b", spans=(span(SpanKind.COMPUTE, 101, 102, micro_batch=2),), offset=ClockOffset(seconds=-99.0, error=0.5)
    )
    document = json.loads(perfetto([early, late]))
    drawn = [event for event in document["traceEvents"] if event["ph"] == "X"]
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"
    }
    assert [(rows[event["pid"], event["tid"]], event["ts"], event["dur"]) for event in drawn] == [
        ("send", 0.0, 2e6),
        ("send 2", 1e6, 2e6),
        ("compute", 1e6, 1e6),
    ]
    assert drawn[0]["args"] == {"bytes": 7}
    assert drawn[1]["args"] == {"peer": "b"}
    assert drawn[2]["name"] == "compute2"
    assert document["otherData"]["clocks"]["b"] == {"offset_seconds": -99.0, "error_seconds": 0.5, "lost": 0}


def test_an_unknown_clock_error_is_no_number() -> None:
    trace = ProcessTrace(process="a", spans=(span(SpanKind.WAIT, 0, 1),), offset=ClockOffset(error=float("inf")))
    assert json.loads(perfetto([trace]))["otherData"]["clocks"]["a"]["error_seconds"] is None
