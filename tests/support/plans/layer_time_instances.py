"""Layer times to schedule, and the slow but obvious ways to score and to solve them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

Sets = Sequence[Collection[int]]


def random_times(random: np.random.Generator, count: int, ratio: float) -> tuple[list[float], list[float]]:
    """Log-normal times of ``count`` layers, exchanges ``ratio`` times the backward; sometimes a third of a kind is 0."""
    bp, comm = random.lognormal(0, 1, count), random.lognormal(0, 1, count)
    if random.random() < 0.2:
        comm[random.random(count) < 0.3] = 0.0
    if random.random() < 0.1:
        bp[random.random(count) < 0.3] = 0.0
    if comm.sum() > 0 and bp.sum() > 0:
        comm *= ratio * bp.sum() / comm.sum()
    return bp.tolist(), comm.tolist()


def period(bp: Sequence[float], comm: Sequence[float], sets: Sets) -> float:
    """Equation (7), written once more: each step by its own clock."""
    total = 0.0
    for chosen in sets:
        backward = link = 0.0
        for layer in reversed(range(len(bp))):
            backward += bp[layer]
            if layer in chosen:
                link = max(link, backward) + comm[layer]
        total += max(backward, link)
    return total


def splits(count: int, sync_every: int) -> Any:
    """Every way to cut the layers into runs, the one at the output first."""
    for cuts in itertools.combinations(range(1, count), sync_every - 1):
        edges = [0, *cuts, count]
        yield [range(a, b) for a, b in itertools.pairwise(edges)][::-1]


def assignments(count: int, sync_every: int) -> Any:
    """Every way to put each layer into one of the sets."""
    for homes in itertools.product(range(sync_every), repeat=count):
        yield [{layer for layer in range(count) if homes[layer] == index} for index in range(sync_every)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], list[float], int]:
    """Layer times with many equal and zero values, and a period."""
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 7.5]) | st.floats(0, 10)
    count = draw(st.integers(1, 14))
    times = st.lists(value, min_size=count, max_size=count)
    return draw(times), draw(times), draw(st.integers(1, count))
