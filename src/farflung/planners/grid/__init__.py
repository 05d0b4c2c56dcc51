"""DP x PP grids in DT-FM's cost model: the cost, the paper's search, baselines, and our own search.

- ``assign``: ``assign_grid``. ``model``: the cost model. ``budget``: when a search ends.
- ``search``: our search. ``genetic``: the paper's. ``starts``, ``swaps``, ``counts``: its beginnings, moves and sums.
- ``tours``: orders of groups. ``matching``: pairs of devices of neighbouring groups.
- ``bounds``: a lower bound. ``certificate``: the exact optimum of small grids.
"""

from farflung.planners.grid.assign import GridMethod, GridOptions, assign_grid
from farflung.planners.grid.certificate import Certificate, prove_grid
from farflung.planners.grid.model import Assignment

__all__ = ["Assignment", "Certificate", "GridMethod", "GridOptions", "assign_grid", "prove_grid"]
