"""Whether an engine's outcome is that of a plain PyTorch loop up to rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farflung.testing.reference import PlainResult
from tests.support.engines.engine_drive import Array, Outcome


def worst_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference over the largest value of its array; values that are zero but for rounding count as zero."""
    assert found.keys() == expected.keys()
    floor = 1e-4 * max((float(np.abs(array).max()) for array in expected.values() if array.size), default=0.0)
    differences = [
        float(np.abs(found[name].astype(np.float64) - array).max()) / max(float(np.abs(array).max()), floor, 1e-12)
        for name, array in expected.items()
        if array.size
    ]
    return max(differences, default=0.0)


def assert_close(found: Outcome, expected: PlainResult, tolerance: float) -> None:
    """Losses, every gradient and all states."""
    losses = np.array(expected.micro_losses)
    assert float(np.abs(np.array(found.micro_losses) / losses - 1).max()) <= tolerance
    assert worst_difference(found.gradients, expected.gradients) <= tolerance
    assert worst_difference(found.states, expected.states) <= tolerance
