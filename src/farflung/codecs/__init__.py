"""Codecs encode arrays for a link (``get_codec("topk", ratio=100)``); NumPy is the specification (docs/wire-format.md)."""

from farflung.codecs.base import DEFAULT_LIMIT, Codec, Payload, foretold_bytes
from farflung.codecs.choice import Measure, Option, allocate, measure
from farflung.codecs.keys import keyed
from farflung.codecs.members import CODECS, decode_payload, get_codec
from farflung.codecs.memory import MEMORIES, Memory, get_memory
from farflung.codecs.ratios import adaptive_ratios, wire_factor, words_per_kept
from farflung.codecs.written import codec_parts, read_codec, read_memory

__all__ = [
    "CODECS",
    "DEFAULT_LIMIT",
    "MEMORIES",
    "Codec",
    "Measure",
    "Memory",
    "Option",
    "Payload",
    "adaptive_ratios",
    "allocate",
    "codec_parts",
    "decode_payload",
    "foretold_bytes",
    "get_codec",
    "get_memory",
    "keyed",
    "measure",
    "read_codec",
    "read_memory",
    "wire_factor",
    "words_per_kept",
]
