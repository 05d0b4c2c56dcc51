"""Plans next to one in which stages are on devices whose engines do not support them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farflung.plan.engine_support import unsupported
from farflung.plan.model import Plan
from farflung.planners.finish import Problem

__all__ = ["engine_moves"]

Placed = list[tuple[int, int, str]]


def engine_moves(problem: Problem, plan: Plan, stages: Sequence[int]) -> Iterator[Placed]:
    """Return changes of the placement that may free the ``stages`` of operators that their engines lack.

    Two stages exchange their devices, or a part of the stage, up to an end of a module run, joins the stage before or after it.
    """
    placed = [(stage.start, stage.stop, stage.device) for stage in plan.stages]
    pieces = problem.tables.cutter.cut([(start, stop) for start, stop, _ in placed])
    edges = sorted({edge for run in problem.runs for edge in (run.start, run.stop)})
    for index in stages:
        start, stop, device = placed[index]
        for other, (begin, end, there) in enumerate(placed):
            if there != device:
                exchanged = list(placed)
                exchanged[index], exchanged[other] = (start, stop, there), (begin, end, device)
                yield exchanged
        ops = unsupported(problem.topology.device(device), pieces[index])
        own = [at for at in (problem.graph.position[op.name] for op in ops) if start <= at < stop]
        if not own:
            continue
        after = next((edge for edge in edges if max(own) < edge < stop), None)
        if index and after is not None:
            begin, _, there = placed[index - 1]
            yield [*placed[: index - 1], (begin, after, there), (after, stop, device), *placed[index + 1 :]]
        before = next((edge for edge in reversed(edges) if start < edge <= min(own)), None)
        if index + 1 < len(placed) and before is not None:
            _, end, there = placed[index + 1]
            yield [*placed[:index], (start, before, device), (before, end, there), *placed[index + 2 :]]
