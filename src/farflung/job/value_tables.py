"""Values of each step and group of the optimizer as a bounded text of a job: schedules that only the caller can compute."""

from __future__ import annotations

import base64
import binascii
import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache

from farflung.errors import InputError

__all__ = ["MOST_VALUES", "read_values", "write_values"]

#: Steps times groups.
MOST_VALUES = 1 << 20


def write_values(values: Sequence[float]) -> str:
    """``values``, those of all groups of a step after each other, as float64 in base64.

    Raises:
        InputError: they are too many, or one is not a finite number.
    """
    if len(values) > MOST_VALUES:
        raise InputError(f"a schedule has {len(values)} values (steps times groups), at most {MOST_VALUES} are allowed: name it")
    wrong = next((value for value in values if not math.isfinite(value)), None)
    if wrong is not None:
        raise InputError(f"a schedule has the value {wrong}: every value must be a finite number")
    return base64.b64encode(zlib.compress(_little(array("d", values)).tobytes(), 6)).decode("ascii")


@lru_cache(maxsize=16)
def read_values(text: str, groups: int) -> tuple[float, ...]:
    """What ``write_values`` wrote.

    Raises:
        InputError: the text is damaged, too long, or has no value for some group.
    """
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), 8 * MOST_VALUES)
    except (binascii.Error, zlib.error, ValueError):
        data = b""
    if not data or len(data) % (8 * groups) or unpacker.unconsumed_tail or not unpacker.eof:
        raise InputError(f"schedule.values must hold float64 values for {groups} groups in each step: submit the job again")
    found = tuple(_little(array("d", data)))
    if not all(map(math.isfinite, found)):
        raise InputError("schedule.values must hold finite numbers: submit the job again")
    return found


def _little(values: array[float]) -> array[float]:
    """With little-endian bytes."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
