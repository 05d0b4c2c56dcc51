"""What a caller of ``farflung.train`` brings in place of a batch function, and around the module.

In the order of data flow:

``index_order``     the index batches of a ``DataLoader``, epoch after epoch
``loaded_batches``  batches of a ``DataLoader`` or a dataset with an index, at any position
``streams``         batches of an iterable, in order
``batch_source``    what the caller passed becomes batches by position
``objective``       a module with the caller's loss and metrics in its forward
"""

from farflung.frontends.caller.batch_source import BatchSource, batch_source
from farflung.frontends.caller.objective import METRICS, Objective

__all__ = ["METRICS", "BatchSource", "Objective", "batch_source"]
