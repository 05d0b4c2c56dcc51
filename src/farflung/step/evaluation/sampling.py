"""Draws the next token from the logits of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_token", "likeliest", "log_probabilities"]

#: Logits that are computed with at once.
_PART = 8192


def draw_token(
    logits: NDArray[np.floating[Any]], random: np.random.Generator, *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> int:
    """Draw a token; ``logits`` are ``(vocabulary,)``.

    Args:
        logits: of the tokens that may follow.
        random: gives one number.
        temperature: 0 takes the most likely token.
        top_k: only so many of the most likely tokens (0: all).
        top_p: only the most likely tokens whose probabilities sum up to at least this (Holtzman et al., 2020).
    """
    if temperature == 0 or top_k == 1:
        return int(np.argmax(logits))
    logits = logits.astype(np.float64)
    order = likeliest(logits, top_k or len(logits))
    scaled = (logits[order] - logits[order[0]]) / temperature
    chances = np.exp(scaled)
    chances /= chances.sum()
    # as many of the likeliest as are needed to reach top_p, at least one
    kept = int(np.searchsorted(np.cumsum(chances), top_p - 1e-12)) + 1
    chances = chances[:kept] / chances[:kept].sum()
    return int(order[random.choice(len(chances), p=chances)])


def likeliest(scores: NDArray[np.floating[Any]], count: int) -> NDArray[np.intp]:
    """The indices of the ``count`` largest ``scores``, the largest first; of equal ones the first. Only those are sorted."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > least)
    found = np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]])
    return found[np.argsort(-scores[found], kind="stable")]


def log_probabilities(logits: NDArray[np.floating[Any]], tokens: Sequence[int]) -> list[float]:
    """Return the natural logarithms of the probabilities of ``tokens`` at temperature 1.

    The next token of a served model waits for this. Hence the element type stays, and temporary arrays fit into a cache.
    """
    top = logits.max()
    parts = (logits[begin : begin + _PART] for begin in range(0, len(logits), _PART))
    total = np.log(sum(float(np.exp(part - top).sum(dtype=np.float64)) for part in parts))
    return [float(logits[token]) - float(top) - float(total) for token in tokens]
