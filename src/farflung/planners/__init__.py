"""Planners by name: who computes what.

- ``base``: ``Planner``. ``catalog``: ``PLANNERS``: planners by name.
- ``constraints``: what a job or a user forbids or fixes. ``pieces``, ``cuts``: where a model may be cut.
- ``equal``: baselines. ``op_fence``, ``communities``, ``hybrid_ps``, ``papers``: planners of the papers.
- ``chain_dp``, ``chain_cuts``, ``fitting``: cuts of a chain. ``chain_exact``: the best ones, for comparison.
- ``grid``: grids of replicas and stages. ``auto``: the search over everything together.
- ``replicated``, ``scheduled``, ``interleaved``: what is decided around any planner: replicas, schedule, parts of stages.
- ``engine_moves``: operators that an engine lacks. ``finish``: from placed runs to a checked plan.
"""

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
