"""The planners by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farflung.planners.base import Planner
from farflung.registry import Registry

if TYPE_CHECKING:
    from farflung.planners.grid import GridMethod

__all__ = ["PLANNERS", "get_planner", "planner_names"]


def _equal_number() -> Planner:
    from farflung.planners.equal import EqualNumber

    return EqualNumber()


def _equal_compute() -> Planner:
    from farflung.planners.equal import EqualCompute

    return EqualCompute()


def _random() -> Planner:
    from farflung.planners.equal import RandomCuts

    return RandomCuts()


def _op_fence() -> Planner:
    from farflung.planners.op_fence import OpFence

    return OpFence()


def _grid(method: GridMethod) -> Callable[[], Planner]:
    def make() -> Planner:
        from farflung.planners.papers import GridPlanner

        return GridPlanner(method)

    return make


def _hybrid_ps() -> Planner:
    from farflung.planners.papers import HybridPs

    return HybridPs()


#: These have replicas of their own; ``auto`` chooses the schedule too.
_GRIDS = frozenset(("grid", "dtfm", "kernighan_lin", "random_grid", "hybrid_ps"))
#: Planners by name; installed packages add theirs under the entry-point group ``farflung.planners``.
#: The package adds ``auto``, which searches from the plans of these.
PLANNERS: Registry[Planner] = Registry("planner", "planners")
PLANNERS.add("equal_number", _equal_number)
PLANNERS.add("equal_compute", _equal_compute)
PLANNERS.add("random", _random)
PLANNERS.add("op_fence", _op_fence)
PLANNERS.add("hybrid_ps", _hybrid_ps)
PLANNERS.add("random_grid", _grid("random"))
PLANNERS.add("grid", _grid("search"))
PLANNERS.add("dtfm", _grid("dtfm"))
PLANNERS.add("kernighan_lin", _grid("kernighan_lin"))


def get_planner(name: str) -> Planner:
    """The planner called ``name``; a job that wants replicas, or the best schedule, gets them from any.

    Raises:
        InputError: nothing has that name; the text lists the known ones.
    """
    from farflung.planners.interleaved import Interleaving
    from farflung.planners.replicated import Replicating
    from farflung.planners.scheduled import Offloading, Scheduling, Siting

    planner = PLANNERS.get(name)
    if name == "auto":
        return Offloading(Siting(Interleaving(planner)))
    if name in _GRIDS:
        return Offloading(Siting(Interleaving(Scheduling(planner))))
    replicating = Replicating(Scheduling(planner), groups="random" if name == "random" else "search")
    return Offloading(Siting(Interleaving(replicating)))


def planner_names() -> tuple[str, ...]:
    """The names that ``get_planner`` takes."""
    return tuple(PLANNERS)
