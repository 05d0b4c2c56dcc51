"""First states from a weights file that lies on this machine, under names of another tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from farflung.checkpoint import Weights, match_states
from farflung.messages.submission import Bundle
from farflung.wire.arrays import Array

__all__ = ["file_states"]


def file_states(bundle: Bundle, names: Iterable[str], path: Path) -> Iterator[tuple[str, Array]]:
    """States ``names`` from a weights file of somebody else's naming (missing ones only if the job is not strict)."""
    weights = Weights.open(path)
    match = match_states(weights, bundle.graph.states, strict=bundle.job.weights.strict)
    for name in names:
        if name in match.names:
            yield name, weights.read(match.names[name], bundle.graph.state[name].spec.dtype)
