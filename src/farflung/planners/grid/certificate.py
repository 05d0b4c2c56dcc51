"""A proof that no assignment costs less: DT-FM's cost over region counts, for the constraint solver CP-SAT (OR-tools).

Source: our own model. Devices of a region are interchangeable, so a stage is how many devices of each region it has. Per stage
and region, equation (2) holds where the count is not 0; between neighbours a transport of devices exists whose dearest used way
is the edge of (3); (1) is the most of the first plus the sum of the second. Seconds are rounded down to whole millionths, so that
the solver's bound holds for the true cost, and a cost that exceeds it by less than the roundings is optimal. The search's own
assignment is the hint and the limit. Regions few, devices any number: 8 regions and 8 stages take seconds; the solver stops after
``proof_seconds`` with the bound that it has proven so far. OR-tools is an extra (``farflung[certificate]``), imported when asked
for. HiGHS (scipy) on the same model as a mixed-integer program does not finish case 5 in 90 s, CP-SAT takes 12 s on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.planners.grid.assign import GridOptions, assign_grid
from farflung.planners.grid.model import Assignment, GridProblem, counts_of, make_problem

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["Certificate", "prove_grid"]

#: Parts of a second that the solver counts in.
_SCALE = 1e6
#: More groups than this make no model of use.
_GROUPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """``lower_bound_seconds``: no assignment costs less, proven. ``optimal``: ``assignment`` costs no more than that (but for the
    roundings, 1 us for each of its terms). ``seconds``: that the solver took.
    """

    assignment: Assignment
    lower_bound_seconds: float
    optimal: bool
    seconds: float


def prove_grid(
    topology: Topology, *, proof_seconds: float = 60.0, workers: int = 1, **options: Unpack[GridOptions]
) -> Certificate:
    """``assign_grid``, and a proof of how far from the optimum its assignment is; ``options`` are those of ``assign_grid``.

    Where the solver finds a cheaper table of counts, the bound alone counts: the assignment stays the search's.

    Raises:
        InputError: OR-tools is not installed, or the topology has more than 16 groups of interchangeable devices.
    """
    model_of = _solver()
    if not proof_seconds > 0 or workers < 1:
        raise InputError(f"a proof needs seconds and workers, got {proof_seconds!r} and {workers!r}; write e.g. proof_seconds=60")
    found = assign_grid(topology, **options)
    sizes = {key: options[key] for key in ("dp", "pp", "dp_bytes", "pp_bytes")}
    problem = make_problem(topology, **sizes)  # type: ignore[arg-type]
    if len(problem.sizes) > _GROUPS:
        raise InputError(
            f"a certificate takes up to {_GROUPS} groups of interchangeable devices, {topology.name!r} has {len(problem.sizes)}: "
            "give links by regions, or take lower_bound_seconds of assign_grid"
        )
    model = _model(model_of, problem, found)
    solver = model_of.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.max_time_in_seconds = proof_seconds
    solver.parameters.random_seed = options.get("seed", 0)
    status = solver.solve(model)
    if status == model_of.INFEASIBLE:  # the limit is the search's cost, rounded up: this can't be
        raise InputError("the solver found no assignment as cheap as the search's: the model is wrong; please report it")
    bound = max(float(solver.best_objective_bound) / _SCALE, found.lower_bound_seconds)
    slack = (problem.dp + problem.pp) / _SCALE
    return Certificate(
        assignment=found,
        lower_bound_seconds=min(bound, found.cost_seconds),
        optimal=found.cost_seconds <= bound + slack,
        seconds=float(solver.wall_time),
    )


def _solver() -> Any:
    """The module of the solver.

    Raises:
        InputError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError("a certificate needs OR-tools, which is not installed: pip install 'farflung[certificate]'") from None
    return cp_model


def _model(cp: Any, problem: GridProblem, found: Assignment) -> Any:
    """``counts[j][r]``: devices of region r in stage j."""
    model = cp.CpModel()
    sizes, k, pp = [int(size) for size in problem.sizes], len(problem.sizes), problem.pp
    limit = int(np.ceil(found.cost_seconds * _SCALE)) + 1
    counts = [[model.new_int_var(0, min(problem.dp, sizes[r]), f"count {j} {r}") for r in range(k)] for j in range(pp)]
    for row in counts:
        model.add(sum(row) == problem.dp)
    for r in range(k):
        model.add(sum(row[r] for row in counts) == sizes[r])
    sync = model.new_int_var(0, limit, "sync")
    for row in counts:
        _synchronize(model, problem, row, sync)
    least = int(np.floor(problem.hop.min() * _SCALE))
    edges = [model.new_int_var(least, limit, f"edge {j}") for j in range(pp - 1)]
    for j, edge in enumerate(edges):
        _transport(model, problem, (counts[j], counts[j + 1]), edge)
    model.add(counts[0][0] >= counts[-1][0])  # a pipeline and its reverse cost the same
    model.add(sync + sum(edges) <= limit)
    model.minimize(sync + sum(edges))
    given = counts_of(problem, np.array(found.devices)).astype(int)
    given = given if given[0, 0] >= given[-1, 0] else given[::-1]
    for row, numbers in zip(counts, given.tolist(), strict=True):
        for variable, number in zip(row, numbers, strict=True):
            model.add_hint(variable, number)
    return model


def _synchronize(model: Any, problem: GridProblem, row: Any, sync: Any) -> None:
    """Equation (2) of one stage."""
    seconds = np.floor(problem.sync * _SCALE).astype(np.int64).tolist()
    own = np.ceil(np.diag(problem.sync) * _SCALE).astype(np.int64).tolist()
    single = problem.sizes == 1
    for r, count in enumerate(row):
        there = model.new_bool_var("")
        model.add(count == 0).only_enforce_if(~there)
        others = sum(seconds[r][s] * row[s] for s in range(len(row)) if s != r)
        inside = 0 if single[r] else seconds[r][r] * count - own[r]
        model.add(sync >= others + inside).only_enforce_if(there)


def _transport(model: Any, problem: GridProblem, rows: tuple[Any, Any], edge: Any) -> None:
    """Equation (3) between two stages."""
    seconds = np.floor(problem.hop * _SCALE).astype(np.int64)
    k, least = len(seconds), seconds.min()
    ways = [[model.new_int_var(0, problem.dp, "") for _ in range(k)] for _ in range(k)]
    for r in range(k):
        model.add(sum(ways[r]) == rows[0][r])
        model.add(sum(ways[q][r] for q in range(k)) == rows[1][r])
        for s in range(k):
            if r == s and problem.sizes[r] == 1:
                model.add(ways[r][s] == 0)
            elif seconds[r, s] > least:
                used = model.new_bool_var("")
                model.add(ways[r][s] == 0).only_enforce_if(~used)
                model.add(edge >= int(seconds[r, s])).only_enforce_if(used)
