"""Tensor parallelism: which operators of a stage the ranks of a site divide, derived from the graph alone.

In the order in which a stage passes through:

- ``split``: ``Split``: how one dimension of a tensor is divided among ranks.
- ``operands``: ``Operands`` that a rule looks at, and ``Divided``, what it finds.
- ``view_rules``: where a divided dimension goes when an operator changes the shape.
- ``vocabulary_rules``: embeddings whose rows are divided, and losses over divided logits.
- ``operator_rules``: what a rank computes of an operator whose arguments are divided.
- ``division``: ``divide`` walks through a stage; ``Division`` has the local graph of a rank and the sums that ranks make.
"""

from farflung.graph.tensor_parallel.division import Division, divide
from farflung.graph.tensor_parallel.split import Split

__all__ = ["Division", "Split", "divide"]
