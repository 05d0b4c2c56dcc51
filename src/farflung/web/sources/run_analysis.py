"""What holds a run's step up, what would shorten it, and what protects its states. A simulation in a process of its own.

The simulator runs the plan several times (``api.plan_explanation``).
In this process it would delay pages, because Python runs one thread at a
time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farflung.errors import FarflungError

__all__ = ["Analyses", "Analysis", "analyze"]

#: Bytes of a graph above which nothing is simulated.
_LARGEST = 64 << 20
#: Analyses that are remembered.
_MOST = 256
_NOTHING = asyncio.subprocess.DEVNULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """``gains``: (what would be better, seconds of the step then, how many times as fast), the best first.

    ``bound_by``: what is busiest, during ``bound_share`` of the step. ``unprotected``: stages of which no other machine has the
    state, and ``why_not``. ``problem``: why there is no analysis.
    """

    bound_by: str = ""
    bound_share: float = 0.0
    seconds: float = 0.0
    gains: tuple[tuple[str, float, float], ...] = ()
    memory: str = ""
    waiting: str = ""
    unprotected: tuple[int, ...] = ()
    why_not: str = ""
    problem: str = ""


_DECODER = msgspec.json.Decoder(Analysis)


def analyze(folder: Path) -> Analysis:
    """Return the analysis of the run in ``folder`` under its newest plan."""
    from farflung.api.plan_explanation import Case, reasons
    from farflung.cluster import Topology
    from farflung.graph.ir import Graph
    from farflung.job.load import from_json
    from farflung.plan import Plan
    from farflung.plan.fault_tolerance.protection import protect
    from farflung.simulator import Simulator
    from farflung.telemetry import RunFolder

    files = RunFolder(folder)
    try:
        if files.graph.stat().st_size > _LARGEST:
            return Analysis(problem="the model's graph is too large to simulate here: use farflung plan RUN")
        job = from_json(files.job.read_text(encoding="utf-8"))
        graph = Graph.from_json(files.graph.read_text(encoding="utf-8"))
        topology = Topology.from_json(files.topology.read_text(encoding="utf-8"))
        plan = Plan.from_json(files.plan.read_text(encoding="utf-8"))
        estimate = Simulator(graph, topology, job).evaluate(plan)
        case = Case(graph=graph, topology=topology, job=job, plan=plan, estimate=estimate, replan=lambda other: plan)
        found = reasons(case, changes=False)
        protection = protect(plan, topology, job, estimate)
    except (OSError, UnicodeDecodeError) as error:
        return Analysis(problem=f"a file of the run is missing ({error})")
    except FarflungError as error:
        return Analysis(problem=str(error))
    return Analysis(
        bound_by=estimate.bound_by,
        bound_share=estimate.bound_share,
        seconds=found.seconds,
        gains=tuple((gain.what, gain.seconds, gain.factor) for gain in found.held if gain.factor >= 1.005),
        memory=found.memory,
        waiting=found.waiting,
        unprotected=tuple(stage.index for stage in plan.stages if len(protection.holders(plan, stage.index)) < 2),
        why_not=protection.why_not,
    )


class Analyses:
    """One analysis for each run and plan, made when a page first asks. For the event loop."""

    def __init__(self) -> None:
        self._found: dict[Path, tuple[int, Analysis]] = {}
        self._running: asyncio.Task[None] | None = None

    def of(self, folder: Path) -> Analysis | None:
        """Return the analysis of the run in ``folder``. ``None``: it is being made, or another one is."""
        try:
            when = (folder / "plan.json").stat().st_mtime_ns
        except OSError:
            return None
        known = self._found.get(folder)
        if known is not None and known[0] == when:
            return known[1]
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._make(folder, when), name="analysis")
        return None if known is None else known[1]

    async def _make(self, folder: Path, when: int) -> None:
        command = [sys.executable, "-m", "farflung.web.sources.run_analysis", str(folder)]
        found = Analysis(problem="the simulation failed: dashboard.log in the broker's folder says why")  # unless it succeeds
        process = None
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=_NOTHING, stdout=asyncio.subprocess.PIPE)
            answer, _ = await process.communicate()
            if process.returncode == 0:
                found = _DECODER.decode(answer)
        except (OSError, msgspec.MsgspecError) as error:
            found = Analysis(problem=f"the simulation failed: {error}")
        finally:
            if process is not None and process.returncode is None:
                process.kill()
            self._found[folder] = when, found
            if len(self._found) > _MOST:
                del self._found[next(iter(self._found))]


def main(folder: Path) -> None:
    """Write the analysis of the run in ``folder`` to the standard output. If nobody reads it any more, this process ends."""
    os.nice(10)  # the training on this machine comes first
    sys.stdout.buffer.write(msgspec.json.encode(analyze(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
