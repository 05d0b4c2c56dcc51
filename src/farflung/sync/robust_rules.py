"""Aggregation that a minority of faulty members can't move far; NumPy is the specification.

Each rule takes the members' vectors as rows, ``[members, n]``, and how many may be wrong, and gives ``[n]``. No rule uses
weights: a faulty member would choose its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["RULES", "flag", "geometric_median", "merged", "trimmed_mean"]

Matrix = npt.NDArray[np.floating]
Vector = npt.NDArray[np.floating]
ITERATIONS = 30
#: Weiszfeld's and the flag iteration's guard against division by 0, relative to the lengths at hand.
GUARD = 1e-8
#: Stands for values that are no numbers; its square is still one.
LARGEST = 1e18


def trimmed_mean(rows: Matrix, faulty: int) -> Vector:
    """Coordinate-wise trimmed mean (Yin et al. 2018): without the ``faulty`` largest and smallest. Cost O(n K log K).

    What differs: a number that is not finite is left out first, and counts as one of the ``faulty`` of its coordinate. So a
    coordinate of a tied parameter gets the same value in every stage that holds it, whatever else a stage's vector contains.
    """
    count = len(rows)
    cut = min(faulty, (count - 1) // 2)
    ordered = np.sort(np.where(np.isfinite(rows), rows, np.nan), axis=0)  # NaN comes last
    found = np.asarray(ordered[cut : count - cut].mean(axis=0), dtype=rows.dtype)
    absent = np.isnan(ordered).sum(axis=0)
    for wrong in range(1, int(absent.max(initial=0)) + 1):
        columns = absent == wrong
        low = max(cut - wrong, 0)
        high = max(count - max(cut, wrong), low + 1)
        found[columns] = np.nan_to_num(ordered[low:high, columns].mean(axis=0))
    return found


def geometric_median(rows: Matrix, faulty: int) -> Vector:
    """The point with the smallest sum of distances, by Weiszfeld's iteration from the coordinate-wise median.

    Source: smoothed Weiszfeld (Pillutla et al. 2022). ``faulty`` is not needed. Cost O(n K) per iteration, 30 at most.
    """
    del faulty
    values = _finite(rows).astype(np.float64)
    point = np.median(values, axis=0)
    for _ in range(ITERATIONS):
        distance = np.linalg.norm(values - point, axis=1)
        scale = float(np.median(distance))
        if scale == 0.0:
            break
        weight = 1.0 / np.maximum(distance, GUARD * scale)
        moved = (weight / weight.sum()) @ values
        step = float(np.linalg.norm(moved - point))
        point = moved
        if step < GUARD * scale:
            break
    return np.asarray(point, dtype=rows.dtype)


def flag(rows: Matrix, faulty: int) -> Vector:
    """Flag Aggregator: the subspace that explains most members, and what they say within it.

    Source: Almasi et al., "Flag Aggregator". It maximizes a likelihood of the explained shares ``v_i = |Y' g_i|^2 / |g_i|^2``,
    which iterated least squares solves: a weighted SVD of the unit vectors, weights ``1 / sqrt(1 - v_i)``. What differs: the
    paper takes about half as many dimensions as members, and where sound members agree a faulty one then gets a dimension to
    itself, so we take one; and the members' projections are not averaged but their median taken, because a subspace
    tells neither sign nor length. ``faulty`` is not needed. Cost O(n K^2).
    """
    del faulty
    values = _finite(rows).astype(np.float64)
    length = np.linalg.norm(values, axis=1)
    typical = float(np.median(length))
    if typical == 0.0:
        return np.zeros_like(rows[0])
    unit = values / np.maximum(length, GUARD * typical)[:, None]
    gram = unit @ unit.T
    weight = np.ones(len(rows))
    for _ in range(ITERATIONS):
        root = np.sqrt(weight)
        _, vectors = np.linalg.eigh(root[:, None] * gram * root)
        mix = root * vectors[:, -1]
        mix /= max(float(np.sqrt(mix @ gram @ mix)), GUARD)
        explained = np.clip((gram @ mix) ** 2, 0.0, 1.0)
        renewed = 1.0 / np.sqrt(np.maximum(1.0 - explained, GUARD))
        if np.allclose(renewed, weight, rtol=1e-6):
            break
        weight = renewed
    direction = mix @ unit
    return np.asarray(float(np.median(values @ direction)) * direction, dtype=rows.dtype)


#: Rules by name.
RULES: Mapping[str, Callable[[Matrix, int], Vector]] = {
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
    "flag": flag,
}


def merged(rule: str, rows: Matrix, faulty: int) -> tuple[Vector, tuple[int, ...]]:
    """Return what ``rule`` makes of ``rows``, and the numbers of the rows that contain a NaN or an infinity.

    Such a row is certainly wrong. Rules over whole vectors do not see it, and tolerate that many fewer ``faulty`` rows among the
    others. With more such rows than ``faulty``, the result means nothing: the caller refuses it.
    """
    # A sum of float64 is finite only if all numbers are; an overflow of finite numbers only costs the second pass.
    sound = np.isfinite(rows.sum(axis=1, dtype=np.float64))
    for number in np.flatnonzero(~sound):
        sound[number] = bool(np.isfinite(rows[number]).all())
    excluded = tuple(int(number) for number in np.flatnonzero(~sound))
    whole = rule != "trimmed_mean" and 0 < len(excluded) <= faulty
    return RULES[rule](rows[sound] if whole else rows, faulty - len(excluded) if whole else faulty), excluded


def _finite(rows: Matrix) -> Matrix:
    """What is not a number would pass through every rule; a number too large for every sound member is put aside by all."""
    most = min(LARGEST, float(np.finfo(rows.dtype).max))
    return np.clip(np.nan_to_num(rows, nan=most, posinf=most, neginf=-most), -most, most)
