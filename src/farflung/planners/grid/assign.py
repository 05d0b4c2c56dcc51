"""``assign_grid``: devices onto a grid of data-parallel groups and pipelines, at the least cost in DT-FM's model."""

from __future__ import annotations

from typing import Literal, Required, TypedDict, Unpack, get_args

import numpy as np

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.planners.grid.bounds import lower_bound
from farflung.planners.grid.budget import Budget
from farflung.planners.grid.genetic import genetic, random_rows
from farflung.planners.grid.model import Assignment, aligned, finished, make_problem
from farflung.planners.grid.search import search

__all__ = ["GridMethod", "GridOptions", "assign_grid"]

GridMethod = Literal["search", "dtfm", "kernighan_lin", "random"]


class GridOptions(TypedDict, total=False):
    """The keyword arguments of ``assign_grid``.

    ``dp`` devices in each data-parallel group, ``pp`` stages. ``pp_bytes``: activations of a micro-batch between two stages
    (c_pp); ``dp_bytes``: parameters of one stage (c_dp). ``method``: ``search`` (our own), ``dtfm`` (the paper's genetic
    search), ``kernighan_lin`` (that with the classical gain), ``random`` (partition, order and matching at random). The search
    ends after ``seconds`` (None: no limit) or ``evaluations``, whichever comes first; with ``evaluations`` and ``seconds=None``
    the same ``seed`` gives the same assignment. The genetic searches also end after ``patience`` evaluations without a better
    assignment (None: they do not).
    """

    dp: Required[int]
    pp: Required[int]
    pp_bytes: Required[float]
    dp_bytes: Required[float]
    method: GridMethod
    seconds: float | None
    evaluations: int | None
    patience: int | None
    seed: int


def assign_grid(topology: Topology, **options: Unpack[GridOptions]) -> Assignment:
    """Assign the topology's devices to ``dp`` x ``pp`` tasklets (DT-FM equations (1) to (4)); see ``GridOptions``.

    ``assign_grid(topology, dp=8, pp=8, pp_bytes=0.47e9, dp_bytes=0.65e9, method="search", seconds=2, seed=0)``

    Raises:
        InputError: an option is unknown, missing or out of range. PlanError: dp x pp is not the number of devices.
    """
    method, seed = options.get("method", "search"), options.get("seed", 0)
    _check(options)
    problem = make_problem(
        topology, dp=options["dp"], pp=options["pp"], dp_bytes=options["dp_bytes"], pp_bytes=options["pp_bytes"]
    )
    evaluations = options.get("evaluations")
    budget = Budget(evaluations, options.get("seconds", 2.0), patience=options.get("patience"))
    random = np.random.default_rng(seed)
    if method == "random":
        rows = random_rows(problem, random)
        budget.spend()
    elif method == "search":
        rows = aligned(problem, search(problem, budget, random))
    else:
        rows = aligned(problem, genetic(problem, budget, random, kernighan_lin=method == "kernighan_lin"))
    return finished(problem, rows, method, lower_bound(problem), budget.used)


def _check(options: GridOptions) -> None:
    known = GridOptions.__annotations__
    for key in options:
        if key not in known:
            raise InputError(f"assign_grid has no option {key!r}; known are {', '.join(known)}")
    for key in ("dp", "pp", "dp_bytes", "pp_bytes"):
        if key not in options:
            raise InputError(f"assign_grid needs {key}; write e.g. assign_grid(topology, dp=8, pp=8, pp_bytes=4e8, dp_bytes=6e8)")
    method = options.get("method", "search")
    if method not in get_args(GridMethod):
        raise InputError(f"unknown grid method {method!r}: known are {', '.join(get_args(GridMethod))}")
    seconds, evaluations, patience = options.get("seconds", 2.0), options.get("evaluations"), options.get("patience")
    if patience is not None and patience < 1:
        raise InputError(f"patience must be at least 1, got {patience!r}; write e.g. patience=1000, or leave it out")
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds must be more than 0, got {seconds!r}; write e.g. seconds=2, or seconds=None with evaluations")
    if evaluations is not None and evaluations < 1:
        raise InputError(f"evaluations must be at least 1, got {evaluations!r}; write e.g. evaluations=1000")
    if seconds is None and evaluations is None and method != "random":
        raise InputError("seconds=None needs a number of evaluations; write e.g. evaluations=1000")
