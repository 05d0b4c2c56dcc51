"""The exact optimum of a chain on devices in a given order: labels with dominance pruning.

Stages are built from the last to the first. A label of the stages from j on, which begin at candidate a, is a pair: the total S
of their seconds for one micro-batch, and P, the most of their paces and stalls, where stage j, with k_j micro-batches in flight,
stalls for S / k_j. Adding a stage makes S + spent and max(P, pace, (S + spent) / k): both grow with both, and the step takes
S + (micro_batches - 1) P, so a label that is worse in both can be dropped without losing an optimum. Labels that can't beat a
known plan go too: a bound is what the stages before take at least, by ``spent`` and by ``pace``. What differs from
``chain_dp``, which tries a few limits of the pace: this is exact. Cost: O(devices x candidates^2 x labels), a few labels each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["exact_cuts"]

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
#: S, P, next candidate, number of the label there.
_Labels = tuple[Vector, Vector, Indices, Indices]


def exact_cuts(
    tables: Sequence[tuple[Vector, Vector]], flying: Sequence[int], micro_batches: int, known: float = np.inf
) -> tuple[list[int], float] | None:
    """The candidates (both ends included) of the best cuts and the seconds of a step; None: nothing fits, or beats ``known``.

    ``tables``: for each stage (pace, seconds) of what stands between each two candidates, (n, n), infinite where it does not
    fit. ``flying``: micro-batches that each stage keeps at once. A plan as good as ``known`` is found, too.
    """
    n, stages, more = len(tables[0][0]), len(tables), micro_batches - 1
    before, paces = _before(tables)
    limit = known * (1 + 1e-12)
    end = np.zeros(1)
    after: dict[int, _Labels] = {n - 1: (end, end, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))}
    kept: list[dict[int, _Labels]] = []
    for j in reversed(range(stages)):
        pace, spent = tables[j]
        here: dict[int, _Labels] = {}
        for a in range(j, n - 1) if j else (0,):
            if np.isfinite(before[j][a]):
                found = _extended(a, (pace, spent), after, flying[j])
                if found is not None:
                    total = found[0] + before[j][a] + more * np.maximum(found[1], paces[j][a])
                    labels = _undominated(found, total <= limit)
                    if len(labels[0]):
                        here[a] = labels
        kept.append(here)
        after = here
    if 0 not in after:
        return None
    totals = after[0][0] + more * after[0][1]
    number = int(totals.argmin())
    cuts, a = [0], 0
    for here in reversed(kept):
        _, _, nexts, numbers = here[a]
        a, number = int(nexts[number]), int(numbers[number])
        cuts.append(a)
    return cuts, float(totals.min())


def _before(tables: Sequence[tuple[Vector, Vector]]) -> tuple[list[Vector], list[Vector]]:
    """The least seconds, and the least pace, of the stages before stage j that end at each candidate."""
    start = np.full(len(tables[0][0]), np.inf)
    start[0] = 0.0
    seconds, paces = [start], [start]
    for pace, spent in tables[:-1]:
        seconds.append((seconds[-1][:, None] + spent).min(axis=0))
        paces.append(np.maximum(paces[-1][:, None], pace).min(axis=0))
    return seconds, paces


def _extended(a: int, table: tuple[Vector, Vector], after: dict[int, _Labels], flying: int) -> _Labels | None:
    """Labels of a stage that begins at ``a`` before each label of the next one."""
    pace, spent = table
    ends = [b for b in after if b > a and np.isfinite(spent[a, b])]
    if not ends:
        return None
    sizes = [len(after[b][0]) for b in ends]
    nexts = np.repeat(np.array(ends, dtype=np.int64), sizes)
    totals = np.concatenate([after[b][0] for b in ends]) + spent[a, nexts]
    worst = np.concatenate([after[b][1] for b in ends])
    numbers = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    return totals, np.maximum(np.maximum(worst, pace[a, nexts]), totals / flying), nexts, numbers


def _undominated(labels: _Labels, good: npt.NDArray[np.bool_]) -> _Labels:
    """Those of the ``good`` labels that no other one equals or beats in both; ascending S, descending P."""
    chosen = np.flatnonzero(good)
    order = chosen[np.lexsort((labels[1][chosen], labels[0][chosen]))]
    worst = labels[1][order]
    least = np.minimum.accumulate(worst)
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = worst[1:] < least[:-1]
    order = order[keep]
    totals, paces, nexts, numbers = labels
    return totals[order], paces[order], nexts[order], numbers[order]
