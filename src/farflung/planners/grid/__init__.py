"""DP x PP grids in DT-FM's cost model: the cost, the paper's search, baselines, and our own search."""

from farflung.planners.grid.assign import GridMethod, GridOptions, assign_grid
from farflung.planners.grid.certificate import Certificate, prove_grid
from farflung.planners.grid.model import Assignment

__all__ = ["Assignment", "Certificate", "GridMethod", "GridOptions", "assign_grid", "prove_grid"]
