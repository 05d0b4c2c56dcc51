"""A long column in few points, for the first paint.

Largest-triangle-three-buckets (S. Steinarsson, "Downsampling Time Series for Visual Representation", 2013): the first and last
points stay, and each bucket keeps the point that spans the largest triangle with the last kept point and the mean of the next
bucket. Missing values (NaN) are left out. O(n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["chosen_rows"]


def chosen_rows(xs: Sequence[float], columns: Sequence[Sequence[float]], most: int) -> list[int]:
    """Return at most about ``most`` rows per column that keep the shape of every column, in ascending order."""
    count = len(xs)
    if count <= most:
        return list(range(count))
    x = np.asarray(xs, dtype=np.float64)
    rows: set[int] = {0, count - 1}
    for column in columns:
        rows.update(_largest_triangles(x, np.asarray(column, dtype=np.float64), most))
    return sorted(rows)


def _largest_triangles(x: np.ndarray, y: np.ndarray, most: int) -> list[int]:
    known = np.flatnonzero(np.isfinite(y))
    if len(known) <= most:
        return [int(row) for row in known]
    xs, ys = x[known], y[known]
    edges = np.linspace(1, len(known) - 1, most - 1).astype(int)
    kept, last = [0], 0
    for number in range(len(edges) - 1):
        low, high = int(edges[number]), max(int(edges[number + 1]), int(edges[number]) + 1)
        after = slice(high, int(edges[number + 2])) if number + 2 < len(edges) else slice(len(known) - 1, len(known))
        mean_x, mean_y = float(xs[after].mean()), float(ys[after].mean())
        area = np.abs((xs[last] - mean_x) * (ys[low:high] - ys[last]) - (xs[last] - xs[low:high]) * (mean_y - ys[last]))
        last = low + int(area.argmax())
        kept.append(last)
    return [int(known[row]) for row in [*kept, len(known) - 1]]
