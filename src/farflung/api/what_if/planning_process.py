"""A child process that captures models and makes plans, so that a web server neither imports PyTorch nor waits for a planner.

Run it as ``python -m farflung.api.what_if.planning_process``. Both directions are lines of JSON.

| request (standard input) | meaning |
| --- | --- |
| ``id`` | number of the request; a request ends the work on all earlier ones |
| ``job``, ``topology`` | documents |
| ``key`` | what the model and the size of its micro-batches are called in later requests |
| ``graph`` | the model, if the sender has it; otherwise it is captured once for each ``key`` |
| ``start`` | the present plan (``null``: none); the planner ``auto`` begins with it |
| ``seconds`` | of search, for the planner ``auto`` |

Answers carry the ``id``, and ``phase`` (``capturing`` or ``planning``), ``graph`` (a captured model), ``plan`` with ``job`` (with
the decisions of the planner), or ``error``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from farflung.api.planning import judge
from farflung.broker.planning import plan_run
from farflung.cluster import Topology
from farflung.errors import FarflungError
from farflung.graph.ir import Graph
from farflung.job.load import from_json
from farflung.job.load import to_json as job_to_json
from farflung.job.spec import JobSpec
from farflung.messages.submission import Bundle
from farflung.plan import Estimate, Plan
from farflung.planners import Constrained, Evaluate, Planner, get_planner
from farflung.planners.auto import Auto, AutoSettings
from farflung.planners.scheduled import Offloading, Siting
from farflung.thread_group import ThreadGroup

__all__ = ["PlanningServer", "main"]

#: Models that stay in memory.
_KEPT = 8


class _Superseded(Exception):
    """A newer request has come."""


class PlanningServer:
    """Answers the newest request. ``send`` receives each answer."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        #: The newest request that nobody works on (under ``_changed``), the number of the newest one, and whether no more come.
        self._waiting: dict[str, Any] | None = None
        self._newest = -1
        self._closed = False
        self._graphs: dict[str, Graph] = {}

    def receive(self, lines: Iterable[str]) -> None:
        """Take requests until ``lines`` ends. Another thread calls ``serve``."""
        for line in lines:
            request = json.loads(line)
            with self._changed:
                self._waiting, self._newest = request, request["id"]
                self._changed.notify()
        with self._changed:
            self._closed, self._newest = True, -1
            self._changed.notify()

    def serve(self) -> None:
        """Answer requests until no more come."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                request, self._waiting = self._waiting, None
            if request is None:
                return
            try:
                self._answer(request)
            except _Superseded:
                continue
            except FarflungError as error:
                self._send({"id": request["id"], "error": str(error)})

    def _answer(self, request: dict[str, Any]) -> None:
        number, job = request["id"], from_json(json.dumps(request["job"]))
        graph = self._graph(request, job)
        self._check(number)
        self._send({"id": number, "phase": "planning"})
        topology = Topology.from_json(json.dumps(request["topology"]))
        start = None if request["start"] is None else Plan.from_json(json.dumps(request["start"]))
        bundle = Bundle(run="what-if", job=job, graphs={max(job.micro_batch_sizes): graph})

        def patient(graph: Graph, topology: Topology, job: JobSpec) -> Evaluate:
            inner = judge(graph, topology, job)

            def evaluate(plan: Plan) -> Estimate:
                self._check(number)
                return inner(plan)

            return evaluate

        planned = plan_run(bundle, topology, patient, Constrained(_planner(job, start, float(request["seconds"]))))
        decided = planned.decided or job
        self._check(number)
        self._send({"id": number, "plan": json.loads(planned.plan_json), "job": json.loads(job_to_json(decided))})

    def _check(self, number: int) -> None:
        if self._newest != number:
            raise _Superseded

    def _graph(self, request: dict[str, Any], job: JobSpec) -> Graph:
        key = str(request["key"])
        if request.get("graph") is not None:
            found = Graph.from_json(json.dumps(request["graph"]))
        elif key in self._graphs:
            return self._graphs[key]
        else:
            self._send({"id": request["id"], "phase": "capturing"})
            found = _captured(job)
            self._send({"id": request["id"], "key": key, "graph": json.loads(found.to_json())})
        while len(self._graphs) >= _KEPT:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = found
        return found


def _captured(job: JobSpec) -> Graph:
    """Capture the model of ``job`` for its largest micro-batch."""
    from farflung.api.submission import bundle_job

    plain = {"evaluate": type(job.evaluate)(), "generate": type(job.generate)(), "virtual_replicas": None}
    single = job.model_copy(update={**plain, "micro_batch_sizes": (max(job.micro_batch_sizes),)})
    return bundle_job(single, base=Path()).graph


def _planner(job: JobSpec, start: Plan | None, seconds: float) -> Planner:
    if job.plan.planner != "auto":
        return get_planner(job.plan.planner)
    settings = AutoSettings(seconds=seconds, stages=job.limits.stages, replicas=job.limits.replicas)
    return Offloading(Siting(Auto(settings if start is None else replace(settings, start=(start,)))))


def main() -> None:
    """Serve the requests of the parent process until it closes the pipe."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get between the answers

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
        answers.flush()

    server, threads = PlanningServer(send), ThreadGroup()
    threads.spawn("what-if-requests", server.receive, sys.stdin)
    server.serve()


if __name__ == "__main__":
    main()
