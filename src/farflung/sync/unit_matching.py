"""Matching of hidden units: the order of a layer's units is arbitrary, so models are brought into one order before a mean.

Source: weight matching of Ainsworth et al., "Git Re-Basin" (2022), which DIMAT's merges (Saadati et al. 2024) can use. Units that
belong together lie along axes of several parameters: of a hidden layer, rows of the weight before it, elements of its bias, and
columns of the weight after it. Each round of the search matches the units of one group after the other, with the others as they
are, and the sum of products of matched numbers never falls. NumPy is the specification.
Cost for a group of n units: O(n^3), and n^2 products of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from farflung.errors import InputError

__all__ = ["Units", "in_one_order", "matched", "read_units"]

Array = npt.NDArray[Any]
#: Groups of (parameter, axis) along which the same units lie.
Units = tuple[tuple[tuple[str, int], ...], ...]

_ROUNDS = 50
#: A match that is better by no more than this part is none: rounding finds such matches again and again.
_GAIN = 1e-9
_AXIS = re.compile(r"([^\s:;]+):(\d{1,2})")


def read_units(text: object) -> Units:
    """The groups in a setting: ``"up.weight:0 up.bias:0 down.weight:1; ..."``.

    Raises:
        InputError: a group is empty, or one of its parts is no parameter with an axis.
    """
    groups = [] if not isinstance(text, str) else [group.split() for group in text.split(";")] if text.strip() else []
    found = tuple(tuple((m[1], int(m[2])) for part in group if (m := _AXIS.fullmatch(part))) for group in groups)
    if not isinstance(text, str) or any(len(a) != len(b) or not a for a, b in zip(found, groups, strict=True)):
        raise InputError(
            f"units = {text!r}: write parameters with the axis of the units, and a semicolon between groups, e.g. "
            "'up.weight:0 up.bias:0 down.weight:1'"
        )
    return found


def matched(own: Mapping[str, Array], other: Mapping[str, Array], units: Units) -> dict[str, Array]:
    """``other`` with the units of each group in the order in which they are most like those of ``own``."""
    found = dict(other)
    for _ in range(_ROUNDS):
        changed = False
        for group in units:
            likeness = sum(_flat(own[name], axis) @ _flat(found[name], axis).T for name, axis in group)
            likeness = np.nan_to_num(np.asarray(likeness))
            order = linear_sum_assignment(likeness, maximize=True)[1]
            now, best = float(np.trace(likeness)), float(likeness[np.arange(len(order)), order].sum())
            if best - now > _GAIN * max(abs(now), abs(best)):
                found |= _taken(found, group, order)
                changed = True
        if not changed:
            break
    return found


def in_one_order(members: Sequence[Mapping[str, Array]], units: Units, reference: int) -> list[Mapping[str, Array]]:
    """All ``members`` with their units in the order of member ``reference``; groups of parameters that they lack are left out."""
    first = members[reference]
    here = tuple(group for group in units if all(name in first for name, _ in group))  # another stage has the others
    return [values if place == reference else matched(first, values, here) for place, values in enumerate(members)]


def _flat(values: Array, axis: int) -> npt.NDArray[np.float64]:
    """A row for each unit."""
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1).astype(np.float64)


def _taken(values: Mapping[str, Array], group: Sequence[tuple[str, int]], order: Array) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, axis in group:  # a parameter may lie along the group twice
        found[name] = np.take(found.get(name, values[name]), order, axis=axis)
    return found
