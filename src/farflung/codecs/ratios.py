"""AdaTopK: how strongly each link compresses (FusionLLM section 5, equation (7)), with the format's real overhead or the text's.

The text sends 3 words of 4 bytes for each kept element, hence its factor 3: link i keeps 1 / r_i of its elements with
``r_i = max(1, 3 r R_i / max R)``, R the links' uncompressed times, and sends ``min(1, 3 / r_i)`` of the dense bytes: the slowest
link 1 / r, links below a third of that need nothing. A format with an overhead that depends on the density takes the place of
3 by solving ``r_i = f(r_i) r R_i / max R``: the same bytes on each link, more elements in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farflung.codecs.base import is_number
from farflung.codecs.sparse.topk import FORMATS, bytes_per_kept
from farflung.codecs.sparse.values import VALUES
from farflung.errors import InputError

__all__ = ["PAPER_FACTOR", "Overhead", "adaptive_ratios", "wire_factor", "words_per_kept"]

PAPER_FACTOR = 3.0
_WORD = 4.0
_MAX_RATIO = 1e9

#: Words for each kept element: a number, or a function of the ratio that does not fall.
Overhead = float | Callable[[float], float]


def words_per_kept(ratio: float, values: str = "float32", format: str = "compact") -> float:  # noqa: A002 - the codec's parameter
    """Expected words of 4 bytes for each kept element of top-k at ``ratio`` (random positions; head of the payload left out).

    Raises:
        InputError: ``ratio`` is below 1, or ``values`` or ``format`` is none of the codec's.
    """
    _check_ratio(ratio)
    if values not in VALUES:
        raise InputError(f"unknown values {values!r}: known are {', '.join(VALUES)}")
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}: known are {', '.join(FORMATS)}")
    return bytes_per_kept(ratio, values, format) / _WORD


def adaptive_ratios(link_seconds: Sequence[float], ratio: float, factor: Overhead = PAPER_FACTOR) -> tuple[float, ...]:
    """Equation (7): the top-k ratio of each link from the estimated seconds that it needs uncompressed.

    ``factor``: words for each kept element (the text's 3), or a function of the ratio, such as
    ``lambda r: words_per_kept(r, "float16")``. A ratio of 1 means dense; so does, to the codec, one below its overhead.

    Raises:
        InputError: ``ratio`` is below 1, the factor is not positive, or a time is negative or not finite.
    """
    _check_ratio(ratio)
    for seconds in link_seconds:
        if not 0.0 <= seconds < float("inf"):
            raise InputError(f"the seconds of a link must be finite and not negative, got {seconds!r}")
    if not callable(factor) and not 0.0 < factor < float("inf"):
        raise InputError(f"the words for each kept element must be positive, got {factor!r}")
    slowest = max(link_seconds, default=0.0)
    if slowest == 0.0:
        return tuple(1.0 for _ in link_seconds)
    return tuple(_solve(ratio * seconds / slowest, factor) for seconds in link_seconds)


def wire_factor(ratio: float, factor: Overhead = PAPER_FACTOR) -> float:
    """Bytes sent over dense bytes: ``min(1, f / ratio)``; a link never sends more than dense.

    Raises:
        InputError: ``ratio`` is below 1.
    """
    _check_ratio(ratio)
    return min(1.0, (factor(ratio) if callable(factor) else factor) / ratio)


def _solve(shrink: float, factor: Overhead) -> float:
    """The ratio at which the wire factor is ``1 / shrink``; 1 where no compression is asked for."""
    if not callable(factor):
        return max(1.0, factor * shrink)
    if shrink <= 1.0:
        return 1.0
    low, high = 1.0, _MAX_RATIO
    while high / low > 1.0 + 1e-12:
        middle = (low * high) ** 0.5
        if middle in (low, high):
            break
        low, high = (middle, high) if middle / factor(middle) < shrink else (low, middle)
    return high


def _check_ratio(ratio: float) -> None:
    if not is_number(ratio) or not 1.0 <= ratio < float("inf"):
        raise InputError(f"a compression ratio must be a number of at least 1, got {ratio!r}")
