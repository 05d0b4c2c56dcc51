"""Planners by name: who computes what."""

from farflung.planners.base import Evaluate, Judged, Planner
from farflung.planners.catalog import PLANNERS, get_planner, planner_names
from farflung.planners.constraints import Constrained
from farflung.planners.grid import Assignment, assign_grid


def _auto() -> Planner:
    from farflung.planners.auto import Auto

    return Auto()


#: Here, and not in the catalog: the search of ``auto`` begins with the plans of the planners in the catalog.
PLANNERS.add("auto", _auto)

__all__ = ["Assignment", "Constrained", "Evaluate", "Judged", "Planner", "assign_grid", "get_planner", "planner_names"]
