"""The losses of a run as one line of small bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["LossCurve"]

_BARS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"
#: Values that are stored at most. At the limit, each two neighbors become their mean.
_MOST = 512


class LossCurve:
    """Stores losses at a resolution that becomes coarser as the run goes on, so memory and time stay bounded."""

    def __init__(self) -> None:
        self._means: list[float] = []
        #: Losses in each stored mean; the sum and the number of those that are not in a mean yet.
        self._each, self._sum, self._count = 1, 0.0, 0

    def add(self, loss: float) -> None:
        """Add the loss of the next step. A loss that is not a number makes a gap."""
        self._sum, self._count = self._sum + loss, self._count + 1
        if self._count < self._each:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) >= _MOST:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means, self._each = [(a + b) / 2 for a, b in pairs], 2 * self._each

    def bars(self, width: int, *, ascii_only: bool = False) -> str:
        """Return at most ``width`` characters, from the first loss to the newest, between the lowest and the highest loss."""
        values = _resampled(list(self._means), width)
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return ""
        signs, low, high = _ASCII if ascii_only else _BARS, min(finite), max(finite)
        scale = (len(signs) - 1) / (high - low) if high > low else 0.0
        return "".join(signs[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def _resampled(values: Sequence[float], width: int) -> Sequence[float]:
    """Return ``values``, or the means of ``width`` runs of neighbors if there are more."""
    if len(values) <= width:
        return values
    bounds = [round(index * len(values) / width) for index in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
