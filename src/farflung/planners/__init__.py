"""Planners by name: who computes what."""

from farflung.planners.base import Evaluate, Judged, Planner
from farflung.planners.catalog import get_planner, planner_names
from farflung.planners.constraints import Constrained
from farflung.planners.grid import Assignment, assign_grid

__all__ = ["Assignment", "Constrained", "Evaluate", "Judged", "Planner", "assign_grid", "get_planner", "planner_names"]
