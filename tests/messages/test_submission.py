"""A submitted job as one frame: round trip, and hostile frames."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.cluster import Topology
from farflung.errors import FarflungError, GraphError, VersionError, WireError
from farflung.messages import submission as bundle_module
from farflung.messages.calls import Submit
from farflung.messages.document_bounds import DocumentBounds
from farflung.messages.schema import Channel
from farflung.messages.submission import Bundle, squeeze, unsqueeze
from farflung.messages.wire_form import decode_as, encode
from farflung.wire.frames import Frame, decode_frame, encode_frame
from tests.support.steps.small_runs import small_bundle, small_graph

_HEAD = {"bundle": 1, "run": "r", "emulate": False, "notes": {}}


def travelled(frame: Frame) -> Frame:
    return decode_frame(b"".join(encode_frame(frame)))


def read(frame: Frame) -> Bundle:
    return Bundle.of(decode_as(frame, Channel.REQUESTS, Submit))


def with_document(name: str, text: str | bytes, **header: Any) -> Frame:
    """The small bundle's frame with one document replaced."""
    frame = encode(small_bundle().to_message())
    body = squeeze(text) if isinstance(text, str) else text
    sections = [body if which == name else old for which, old in zip(frame.header["documents"], frame.sections, strict=True)]
    return Frame("submit", {**frame.header, **header}, tuple(sections))


def test_a_bundle_comes_back_as_it_was() -> None:
    bundle = Bundle(
        run="run-1",
        job=small_bundle().job,
        graphs={4: small_graph(4), 2: small_graph(2)},
        eval_graph=small_graph(4),
        topology=Topology.preset("homogeneous-3"),
        emulate=True,
        notes={"tokenizer": "{}"},
        files={"tokenizer.model": bytes(range(256)), "generation_config.json": b"{}"},
    )
    back = read(travelled(encode(bundle.to_message())))
    assert back == bundle
    assert back.graph == small_graph(4)


def test_files_have_the_names_of_a_models_files() -> None:
    frame = encode(replace(small_bundle(), files={"../../authorized_keys": b"ssh-rsa"}).to_message())
    with pytest.raises(WireError, match=r"a job can't bring a file called '../../authorized_keys': known are added_tokens.json"):
        read(travelled(frame))


def test_another_version_is_named() -> None:
    with pytest.raises(VersionError, match="packed by version 7 of the format, this side speaks 1; install the same farflung"):
        read(with_document("", "", bundle=7))


@pytest.mark.parametrize(
    ("frame", "kind", "says"),
    [
        (Frame("submit", {"bundle": 1}), WireError, "Object missing required field `run`"),
        (Frame("submit", _HEAD | {"documents": ["job"]}), WireError, "documents and their names do not agree"),
        (with_document("", "", documents=["job", "job"]), WireError, "'job' stands twice"),
        (with_document("", "", documents=["job", "graph-x"]), WireError, "must say its number of samples, e.g. graph-4"),
        (with_document("", "", documents=["job", "graph-2"]), GraphError, "micro-batches of 4 samples, but its graphs are for 2"),
        (with_document("", "", documents=["job", "other"]), GraphError, "needs a job document and at least one training graph"),
        (with_document("", "", run=3), WireError, "Expected `str`, got `int` in 'run'"),
        (with_document("", "", notes=[1]), WireError, "Expected `object`, got `array` in 'notes'"),
        (with_document("graph-4", b"not zlib"), WireError, "a compressed document is damaged"),
        (with_document("graph-4", squeeze("{" * 100)[:-3]), WireError, "is cut, or larger than"),
        (with_document("graph-4", zlib.compress(b"\xff\xfe")), WireError, "a compressed document is no text"),
        (with_document("graph-4", "[]"), GraphError, "graph"),
        (with_document("graph-4", small_graph().to_json()[:-200]), GraphError, "graph"),
        (with_document("graph-4", small_graph().to_json().replace("relu.default", "system.default")), GraphError, "system"),
    ],
)
def test_bad_bundles_are_refused(frame: Frame, kind: type[FarflungError], says: str) -> None:
    with pytest.raises(kind, match=says):
        read(travelled(frame))


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(8 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(WireError, match="is cut, or larger than 1048576 bytes"):
        unsqueeze(bomb, 1 << 20)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" + "[]," * 20_000_000 + "[]]", "is cut, or larger than 33554432 bytes"),
        ("[" + "[]," * 5_000_000 + "[]]", r"have \d{8} items: at most 4000000 are read; submit a smaller graph"),
        ("[" * 65 + "]" * 65, "'topology' of a job is nested deeper than 64 levels"),
    ],
)
def test_documents_that_cost_a_parser_much_are_not_parsed(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is 58 kB on the wire and 60 MB of empty lists."""
    monkeypatch.setattr(json, "loads", None)
    frame = encode(small_bundle().to_message())
    names, sections = [*frame.header["documents"], "topology"], (*frame.sections, squeeze(text))
    with pytest.raises(WireError, match=says):
        read(Frame("submit", {**frame.header, "documents": names}, sections))


@pytest.mark.parametrize("limit", [0, -1])
def test_no_room_left_is_no_room_without_limit(limit: int) -> None:
    with pytest.raises(WireError, match="the documents of a job are together larger than 268435456 bytes"):
        unsqueeze(squeeze("x"), limit)


@pytest.mark.parametrize("text", ["{" * 60, "\u20ac" * 20])
def test_the_documents_of_a_job_share_one_limit_in_bytes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty bytes each: a fourth has no room in 200, and a third none in 120, where nothing at all is left."""
    frame = Frame("submit", _HEAD | {"documents": list("abcd")}, (squeeze(text),) * 4)
    monkeypatch.setattr(bundle_module, "BOUNDS", DocumentBounds(bytes=200))
    with pytest.raises(WireError, match="is cut, or larger than 20 bytes"):
        read(travelled(frame))
    monkeypatch.setattr(bundle_module, "BOUNDS", DocumentBounds(bytes=120))
    with pytest.raises(WireError, match="the documents of a job are together larger than 120 bytes"):
        read(travelled(frame))


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_a_damaged_graph_is_read_or_refused_by_an_error_of_ours(data: st.DataObject) -> None:
    """Any value of the document replaced by another one."""
    document = json.loads(small_graph().to_json())
    places = list(_places(document))
    container, key = data.draw(st.sampled_from(places))
    container[key] = data.draw(
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2) | st.just({})
    )
    with suppress(FarflungError):
        read(with_document("graph-4", json.dumps(document)))


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


@settings(deadline=None, max_examples=80)
@given(
    header=st.dictionaries(
        st.sampled_from(["bundle", "run", "documents", "emulate", "notes"]),
        st.none() | st.just(1) | st.text(max_size=4) | st.lists(st.sampled_from(["job", "graph-4", "plan", ""]), max_size=3),
    ),
    sections=st.lists(st.sampled_from([b"", squeeze("{}"), squeeze("[1]"), b"x", squeeze(small_graph().to_json())]), max_size=3),
)
def test_any_frame_is_read_or_refused_by_an_error_of_ours(header: dict[str, Any], sections: list[bytes]) -> None:
    with suppress(FarflungError):
        read(Frame("submit", {"bundle": 1} | header, tuple(sections)))
