"""Units as types: a float that knows how to read and write itself.

``BytesPerSecond.parse("100 Mbit/s") == 12_500_000.0``; arithmetic gives plain floats.
Decimal prefixes (k, M, G, T) are powers of 1000, binary ones (Ki, Mi, Gi, Ti) of 1024.
"""

from __future__ import annotations

import math
import re
import sys
from typing import ClassVar, Self

from farflung.errors import InputError

__all__ = ["Bytes", "BytesPerSecond", "Flops", "FlopsPerSecond", "Quantity", "Seconds", "counted"]

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _prefixed(units: dict[str, float]) -> dict[str, float]:
    table = {}
    for unit, factor in units.items():
        for prefix, scale in (_DECIMAL | _BINARY).items():
            table[prefix + unit] = scale * factor
    return table


def _prefixed_text(value: float, unit: str) -> str:
    """``value`` with three digits and a decimal prefix."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        digits = f"{value / scale:.3g}"
        if abs(float(digits)) >= 1:  # after rounding, so that 999.9 is "1 k" and not "1e+03"
            return f"{digits} {prefix}{unit}"
    return f"{value:.3g} {unit}"


class Quantity(float):
    """A float with a unit; subclasses list the spellings that they read."""

    __slots__ = ()
    table: ClassVar[dict[str, float]] = {}
    base: ClassVar[str] = ""
    examples: ClassVar[str] = ""
    #: What a bare number that a person writes may stand for.
    usual_units: ClassVar[tuple[str, ...]] = ()
    #: What people call it.
    what: ClassVar[str] = "a number"
    #: What ``written`` writes in, from large to small, each with its size in the base unit.
    spellings: ClassVar[tuple[tuple[str, float], ...]] = ()

    def written(self, digits: int | None = 4) -> str:
        """As people write it in a file, rounded to ``digits`` (``None``: exactly): ``typed`` reads it."""
        if digits is None:
            return f"{float(self)!r} {next(unit for unit, scale in self.table.items() if scale == 1.0)}"
        unit, scale = next((one for one in self.spellings if self >= one[1]), self.spellings[-1] if self else (self.base, 1.0))
        return f"{float(self) / scale:.{digits}g} {unit}"

    @classmethod
    def parse(cls, text: str | float) -> Self:
        """Read a number (base unit) or a text such as ``"20 Mbit/s"``.

        Raises:
            InputError: the text is not a non-negative number with a known unit.
        """
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise InputError(f"{cls.what} must be a number or text, got {text!r}; write e.g. {cls.examples}")
        if not isinstance(text, str):
            return cls._checked(math.inf if abs(text) > sys.float_info.max else float(text), text)
        match = _NUMBER.fullmatch(text)
        if match is None or (match[2] and match[2] not in cls.table):
            raise InputError(f"cannot read {text!r} as {cls.what}; write e.g. {cls.examples}")
        return cls._checked(float(match[1].replace("_", "")) * cls.table.get(match[2], 1.0), text)

    @classmethod
    def typed(cls, text: str | float) -> Self:
        """Read what a person wrote: as ``parse``, but a number other than 0 needs a unit.

        Raises:
            InputError: as ``parse``, or the unit is missing: nobody means 20 bytes per second by 20.
        """
        value, match = cls.parse(text), _NUMBER.fullmatch(str(text))
        if value and match is not None and not match[2]:
            choices = " or ".join(f'"{match[1]} {unit}"' for unit in cls.usual_units)
            raise InputError(f"{cls.what} needs a unit, got {text!r}; write {choices}")
        return value

    @classmethod
    def _checked(cls, value: float, source: object) -> Self:
        if not 0.0 <= value < float("inf"):
            raise InputError(f"{cls.what} must be finite and not negative, got {source!r}")
        return cls(value)

    def __str__(self) -> str:
        return _prefixed_text(float(self), self.base)


class Seconds(Quantity):
    """A duration in seconds."""

    __slots__ = ()
    what = "a duration"
    spellings = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    table = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
    base = "s"
    examples = '"24 h" or "20 ms"'
    usual_units = ("ms", "s", "h")

    def __str__(self) -> str:
        value = float(self)
        if not math.isfinite(value) or value <= 0:
            return f"{value:g} s"
        whole = round(value)
        if whole >= 3600:
            return f"{whole // 3600} h {whole % 3600 // 60} min"
        if whole >= 60:
            return f"{whole // 60} min {whole % 60} s"
        if value >= 0.9995:
            return f"{value:.2f} s"
        return f"{value * 1e3:.3g} ms" if value >= 0.9995e-3 else f"{value * 1e6:.3g} us"


class Bytes(Quantity):
    """An amount of memory or traffic in bytes."""

    __slots__ = ()
    table = _prefixed({"B": 1.0})
    what = "a number of bytes"
    spellings = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
    base = "B"
    examples = '"8 GB" or "8 GiB"'
    usual_units = ("GB", "MB")

    def written(self, digits: int | None = 4) -> str:
        """See ``Quantity``. A whole number of GiB or MiB is written so, because its author wrote it so."""
        for unit, scale in (("GiB", 2.0**30), ("MiB", 2.0**20)) if digits is not None else ():
            if self >= scale and self % scale == 0 and self % 1e6 and self < scale * 10.0 ** (digits or 0):
                return f"{float(self) / scale:.{digits}g} {unit}"
        return Quantity.written(self, digits)


class BytesPerSecond(Quantity):
    """A rate in bytes per second; also read from bits per second, and shown in them, as people name the speed of a link."""

    __slots__ = ()
    table = _prefixed({"B/s": 1.0, "bit/s": 0.125, "bps": 0.125})
    what = "a rate"
    spellings = (("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("bit/s", 0.125))
    base = "bit/s"
    examples = '"100 Mbit/s" or "12 MB/s"'
    usual_units = ("Mbit/s", "MB/s")

    def __str__(self) -> str:
        return _prefixed_text(8 * float(self), self.base)


class Flops(Quantity):
    """An amount of work in floating-point operations."""

    __slots__ = ()
    table = _prefixed({"FLOP": 1.0})
    what = "an amount of work"
    spellings = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("FLOP", 1.0))
    base = "FLOP"
    examples = '"3 TFLOP"'
    usual_units = ("TFLOP", "GFLOP")


class FlopsPerSecond(Quantity):
    """A speed in floating-point operations per second."""

    __slots__ = ()
    table = _prefixed({"FLOP/s": 1.0, "FLOPS": 1.0})
    what = "a speed"
    spellings = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6), ("FLOP/s", 1.0))
    base = "FLOP/s"
    examples = '"5 TFLOP/s"'
    usual_units = ("TFLOP/s", "GFLOP/s")


def counted(number: int, thing: str, several: str = "") -> str:
    """``1 worker``, ``2 workers``; ``several`` is the plural of a thing that does not take an s."""
    return f"{number} {thing if number == 1 else several or thing + 's'}"
