"""The inputs of a unit through a message: layouts stay, and what is too large is refused."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.errors import WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.data import UnitInputs
from farflung.plan.verification import Unit
from farflung.step.run_setup import most_value_bytes
from farflung.step.verification.unit_inputs import UnitInputArrays, pack_inputs, unpack_inputs
from tests.support.network.sent_messages import sent
from tests.support.steps.small_runs import small_setup

SETUP = small_setup("b")
FIRST, LAST = SETUP.subgraphs
(EDGE,) = LAST.takes


def message(array: np.ndarray) -> UnitInputs:
    packed = pack_inputs("r", Unit(0, 1, 0), LAST, UnitInputArrays(values={EDGE.value: array}))
    return sent(packed)


def test_a_view_into_a_larger_array_arrives_with_its_gaps() -> None:
    rows, columns = EDGE.spec.shape
    wide = np.arange(rows * 2 * columns, dtype=np.float32).reshape(rows, 2 * columns)
    for array in (wide[:, :columns], wide[:, ::2]):
        found = unpack_inputs(message(array), LAST, most_value_bytes(SETUP), MemoryBudget())
        assert found is not None
        value = found.values[EDGE.value]
        assert value.strides == array.strides
        np.testing.assert_array_equal(value, array)


def test_more_elements_than_the_value_has_are_refused() -> None:
    with pytest.raises(WireError, match=r"oversized value bend of a unit: 320 bytes, the limit is 256"):
        unpack_inputs(message(np.zeros((5, 16), np.float32)), LAST, most_value_bytes(SETUP), MemoryBudget())
