"""The parent's end of the planning process: one request at a time, a deadline, and an end for work that nobody waits for."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from farflung.child_processes import end_all
from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import Graph
from farflung.job.load import from_json as job_from_json
from farflung.job.load import to_json as job_to_json
from farflung.job.spec import JobSpec
from farflung.plan import Plan

__all__ = ["Answer", "PlanTask", "PlanningClient", "Superseded", "graph_key"]

#: Seconds between two looks whether a newer scenario has come.
_POLL = 0.05
#: Seconds that an older request may hold up a newer one, and that the process may take to start. Then the process is replaced.
_STUBBORN, _START = 3.0, 60.0
#: Seconds that the capture of a model may take.
_CAPTURE = 600.0
_DIED = "the planning process has died, perhaps because the model needs more memory than this machine has: try a smaller model"


class Superseded(Exception):
    """A newer scenario has come: nobody waits for this answer."""


@dataclass(frozen=True, kw_only=True)
class PlanTask:
    """What to plan. ``graph``: the model, if it is known. ``start``: the present plan. ``newer``: whether to give up."""

    job: JobSpec
    topology: Topology
    graph: Graph | None
    start: Plan | None
    newer: Callable[[], bool]
    phase: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A plan, the job with the decisions of the planner, and the model."""

    plan: Plan
    job: JobSpec
    graph: Graph


def graph_key(job: JobSpec) -> str:
    """Return what decides the graph: the model, the samples of the largest micro-batch, and frozen parameters."""
    model = None if job.model is None else job.model.model_dump(mode="json")
    groups = [group.model_dump(mode="json") for group in job.optimizer.groups]
    return json.dumps([model, max(job.micro_batch_sizes), groups], sort_keys=True)


class PlanningClient:
    """Starts the process when the first task comes. Not thread-safe: one thread makes all calls."""

    def __init__(self, seconds: float = 20.0, clock: Clock | None = None) -> None:
        """``seconds``: of planning at most; the planner ``auto`` searches for a quarter of them."""
        self._seconds = seconds
        self._clock = clock or MonotonicClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._number = 0
        self._graphs: dict[str, Graph] = {}
        #: Of the running process: the keys of the graphs that it has, the key of the model that it captures (empty: none), and
        #: whether it has answered anything.
        self._known: set[str] = set()
        self._capturing = ""
        self._started = False

    def graph(self, job: JobSpec) -> Graph | None:
        """Return the model of ``job`` if it has been captured."""
        return self._graphs.get(graph_key(job))

    def plan(self, task: PlanTask) -> Answer:
        """Return a plan.

        Raises:
            Superseded: a newer scenario has come.
            PlanError: there is no plan, or none within the deadline; or the model can't be captured.
        """
        key = graph_key(task.job)
        if task.graph is not None:
            self._graphs[key] = task.graph
        for _ in range(2):
            self._send(key, task)
            answer = self._wait(key, task)
            if answer is not None:
                return answer
            self.close()  # an older request holds the process up
        raise PlanError("the planning process does not answer: try again, or use farflung plan")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it may have died
            process.stdin.close()
        end_all([process], 1.0)
        process.stdout.close()
        self._buffer, self._known, self._capturing, self._started = b"", set(), "", False

    def _wait(self, key: str, task: PlanTask) -> Answer | None:
        """Return the answer (``None``: an older request holds the process up)."""
        begin, heard = self._clock.now(), False
        while True:
            if task.newer():
                raise Superseded
            spent = self._clock.now() - begin
            if not heard and spent > self._grace(key):
                return None
            if heard and spent > (_CAPTURE if self._capturing else self._seconds):
                what = "the capture of the model" if self._capturing else f"the planner {task.job.plan.planner}"
                self.close()
                raise PlanError(f"{what} took more than {spent:.0f} s: try a smaller model, fewer machines or another planner")
            message = self._read()
            if message is None:
                continue
            self._take(message)
            mine = message["id"] == self._number
            if "graph" in message or (mine and "phase" in message):  # the time of a capture does not count as planning
                begin, heard = self._clock.now(), heard or mine
            if mine and "phase" in message:
                self._capturing = key if message["phase"] == "capturing" else ""
                task.phase(message["phase"])
            if mine and (answer := self._answer(key, message)) is not None:
                return answer

    def _answer(self, key: str, message: dict[str, Any]) -> Answer | None:
        """Return the plan in ``message`` (``None``: there is none yet).

        Raises:
            PlanError: there is no plan.
        """
        if "error" in message:
            self._capturing = ""
            raise PlanError(message["error"])
        if "plan" not in message:
            return None
        plan, job = Plan.from_json(json.dumps(message["plan"])), job_from_json(json.dumps(message["job"]))
        return Answer(plan=plan, job=job, graph=self._graphs[key])

    def _grace(self, key: str) -> float:
        """Seconds that the process may take until it begins with a request."""
        if self._capturing == key:
            return _CAPTURE
        return _STUBBORN if self._started else _START

    def _take(self, message: dict[str, Any]) -> None:
        """Store a captured model, whichever request it was for."""
        self._started = True
        if "graph" in message:
            self._graphs[message["key"]] = Graph.from_json(json.dumps(message["graph"]))
            self._known.add(message["key"])
            self._capturing = ""

    def _send(self, key: str, task: PlanTask) -> None:
        self._number += 1
        graph = None if key in self._known else self._graphs.get(key)
        request = {
            "id": self._number,
            "job": json.loads(job_to_json(task.job)),
            "topology": json.loads(task.topology.to_json()),
            "key": key,
            "graph": None if graph is None else json.loads(graph.to_json()),
            "start": None if task.start is None else json.loads(task.start.to_json()),
            "seconds": self._seconds / 4,
        }
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        for _ in range(2):
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError:
                self.close()  # it has died since the last request
                continue
            if graph is not None:
                self._known.add(key)
            return
        raise PlanError(_DIED)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "farflung.api.what_if.planning_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    def _read(self) -> dict[str, Any] | None:
        """Return the next answer (``None``: none has come within a twentieth of a second).

        Raises:
            PlanError: the process has died.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if b"\n" not in self._buffer:
            ready, _, _ = select.select([process.stdout], [], [], _POLL)
            if not ready:
                return None
            piece = os.read(process.stdout.fileno(), 1 << 20)
            if not piece:
                self.close()
                raise PlanError(_DIED)
            self._buffer += piece
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        found: dict[str, Any] = json.loads(line)
        return found
