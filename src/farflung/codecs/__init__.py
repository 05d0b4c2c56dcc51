"""Codecs encode arrays for a link (``get_codec("topk", ratio=100)``); NumPy is the specification (docs/wire-format.md).

``base``             what a codec offers, and the self-describing payload
``members``          the codecs by name, and the decoder of any payload
``codec_strings``    codecs as people write them, ``topk:ratio=33,values=int4``
``keys``             random numbers keyed by seed and counter
``dense``            every element, unchanged or in fewer bits
``quantization/``, ``sparse/``, ``low_rank/``   fewer bits, fewer elements, thin factors
``planes``           lossless differences to an older version
``memory``           error feedback and differences: codecs with a state
``samples``          differences to a sample's last visit
``exchanged``        exchanges between replicas through codecs with a state
``ratios``           AdaTopK: the ratio of each link
``choice``           the best codec within an error budget
"""

from farflung.codecs.base import DEFAULT_LIMIT, Codec, Payload, foretold_bytes
from farflung.codecs.choice import Measure, Option, allocate, measure
from farflung.codecs.codec_strings import codec_parts, read_codec, read_memory
from farflung.codecs.keys import keyed
from farflung.codecs.members import CODECS, decode_payload, get_codec, on_devices
from farflung.codecs.memory import MEMORIES, Memory, get_memory
from farflung.codecs.ratios import adaptive_ratios, wire_factor, words_per_kept

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
    "on_devices",
    "read_codec",
    "read_memory",
    "wire_factor",
    "words_per_kept",
]
