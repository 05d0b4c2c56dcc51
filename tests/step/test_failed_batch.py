"""An error of a computation names the batch, in its text and as a value."""

from __future__ import annotations

import pytest

from farflung.errors import FailedBatch, GraphError, TrainingError
from farflung.step.failed_batch import blaming

BATCHES = [FailedBatch(12, 3), FailedBatch(4, 0, evaluates=True)]


@pytest.mark.parametrize("batch", BATCHES)
def test_an_error_names_the_batch(batch: FailedBatch) -> None:
    with pytest.raises(GraphError) as caught, blaming(batch):
        raise GraphError("operator 'loss' (aten.cross_entropy_loss.default) failed: Target 7 is out of bounds.")
    assert str(caught.value).startswith(f"{batch}: operator 'loss'")
    assert caught.value.batch == batch


def test_other_errors_name_no_batch() -> None:
    assert GraphError("the document is corrupt").batch is None
    with pytest.raises(TrainingError, match=r"^out of memory$"), blaming(FailedBatch(1, 1)):
        raise TrainingError("out of memory")
