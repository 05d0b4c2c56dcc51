"""Vocabularies that ranks divide: the table of an embedding by its rows, and the cross-entropy of logits by their words.

Source: Megatron-LM (Shoeybi et al. 2019), section 3: each rank looks up the rows that it has, and ranks add what they found. Of
the logits, ranks exchange the largest, the sum of the exponentials and the logit of the label. What differs: the part of the last
rank is padded inside of the ranks, so the model keeps its vocabulary.
"""

from __future__ import annotations

from math import prod

from farflung.graph.nodes import DTYPES, Op, StateRef
from farflung.graph.tensor_parallel.operands import Divided, Operands
from farflung.graph.tensor_parallel.split import ComputedWhole, Split

__all__ = ["EMBEDDING", "LOSS", "PADDED", "is_vocabulary", "loss_over_parts", "table"]

EMBEDDING, LOSS = "aten.embedding.default", "aten.cross_entropy_loss.default"

#: A vocabulary has at least so many words for each feature. Others save too little for what ranks exchange.
_LEAST_WORDS = 2

#: Operators between a head and its loss that let padding stay where it is.
PADDED = frozenset(
    {
        EMBEDDING,
        LOSS,
        "aten.linear.default",
        *(f"aten.{name}.default" for name in ("addmm", "mm", "matmul", "contiguous", "clone", "alias", "detach", "tanh")),
        *(f"aten.{name}.default" for name in ("view", "reshape", "_unsafe_view", "t", "permute", "swapaxes")),
        *(f"aten.{name}.int" for name in ("transpose", "select")),
        *(f"aten.{name}.{kind}" for name in ("mul", "div") for kind in ("Tensor", "Scalar")),
        "aten.flatten.using_ints",
        "aten.slice.Tensor",
        "aten.to.dtype",
    }
)


def is_vocabulary(shape: tuple[int, ...], split: Split, ranks: int) -> bool:
    """Whether a weight of ``shape`` has a row or column for each word, and each rank gets some of them."""
    others = prod(shape) // shape[split.dim]
    (start, stop), *_ = split.ranges(ranks - 1, ranks)
    return split.size >= _LEAST_WORDS * others and start < stop


def table(op: Op) -> str:
    """The name of the table of an embedding, if ranks can divide it by rows; empty if not."""
    by_frequency = len(op.args) > 3 and op.args[3]
    ref = op.args[0]
    return ref.name if isinstance(ref, StateRef) and not op.kwargs and not by_frequency else ""


def loss_over_parts(given: Operands) -> Divided:
    """The cross-entropy of integer labels."""
    ref, split = given.only()
    shape, labels = given.spec(ref).shape, given.tensor(1)
    rows = prod(shape) // split.size
    plain = given.arg(2) is None and not given.op.kwargs and given.split(labels) is None
    indexed = given.spec(labels).dtype == "int64" and given.spec(labels).numel == rows
    if not plain or not indexed or split.dim != min(1, len(shape) - 1) or len(split.sections) > 1:
        raise ComputedWhole
    smoothing = given.arg(5, default=0.0)
    size = rows * DTYPES["float32"]
    return Divided((None,), summed=True, sums=(size, (3 if smoothing else 2) * size))
