"""Follows the newest scenario: the present plan at once, then a new plan, then what limits it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from farflung.api.plan_explanation import Case, Reasons, reasons
from farflung.api.what_if.evaluation import Evaluation, adapted, evaluate
from farflung.api.what_if.planning_client import PlanningClient, PlanTask, Superseded
from farflung.api.what_if.scenario import Scenario
from farflung.errors import FarflungError, InputError
from farflung.graph.ir import Graph
from farflung.plan import Plan
from farflung.thread_group import ThreadGroup

__all__ = ["View", "WhatIfSession"]

#: Seconds without a newer scenario after which a new plan is made.
_QUIET = 0.25

State = Literal["capturing", "planning", "ready", "failed"]


@dataclass(frozen=True, kw_only=True)
class View:
    """What is known of scenario ``number``.

    ``evaluation``: of the plan in use. ``planned``: that plan was made for this scenario (``False``: for an earlier one).
    ``reasons``: what would remove the bottleneck (``None``: not known yet). ``error``: why there is no new plan.
    """

    number: int
    state: State
    evaluation: Evaluation | None = None
    graph: Graph | None = None
    planned: bool = False
    reasons: Reasons | None = None
    error: str = ""


class WhatIfSession:
    """One user's scenarios. ``publish`` receives each view on the session's thread. Any thread may call the methods."""

    def __init__(self, publish: Callable[[View], None], client: PlanningClient | None = None) -> None:
        self._publish = publish
        self._client = client or PlanningClient()
        self._changed = threading.Condition()
        #: The newest scenario if the thread has not taken it, and the number of the newest one (under ``_changed``).
        self._scenario: Scenario | None = None
        self._number = 0
        #: Views up to this number are not published any more (under ``_changed``).
        self._canceled = 0
        self._closed = False
        #: The plan in use; only the session's thread reads and writes it.
        self._plan: Plan | None = None
        self._threads = ThreadGroup()
        self._threads.spawn("what-if", self._follow)

    @property
    def running(self) -> bool:
        """Whether the session follows scenarios."""
        return bool(self._threads.running)

    def ask(self, scenario: Scenario) -> int:
        """Evaluate ``scenario``; an earlier one is given up. Return the number of its views."""
        with self._changed:
            self._scenario = scenario
            self._number += 1
            self._changed.notify()
            return self._number

    def cancel(self) -> None:
        """Give up the newest scenario. None of its views is published after this call."""
        with self._changed:
            self._scenario = None
            self._number += 1
            self._canceled = self._number
            self._changed.notify()

    def close(self) -> None:
        """End the thread and the planning process."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._threads.join()

    def _follow(self) -> None:
        try:
            while (newest := self._next()) is not None:
                with suppress(Superseded):
                    self._one(*newest)
        finally:
            self._client.close()

    def _next(self) -> tuple[Scenario, int] | None:
        """Wait for a scenario (``None``: the session is closed)."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._scenario is not None)
            scenario, self._scenario = self._scenario, None
            return None if self._closed or scenario is None else (scenario, self._number)

    def _newer(self, number: int) -> bool:
        with self._changed:
            return self._closed or self._number > number

    def _show(self, view: View) -> None:
        """Publish ``view``, unless its scenario was canceled. The lock decides which of the two came first."""
        with self._changed:
            if view.number > self._canceled:
                self._publish(view)

    def _one(self, scenario: Scenario, number: int) -> None:
        view = View(number=number, state="planning")
        try:
            view = self._present(scenario, number)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed or self._number > number, _QUIET):
                    raise Superseded
            view = self._replanned(scenario, view)
        except FarflungError as error:
            self._show(View(number=number, state="failed", evaluation=view.evaluation, graph=view.graph, error=str(error)))
            return
        if not self._newer(number):
            self._show(self._explained(view))

    def _present(self, scenario: Scenario, number: int) -> View:
        """Publish and return the figures of the plan in use, if it fits the scenario."""
        job, topology = scenario.chosen_job(), scenario.changed()
        graph = scenario.graph or self._client.graph(job)
        if scenario.graph is not None and max(job.micro_batch_sizes) != max(scenario.job.micro_batch_sizes):
            raise InputError(
                "the model of a run cannot be captured for other sizes of micro-batches: change their number, or choose a preset"
            )
        plan = None if graph is None or self._plan is None else adapted(graph, self._plan, topology, job)
        found = None
        if graph is not None and plan is not None:
            found = evaluate(graph, plan, topology, job, scenario.prices(topology))
        view = View(number=number, state="planning", evaluation=found, graph=graph)
        self._show(view)
        return view

    def _replanned(self, scenario: Scenario, view: View) -> View:
        """Publish and return the figures of a new plan."""
        number = view.number
        job, topology = scenario.chosen_job(), scenario.changed()

        def phase(name: str) -> None:
            state: State = "capturing" if name == "capturing" else "planning"
            self._show(View(number=number, state=state, evaluation=view.evaluation, graph=view.graph))

        start = None if view.evaluation is None else view.evaluation.plan
        task = PlanTask(
            job=job, topology=topology, graph=scenario.graph, start=start, newer=lambda: self._newer(number), phase=phase
        )
        answer = self._client.plan(task)
        self._plan = answer.plan
        found = evaluate(answer.graph, answer.plan, topology, answer.job, scenario.prices(topology))
        view = View(number=number, state="ready", evaluation=found, graph=answer.graph, planned=True)
        self._show(view)
        return view

    def _explained(self, view: View) -> View:
        """Return ``view`` with what would remove the bottleneck."""
        found, graph = view.evaluation, view.graph
        assert found is not None
        assert graph is not None
        case = Case(
            graph=graph,
            topology=found.topology,
            job=found.job,
            plan=found.plan,
            estimate=found.estimate,
            replan=lambda topology: found.plan,
        )
        found_reasons = reasons(case, changes=False)
        return View(number=view.number, state="ready", evaluation=found, graph=graph, planned=view.planned, reasons=found_reasons)
