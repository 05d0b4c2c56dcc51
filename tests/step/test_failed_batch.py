"""An error of a computation names the batch, in its text and as a value."""

from __future__ import annotations

import pytest

from farflung.errors import DataError, FailedBatch, FarflungError, GraphError, TrainingError
from farflung.step.failed_batch import blaming

BATCHES = [FailedBatch(12, 3), FailedBatch(4, 0, evaluates=True)]


@pytest.mark.parametrize("kind", [GraphError, DataError])
@pytest.mark.parametrize("batch", BATCHES)
def test_an_error_names_the_batch(batch: FailedBatch, kind: type[FarflungError]) -> None:
    with pytest.raises(kind) as caught, blaming(batch):
        raise kind("operator 'loss' failed")
    assert str(caught.value) == f"{batch}: operator 'loss' failed"
    assert caught.value.batch == batch


def test_other_errors_name_no_batch() -> None:
    assert GraphError("the document is corrupt").batch is None
    with pytest.raises(TrainingError, match=r"^out of memory$"), blaming(FailedBatch(1, 1)):
        raise TrainingError("out of memory")
