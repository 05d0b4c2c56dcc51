"""Reading and writing quantities with units."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond, Flops, FlopsPerSecond, Quantity, Seconds, counted

PREFIXED: list[type[Quantity]] = [Bytes, BytesPerSecond, Flops, FlopsPerSecond]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BytesPerSecond, "100 Mbit/s", 12.5e6),
        (BytesPerSecond, "8Mbps", 1e6),
        (BytesPerSecond, "12 MB/s", 12e6),
        (BytesPerSecond, "1 Gbit/s", 125e6),
        (Bytes, "8 GiB", 8 * 2.0**30),
        (Bytes, "8 GB", 8e9),
        (Bytes, "1_000", 1000.0),
        (Bytes, ".5 kB", 500.0),
        (Seconds, "20 ms", 0.02),
        (Seconds, " 1.5 h ", 5400.0),
        (Seconds, "3 µs", 3e-6),
        (Seconds, 0.25, 0.25),
        (Flops, "3 TFLOP", 3e12),
        (FlopsPerSecond, "5e-3 TFLOP/s", 5e9),
        (FlopsPerSecond, "2 GFLOPS", 2e9),
    ],
)
def test_parse_reads_numbers_with_units(kind: type[Quantity], text: str | float, value: float) -> None:
    parsed = kind.parse(text)
    assert type(parsed) is kind
    assert parsed == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["", "fast", "5 parsecs", "10 Mb/s", "1.2.3 s", "5 s s", "ms", "--3 s"])
def test_text_that_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r'cannot read .* as a duration; write e\.g\. "24 h" or "20 ms"'):
        Seconds.parse(text)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (BytesPerSecond, "20", 'a rate needs a unit, got \'20\'; write "20 Mbit/s" or "20 MB/s"'),
        (Bytes, " 2.5 ", 'a number of bytes needs a unit, got \' 2.5 \'; write "2.5 GB" or "2.5 MB"'),
        (BytesPerSecond, 100, 'a rate needs a unit, got 100; write "100 Mbit/s" or "100 MB/s"'),
        (Seconds, "5", 'a duration needs a unit, got \'5\'; write "5 ms" or "5 s" or "5 h"'),
        (Seconds, 0.02, 'a duration needs a unit, got 0.02; write "0.02 ms" or "0.02 s" or "0.02 h"'),
        (FlopsPerSecond, "5", 'a speed needs a unit, got \'5\'; write "5 TFLOP/s" or "5 GFLOP/s"'),
    ],
)
def test_what_a_person_writes_needs_a_unit(kind: type[Quantity], text: str | float, says: str) -> None:
    with pytest.raises(InputError) as caught:
        kind.typed(text)
    assert str(caught.value) == says
    assert kind.typed(f"{text} {kind.usual_units[0]}") == kind.parse(f"{text} {kind.usual_units[0]}")
    assert kind.typed("0") == kind.typed(0) == kind.typed(0.0) == 0.0


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 10**400, "-5 s", "1e999 s"])
def test_negative_and_infinite_values_are_refused(value: str | float) -> None:
    with pytest.raises(InputError, match="a duration must be finite and not negative, got"):
        Seconds.parse(value)


@pytest.mark.parametrize("value", [True, None, [1], b"5 s"])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"a number of bytes must be a number or text, got .*; write e\.g\."):
        Bytes.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Bytes(0), "0 B"),
        (Bytes(999), "999 B"),
        (Bytes(999.9), "1 kB"),
        (Bytes(999_999), "1 MB"),
        (Bytes(12_345_678), "12.3 MB"),
        (Bytes(3e15), "3 PB"),
        (BytesPerSecond(12.5e6), "100 Mbit/s"),
        (BytesPerSecond(0.0), "0 bit/s"),
        (FlopsPerSecond(5e12), "5 TFLOP/s"),
        (Seconds(0), "0 s"),
        (Seconds(5e-6), "5 us"),
        (Seconds(0.00099999), "1 ms"),
        (Seconds(0.02), "20 ms"),
        (Seconds(0.9999), "1.00 s"),
        (Seconds(3.14159), "3.14 s"),
        (Seconds(59.6), "1 min 0 s"),
        (Seconds(125), "2 min 5 s"),
        (Seconds(3599.7), "1 h 0 min"),
        (Seconds(7500), "2 h 5 min"),
        (Seconds(math.inf), "inf s"),
        (Seconds(-0.5), "-0.5 s"),
    ],
)
def test_str_is_what_people_read(quantity: Quantity, text: str) -> None:
    assert str(quantity) == text


@settings(deadline=None, max_examples=100)
@given(kind=st.sampled_from(PREFIXED), value=st.floats(0.0, 9e17, allow_subnormal=False))
def test_what_str_writes_parse_reads_to_three_digits(kind: type[Quantity], value: float) -> None:
    assert float(kind.parse(str(kind(value)))) == pytest.approx(value, rel=5.1e-3)


@settings(deadline=None, max_examples=100)
@given(value=st.floats(1e-9, 59.4))
def test_durations_below_a_minute_read_back(value: float) -> None:
    assert float(Seconds.parse(str(Seconds(value)))) == pytest.approx(value, rel=5.1e-3)


@settings(deadline=None, max_examples=100)
@given(kind=st.sampled_from(PREFIXED), value=st.integers(0, 10**6), data=st.data())
def test_each_spelling_scales_the_base_unit(kind: type[Quantity], value: int, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.table)))
    assert kind.parse(f"{value} {unit}") == value * kind.table[unit]


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        assert 0 <= Bytes.parse(text) < math.inf


def test_one_of_a_thing_has_no_plural() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert [counted(n, "micro-batch", "micro-batches") for n in (1, 2)] == ["1 micro-batch", "2 micro-batches"]


@given(st.sampled_from([Seconds, Bytes, BytesPerSecond, Flops, FlopsPerSecond]), st.floats(1e-9, 1e18) | st.just(0.0))
@settings(deadline=None)
def test_what_is_written_for_files_is_read_back_to_its_digits(kind: type[Quantity], value: float) -> None:
    assert kind.parse(kind(value).written()) == pytest.approx(value, rel=6e-4)
    assert kind.parse(kind(value).written(digits=17)) == pytest.approx(value, rel=1e-15)


def test_what_is_written_for_files() -> None:
    assert (Bytes(15519675187.2).written(), Bytes(1e13).written(3)) == ("15.52 GB", "10 TB")
    assert [Bytes.parse(text).written() for text in ("4 GiB", "1536 MiB", "16 GB", "0")] == ["4 GiB", "1536 MiB", "16 GB", "0 B"]
    assert BytesPerSecond(596739.1917745471).written() == "4.774 Mbit/s"
    assert BytesPerSecond(5e6).written() == "40 Mbit/s"
    assert Seconds(0.04295819949766155).written() == "42.96 ms"
    assert Seconds(0.0).written() == "0 s"
