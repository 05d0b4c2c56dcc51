"""The operators of the allow-list as JAX functions.

``table``        names to functions
``elementwise``  arithmetic, comparisons, activations
``views``        other arrangements of elements, joins
``creation``     new tensors
``reductions``   sums, means, orders
``indexing``     reading and writing by index
``products``     matrix products, convolutions, attention
``normalizing``  normalization
``pooling``      pooling
``losses``       losses
``drawing``      dropout and other random operators
"""

from farflung.engines.jax.operators import (
    creation,
    drawing,
    elementwise,
    indexing,
    losses,
    normalizing,
    pooling,
    products,
    reductions,
    views,
)
from farflung.engines.jax.operators.table import OPERATORS, function_of

__all__ = [
    "OPERATORS",
    "creation",
    "drawing",
    "elementwise",
    "function_of",
    "indexing",
    "losses",
    "normalizing",
    "pooling",
    "products",
    "reductions",
    "views",
]
