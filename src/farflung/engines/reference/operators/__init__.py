"""The operators that the engine knows, by family; each module enters its functions into ``table``.

- ``creation``, ``drawing``: arrays from sizes, and random numbers. ``views``: moves and copies.
- ``elementwise``, ``reductions``, ``products``, ``normalizing``: arithmetic.
"""

from farflung.engines.reference.operators import creation, drawing, elementwise, normalizing, products, reductions, views
from farflung.engines.reference.operators.table import DRAWING, OPERATORS

__all__ = ["DRAWING", "OPERATORS", "creation", "drawing", "elementwise", "normalizing", "products", "reductions", "views"]
