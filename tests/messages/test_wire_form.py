"""Messages keep the wire format byte for byte, and whatever is not a message is refused with a clear text."""

from __future__ import annotations

from typing import Any

import pytest

from farflung.errors import WireError
from farflung.messages import calls, commands, data, reports
from farflung.messages.array_headers import ELEMENT_TYPES
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode, encode, types_on
from farflung.wire.arrays import DTYPES
from farflung.wire.frames import Frame, decode_frame, encode_frame


def test_a_golden_frame_is_written_again_byte_for_byte(golden: Any) -> None:
    message = decode(golden.frame, golden.channel)
    assert b"".join(map(bytes, encode_frame(encode(message)))) == b"".join(map(bytes, encode_frame(golden.frame)))


def test_a_golden_frame_passes_the_wire(golden: Any) -> None:
    sent = decode(golden.frame, golden.channel)
    received = decode(decode_frame(b"".join(map(bytes, encode_frame(encode(sent))))), golden.channel)
    assert encode(received) == encode(sent)


def test_every_message_type_has_a_golden_frame(every_golden: list[Any]) -> None:
    golden = {(one.channel, one.frame.kind) for one in every_golden}
    assert golden == {(channel, kind) for channel in Channel for kind in types_on(channel)}


def test_every_message_type_has_a_docstring() -> None:
    undocumented = [
        found.__name__ for channel in Channel for found in types_on(channel).values() if not (found.__doc__ or "").strip()
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", ["run", "attempt"])
def test_a_missing_field_is_named(name: str) -> None:
    header = {"run": "run-1", "attempt": 1}
    del header[name]
    with pytest.raises(WireError, match=f"bad message 'start': Object missing required field `{name}`"):
        decode(Frame("start", header), Channel.COMMANDS)


def test_an_extra_field_is_named() -> None:
    with pytest.raises(WireError, match="bad message 'stop': Object contains unknown field `force`"):
        decode(Frame("stop", {"run": "run-1", "force": True}), Channel.COMMANDS)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"run": 3, "attempt": 1}, "Expected `str`, got `int` in 'run'"),
        ({"run": "a" * 201, "attempt": 1}, "Expected `str` of length <= 200 in 'run', got 'aaa"),
        ({"run": "run-1", "attempt": 0}, "Expected `int` >= 1 in 'attempt', got 0"),
        ({"run": "run-1", "attempt": True}, "Expected `int`, got `bool` in 'attempt'"),
        ({"run": "run-1", "attempt": 1.5}, "Expected `int`, got `float` in 'attempt'"),
        ({"run": "run-1", "attempt": 2**60}, "Expected `int` <= 9007199254740992 in 'attempt', got 1152921504606846976"),
    ],
)
def test_a_wrong_field_is_named_with_rule_and_value(header: dict[str, Any], text: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(Frame("start", header), Channel.COMMANDS)
    assert text in str(caught.value)


def test_a_wrong_value_inside_a_list_is_named() -> None:
    with pytest.raises(WireError) as caught:
        decode(Frame("relay", {"run": "run-1", "pairs": [["a", "b"], ["a", 7]]}), Channel.COMMANDS)
    assert str(caught.value) == "bad message 'relay': Expected `str`, got `int` in 'pairs[1][1]'"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_quantity_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(WireError, match="in 'seconds', got"):
        decode(Frame("pace", {"run": "run-1", "place": 0, "seconds": value}), Channel.DATA)


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(WireError) as caught:
        decode(Frame("dance", {}), Channel.UPLOADS)
    assert str(caught.value) == (
        "unknown message 'dance': uploads are dashboard, end, piece, shard, weights; install the same farflung on both machines"
    )


def test_a_kind_belongs_to_its_channel() -> None:
    assert type(decode(Frame("hello", {}), Channel.DATA)) is data.PeerHello
    with pytest.raises(WireError, match="missing required field `address`"):
        decode(Frame("hello", {}), Channel.REPORTS)


@pytest.mark.parametrize(("sections", "got"), [((), 0), ((b"a", b"b"), 2)])
def test_sections_are_counted(sections: tuple[bytes, ...], got: int) -> None:
    with pytest.raises(WireError, match=f"bad message 'piece': expected 1 sections, got {got}"):
        decode(Frame("piece", {}, sections), Channel.UPLOADS)


def test_a_header_cannot_claim_sections() -> None:
    with pytest.raises(WireError, match="in 'sections'"):
        decode(Frame("piece", {"sections": [b"abc"]}, (b"x",)), Channel.UPLOADS)


def test_sections_are_those_of_the_frame() -> None:
    section = memoryview(b"abc")
    message = decode(Frame("piece", {}, (section,)), Channel.UPLOADS)
    assert isinstance(message, calls.UploadPiece)
    assert message.sections[0] is section
    assert encode(message).sections[0] is section


def test_a_message_is_immutable() -> None:
    message = commands.Stop(run="run-1")
    with pytest.raises(AttributeError, match="immutable"):
        message.run = "run-2"  # type: ignore[misc]


def test_a_probe_without_figures_and_cause_is_refused() -> None:
    with pytest.raises(WireError, match="a probe's answer has alpha and beta, or a cause"):
        decode(Frame("probed", {"question": 1}), Channel.REPORTS)


def test_an_array_of_unknown_elements_is_refused() -> None:
    header = {"run": "r", "key": ["data", 0, 0, "x"], "step": 0, "array": ["float7", [4], None]}
    with pytest.raises(WireError, match="unknown element type 'float7': known are float64, "):
        decode(Frame("data", header, (b"",)), Channel.DATA)


def test_fields_that_are_not_set_are_not_written() -> None:
    assert encode(reports.Measured(speed=1e9, factor=1.0, overhead=0.0)).header == {
        "speed": 1e9,
        "factor": 1.0,
        "overhead": 0.0,
    }


def test_headers_know_the_element_types_of_the_wire() -> None:
    assert tuple(DTYPES) == ELEMENT_TYPES


@pytest.mark.parametrize("name", ["a\nb", "\x1b]0;owned\x07", "a\u202eb", "a\x9b"])
def test_names_and_descriptions_have_no_control_characters(name: str, every_golden: list[Any]) -> None:
    hello = next(one for one in every_golden if one.frame.kind == "hello" and one.channel is Channel.REPORTS)
    offer = {**hello.frame.header["offer"], "description": name}
    with pytest.raises(WireError, match=r"'hello': Expected a text without control characters in 'offer\.description'"):
        decode(Frame("hello", {**hello.frame.header, "offer": offer}), Channel.REPORTS)
    with pytest.raises(WireError, match="bad message 'member': Expected a text without control characters in 'name'"):
        decode(Frame("member", {"name": name}), Channel.REQUESTS)
