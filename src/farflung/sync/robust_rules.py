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


def flag(rows: Matrix, faulty: int, directions: int = 1) -> Vector:
    """Flag Aggregator: the subspace that explains most members, and what they say within it.

    Source: Almasi et al., "Flag Aggregator". It maximizes a likelihood of the explained shares ``v_i = |Y' g_i|^2 / |g_i|^2``
    over subspaces Y of ``directions`` dimensions (0: half as many as members, rounded up, as in the paper; never more than
    members). Iterated least squares solves that: a weighted SVD of the unit vectors, weights ``1 / sqrt(1 - v_i)``. What differs:
    we take one direction where nothing is said, because where sound members agree a faulty one gets a further dimension to
    itself; and the members' projections are not averaged: their median is taken (of several directions the geometric median,
    which no rotation of the subspace changes), because a subspace tells neither sign nor length. ``faulty`` is not needed.
    Cost O(n K^2).
    """
    values = _finite(rows).astype(np.float64)
    length = np.linalg.norm(values, axis=1)
    typical = float(np.median(length))
    if typical == 0.0:
        return np.zeros_like(rows[0])
    count = min(directions or (len(rows) + 1) // 2, len(rows))
    unit = values / np.maximum(length, GUARD * typical)[:, None]
    gram = unit @ unit.T
    weight = np.ones(len(rows))
    for _ in range(ITERATIONS):
        root = np.sqrt(weight)
        found, vectors = np.linalg.eigh(root[:, None] * gram * root)
        kept = np.flatnonzero(found > GUARD * found[-1])[-count:]
        mix = root[:, None] * vectors[:, kept] / np.sqrt(found[kept])  # each column combines the members to one direction
        explained = np.clip(((gram @ mix) ** 2).sum(axis=1), 0.0, 1.0)
        renewed = 1.0 / np.sqrt(np.maximum(1.0 - explained, GUARD))
        if np.allclose(renewed, weight, rtol=1e-6):
            break
        weight = renewed
    axes = mix.T @ unit
    within = values @ axes.T
    agreed = np.median(within, axis=0) if count == 1 else geometric_median(within, faulty)
    return np.asarray(agreed @ axes, dtype=rows.dtype)


#: Rules by name.
RULES: Mapping[str, Callable[[Matrix, int], Vector]] = {
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
    "flag": flag,
}


def merged(rule: str, rows: Matrix, faulty: int, directions: int = 1) -> tuple[Vector, tuple[int, ...]]:
    """Return what ``rule`` makes of ``rows``, and the numbers of the rows that contain a NaN or an infinity.

    Such a row is certainly wrong. Rules over whole vectors do not see it, and tolerate that many fewer ``faulty`` rows among the
    others. With more such rows than ``faulty``, the result means nothing: the caller refuses it. ``directions``: of ``flag``.
    """
    # A sum of float64 is finite only if all numbers are; an overflow of finite numbers only costs the second pass.
    sound = np.isfinite(rows.sum(axis=1, dtype=np.float64))
    for number in np.flatnonzero(~sound):
        sound[number] = bool(np.isfinite(rows[number]).all())
    excluded = tuple(int(number) for number in np.flatnonzero(~sound))
    whole = rule != "trimmed_mean" and 0 < len(excluded) <= faulty
    rows, faulty = (rows[sound], faulty - len(excluded)) if whole else (rows, faulty)
    return flag(rows, faulty, directions) if rule == "flag" else RULES[rule](rows, faulty), excluded


def _finite(rows: Matrix) -> Matrix:
    """What is not a number would pass through every rule; a number too large for every sound member is put aside by all."""
    most = min(LARGEST, float(np.finfo(rows.dtype).max))
    return np.clip(np.nan_to_num(rows, nan=most, posinf=most, neginf=-most), -most, most)
