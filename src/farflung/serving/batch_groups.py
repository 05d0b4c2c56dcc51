"""Into how many batches the requests that draw tokens are divided: the number with the shortest time between two tokens.

With a batch for each stage and one on its way back, no stage stands idle. But stages can share a machine, and each batch reads
all weights, so fewer and larger batches can be faster. No model of the machines says which, so each number is tried for some
tokens, from the largest down, until one is clearly slower than the best. After many tokens, all are tried again.

Source: our own; a search along a line whose costs have one minimum. Cost: the slower numbers serve a few tokens of each request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

__all__ = ["BatchGroups"]

#: Tokens of each request in a trial: those that the change disturbs, and those that count.
_CHANGES, _COUNTS = 1, 2
#: Tokens of each request until numbers are tried again, and how much slower than the best one ends the trials.
_AGAIN, _WORSE = 400, 1.15


@dataclass(slots=True)
class _Trials:
    """The numbers of batches for about as many requests: seconds between two tokens by number, and the present one."""

    present: int
    seconds: dict[int, float] = field(default_factory=dict)
    chosen: bool = False
    #: Of the present trial: tokens so far, and the seconds of those that count.
    tokens: int = 0
    total: float = 0.0


class BatchGroups:
    """Not thread-safe. ``most``: batches that may be under way."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: By the binary digits of the number of requests: twice as many can need another number.
        self._trials: dict[int, _Trials] = {}

    def number(self, requests: int) -> int:
        """Return into how many batches the tokens of ``requests`` are divided now, from 1 on."""
        return min(self._of(requests).present, max(requests, 1))

    def drew(self, requests: int, seconds: float) -> None:
        """One of ``requests`` has drawn a token ``seconds`` after its last one, and no prompt was in between."""
        trials = self._of(requests)
        trials.tokens += 1
        if trials.chosen:
            if trials.tokens > _AGAIN * requests:
                del self._trials[requests.bit_length()]
            return
        if trials.tokens > _CHANGES * requests:
            trials.total += seconds
        if trials.tokens >= (_CHANGES + _COUNTS) * requests:
            self._end_trial(trials, _COUNTS * requests)

    @staticmethod
    def _end_trial(trials: _Trials, counted: int) -> None:
        mean, best = trials.total / counted, min(trials.seconds.values(), default=inf)
        trials.seconds[trials.present] = mean
        trials.tokens, trials.total = 0, 0.0
        if trials.present > 1 and mean < _WORSE * best:
            trials.present -= 1
        else:
            trials.present = min(trials.seconds, key=lambda number: trials.seconds[number])
            trials.chosen = True

    def _of(self, requests: int) -> _Trials:
        digits = requests.bit_length()
        if digits not in self._trials:
            self._trials[digits] = _Trials(present=min(self._most, 1 << max(digits - 1, 0)))
        return self._trials[digits]
