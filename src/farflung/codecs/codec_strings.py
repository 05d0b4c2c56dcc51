"""Codecs as people write them in a job's settings: a name, or a name with parameters, ``topk:ratio=33,values=int4``."""

from __future__ import annotations

from farflung.codecs.base import Codec
from farflung.codecs.members import get_codec
from farflung.codecs.memory import Memory, get_memory
from farflung.errors import InputError

__all__ = ["codec_parts", "read_codec", "read_memory"]

Value = int | float | bool | str


def read_codec(text: str) -> Codec:
    """The codec that ``text`` writes: ``int8``, ``topk:ratio=33,values=int4``, ``quantized:bits=3,block=row,rotate=true``.

    Raises:
        InputError: no codec has that name, it has no such parameter, a value is out of range, or ``text`` is written otherwise.
    """
    name, parameters = codec_parts(text)
    return get_codec(name, **parameters)


def codec_parts(text: str) -> tuple[str, dict[str, Value]]:
    """Name and parameters that ``text`` writes; neither is looked up.

    Raises:
        InputError: ``text`` is written otherwise.
    """
    return _parts("codec", text, "topk:ratio=33,values=int8")


def read_memory(text: str, codec: Codec) -> Memory:
    """The memory that ``text`` writes around ``codec``: ``error_feedback``, ``dgc:momentum=0.9,clip=1``.

    Raises:
        InputError: no memory has that name, it has no such parameter, a value is out of range, or ``text`` is written otherwise.
    """
    name, parameters = _parts("memory", text, "dgc:momentum=0.9")
    return get_memory(name, codec, **parameters)


def _parts(what: str, text: str, example: str) -> tuple[str, dict[str, Value]]:
    name, colon, rest = text.partition(":")
    parameters: dict[str, Value] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (item.strip() for item in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"{what} {text!r}: write a name, or name:key=value,key=value as in {example}")
        parameters[key] = _value(value)
    return name.strip(), parameters


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
