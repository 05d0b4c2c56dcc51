"""Which layers are averaged in which step of a period (DreamDDP, and sets that need not be neighbours)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import SupportsIndex

from farflung.errors import InputError
from farflung.sync.layer_sets.bounds import lower_bound_seconds
from farflung.sync.layer_sets.bubble_filling import fill_bubbles
from farflung.sync.layer_sets.contiguous import Units, equal_number, optimal
from farflung.sync.layer_sets.dreamddp import algorithm_2, brute_force, depth_first
from farflung.sync.layer_sets.free_sets import free
from farflung.sync.layer_sets.layers import Layers
from farflung.units import Seconds

__all__ = ["METHODS", "PartialSchedule", "partial_sync_schedule"]

#: How sets are chosen, by name.
METHODS: Mapping[str, Callable[[Layers, int], list[Units]]] = {
    "free": free,
    "optimal": optimal,
    "dreamddp": algorithm_2,
    "equal_number": equal_number,
    "depth_first": depth_first,
    "brute_force": brute_force,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSchedule:
    """Sets of layers (numbers from 0 at the input), one for each step of a period; step r averages ``sets[r % sync_every]``.

    ``sets``: every layer is in exactly one, none is empty; layers in the order of their exchanges (backward). ``extra``: what
    bubble filling adds to each set (equation (12)). ``period_seconds``: backward parts of a whole period with the start times of
    equation (7), before and after filling alike; forward time comes on top. ``lower_bound_seconds``: no sets, contiguous or
    not, have a shorter period.
    """

    method: str
    sets: tuple[tuple[int, ...], ...]
    extra: tuple[tuple[int, ...], ...]
    step_seconds: tuple[Seconds, ...]
    backward_seconds: Seconds
    period_seconds: Seconds
    lower_bound_seconds: Seconds

    @property
    def sync_every(self) -> int:
        """Steps in a period."""
        return len(self.sets)

    @property
    def exposed_seconds(self) -> Seconds:
        """What a period takes beyond its backward passes."""
        return Seconds(max(0.0, self.period_seconds - self.sync_every * self.backward_seconds))

    def filled(self) -> tuple[tuple[int, ...], ...]:
        """Sets with what bubble filling adds, in the order of exchange."""
        both = zip(self.sets, self.extra, strict=True)
        return tuple(tuple(sorted({*chosen, *extra}, reverse=True)) for chosen, extra in both)

    def beginning_with(self, layers: Iterable[int]) -> PartialSchedule:
        """The same sets in another order: the one that holds ``layers`` (all in one) comes first, and filling adds none of them.

        Steps of a period are alike, so it is as long.
        """
        fixed = frozenset(layers)
        if not fixed:
            return self
        first = next(number for number, chosen in enumerate(self.sets) if fixed <= set(chosen))
        extra = tuple(tuple(layer for layer in added if layer not in fixed) for added in self.extra)
        return replace(
            self,
            sets=self.sets[first:] + self.sets[:first],
            extra=extra[first:] + extra[:first],
            step_seconds=self.step_seconds[first:] + self.step_seconds[:first],
        )


def partial_sync_schedule(
    bp_seconds: Iterable[float],
    comm_seconds: Iterable[float],
    sync_every: int,
    method: str = "free",
    *,
    tied: Iterable[Iterable[int]] = (),
    latency_seconds: float = 0.0,
) -> PartialSchedule:
    """Assign each layer to one step of a period of ``sync_every`` steps so that the period is short.

    ``bp_seconds``, ``comm_seconds``: seconds of each layer's backward and exchange, in forward order. ``method``:
    ``free`` (any sets; at most the period of ``optimal``), ``optimal`` (the best contiguous sets, exactly), ``dreamddp``
    (Algorithm 2, which plans with plain sums of times), ``equal_number``, and for comparisons ``depth_first`` (Algorithm 2 branch
    by branch) and ``brute_force`` (all contiguous sets). All are scored by equation (7). ``tied``: groups of
    layers that share a parameter; a group is exchanged as one when the backward of its earliest layer has ended.
    ``latency_seconds``: from the last byte of an exchange until its mean is everywhere, once for each step.

    Raises:
        InputError: ``sync_every`` is below 1 or above the number of layers (a tied group counts once), times are unusable, or the
            method is unknown.
    """
    layers = Layers.make(bp_seconds, comm_seconds, tied, latency_seconds)
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}: known are {', '.join(METHODS)}")
    sync_every = check_sync_every(sync_every, len(layers))
    sets = METHODS[method](layers, sync_every)
    return PartialSchedule(
        method=method,
        sets=layers.named(sets),
        extra=layers.named(fill_bubbles(layers, sets)),
        step_seconds=tuple(Seconds(layers.step_seconds(chosen)) for chosen in sets),
        backward_seconds=Seconds(layers.total),
        period_seconds=layers.period_seconds(sets),
        lower_bound_seconds=lower_bound_seconds(layers, sync_every),
    )


def check_sync_every(value: object, units: int) -> int:
    """``sync_every`` as a number: a period must give each of its steps at least one layer.

    Raises:
        InputError: ``sync_every`` is no whole number from 1 to ``units``.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InputError(f"sync_every = {value!r}: it counts steps, write a whole number from 1 to {units}")
    sync_every = index(value)
    if sync_every < 1:
        raise InputError(f"sync_every = {sync_every}: a period has at least one step, set it to 1 or more")
    if sync_every > units:
        raise InputError(
            f"sync_every = {sync_every} with {units} layers: each step averages at least one layer (tied layers count once), "
            f"set it to at most {units}"
        )
    return sync_every
