"""The caller's data as batches.

In the order of data flow:

``given_data``    a function, a ``DataLoader``, a dataset or an iterable as batches by step
``named_arrays``  batches as arrays by the names of placeholders, checked
"""

from farflung.api.batches.given_data import DataSettings, GivenBatches, Inputs, read_inputs
from farflung.api.batches.named_arrays import Batches, EvaluationBatches, batch_rows, call_order, evaluation_order

__all__ = [
    "Batches",
    "DataSettings",
    "EvaluationBatches",
    "GivenBatches",
    "Inputs",
    "batch_rows",
    "call_order",
    "evaluation_order",
    "read_inputs",
]
