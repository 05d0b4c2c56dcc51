"""What spans can be of, and values as lines of strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum

__all__ = ["SpanKind", "Value", "encode_line"]

#: What a field may hold; numbers that are not finite travel as the texts "nan", "inf" and "-inf".
Value = None | bool | int | float | str | list["Value"] | tuple["Value", ...] | Mapping[str, "Value"]


class SpanKind(StrEnum):
    """What a stage can be doing."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    WAIT = "wait"
    ENCODE = "encode"
    DECODE = "decode"
    EXCHANGE = "exchange"


def encode_line(body: Mapping[str, Value]) -> str:
    """``body`` as one line of strict JSON with a line feed."""
    return json.dumps(_plain(body), separators=(",", ":"), allow_nan=False) + "\n"


def _plain(value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
