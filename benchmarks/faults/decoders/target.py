"""What the fuzzer of decoders attacks: a decoder, valid inputs for it, and the form in which inputs are changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from farflung.errors import FarflungError
from farflung.wire.headers import pack_value, unpack_value

__all__ = ["Form", "Target", "parse_input", "write_input"]

#: Deeper than any decoder reads, so that depth itself is attacked.
_DEPTH = 64


class Form(Enum):
    """How an input is built: changes keep the form, so that inputs come past the first check of a decoder."""

    BYTES = "bytes"
    #: One value in msgpack.
    VALUE = "value"
    #: The text of a JSON document.
    JSON = "json"
    #: What a JSON document says.
    PARSED = "parsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``decode`` takes an input and raises only ``refuses``. ``seeds`` returns inputs that it accepts."""

    decode: Callable[[Any], object]
    seeds: Callable[[], Iterable[Any]]
    form: Form = Form.BYTES
    refuses: tuple[type[Exception], ...] = (FarflungError,)

    def run(self, data: bytes) -> bool:
        """Decode ``data``; return whether it is accepted. Bytes that are not of the target's form are no input of it.

        Raises:
            Exception: any that the decoder must not raise.
        """
        try:
            value = parse_input(self.form, data)
        except (FarflungError, ValueError, RecursionError):
            return False
        try:
            self.decode(value)
        except self.refuses:
            return False
        return True

    def seed_bytes(self) -> list[bytes]:
        """Return the valid inputs as bytes."""
        return [write_input(self.form, seed) for seed in self.seeds()]


def parse_input(form: Form, data: bytes) -> Any:
    """Return the input in ``data``: bytes, a plain value, the text of a JSON document, or what such a document says.

    Raises:
        WireError, ValueError: ``data`` is not of this form.
    """
    if form is Form.VALUE:
        return unpack_value(data, _DEPTH)
    if form is Form.PARSED:
        return json.loads(data)
    return data.decode("utf-8") if form is Form.JSON else data


def write_input(form: Form, value: Any) -> bytes:
    """Return the bytes that ``parse_input`` reads as ``value``."""
    if form is Form.VALUE:
        return pack_value(value)
    if form is Form.PARSED:
        return json.dumps(value, default=repr).encode()
    return str(value).encode() if form is Form.JSON else bytes(value)
