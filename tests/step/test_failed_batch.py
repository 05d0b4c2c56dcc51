from __future__ import annotations

import pytest

from farflung.errors import GraphError, TrainingError
from farflung.step.failed_batch import FailedBatch


@pytest.mark.parametrize("batch", [FailedBatch(12, 3), FailedBatch(4, 0, evaluates=True)])
def test_a_batch_is_found_in_the_text_that_names_it(batch: FailedBatch) -> None:
    with pytest.raises(GraphError) as caught, batch.named():
        raise GraphError("operator 'loss' (aten.cross_entropy_loss.default) failed: Target 7 is out of bounds.")
    assert str(caught.value).startswith(f"{batch}: operator 'loss'")
    assert FailedBatch.find(f"run-1 failed after 12 steps: {caught.value}") == batch


def test_other_errors_name_no_batch() -> None:
    assert FailedBatch.find("operator 'loss' (aten.cross_entropy_loss.default) failed: Target 7 is out of bounds.") is None
    assert FailedBatch.find("step 3, micro-batch 1: value h:0 of stage 1 is missing") is None
    with pytest.raises(TrainingError, match=r"^out of memory$"), FailedBatch(1, 1).named():
        raise TrainingError("out of memory")
