"""What the ends of a plan's links remember of samples that come again: which tables there are, and what they take.

Forwards, ``difference``: both ends hold the value of each sample. Backwards, ``error_feedback``: the sender holds what was
dropped of each sample's gradient. There is a table for each value, direction and pair of devices; all have the same limit, so
that both ends drop or keep the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.graph.cut import SubGraph
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan
from farflung.plan.traffic import edges_by_link
from farflung.units import Bytes, counted

__all__ = ["Route", "check_samples", "limit_of", "link_memory", "remembers", "route_of", "routes_of"]

#: Held values are float32.
_WIDTH = 4
#: A sender's tables are copied together for a checkpoint.
_SENDER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``value`` of the edge from stage ``source`` to ``target``, or its ``gradient``, which goes back, between two devices.

    ``memory``: ``difference``, ``error_feedback``, or empty.
    """

    value: str
    source: int
    target: int
    gradient: bool
    sender: str
    receiver: str
    memory: str

    @property
    def stage(self) -> int:
        """The stage that sends."""
        return self.target if self.gradient else self.source


def remembers(plan: Plan) -> bool:
    """Whether any link has a memory."""
    return any(link.activations.memory or link.gradients.memory for link in plan.links)


def route_of(plan: Plan, edge: tuple[str, int, int], ends: tuple[str, str], *, gradient: bool) -> Route:
    """The route of ``edge`` (value, source, target), or of its gradient, from device ``ends[0]`` to ``ends[1]``."""
    value, source, target = edge
    link = plan.link.get((source, target))
    choice = None if link is None else link.gradients if gradient else link.activations
    return Route(
        value=value,
        source=source,
        target=target,
        gradient=gradient,
        sender=ends[0],
        receiver=ends[1],
        memory="" if choice is None else choice.memory,
    )


def routes_of(plan: Plan, subgraphs: Sequence[SubGraph]) -> dict[Route, int]:
    """The routes with a table -> bytes that it takes for each sample."""
    if not remembers(plan):
        return {}
    rows = max(plan.micro_batch_sizes)
    found: dict[Route, int] = {}
    for pair, edges in edges_by_link(subgraphs).items():
        for edge in edges:
            for gradient, nbytes in ((False, edge.forward_bytes), (True, edge.backward_bytes)):
                if not nbytes or not edge.spec.floating or edge.spec.shape[:1] != (rows,):
                    continue
                for ends in _ends(plan, pair[::-1] if gradient else pair):
                    route = route_of(plan, (str(edge.value), *pair), ends, gradient=gradient)
                    if route.memory:
                        found[route] = _WIDTH * (edge.spec.numel // rows)
    return found


def _ends(plan: Plan, pair: tuple[int, int]) -> list[tuple[str, str]]:
    """The (sending, receiving) devices of two stages that have a micro-batch in common."""
    both = (tuple(plan.device_of(stage, index) for stage in pair) for index in range(len(plan.micro_batch_sizes)))
    return [(a, b) for a, b in dict.fromkeys(both) if a != b]


def limit_of(memory_bytes: float, routes: Mapping[Route, int]) -> float:
    """Bytes that one table may take, so that no device needs more than ``memory_bytes`` for its tables."""
    ends: dict[str, float] = {}
    for route in routes:
        for device, copies in _holders(route):
            ends[device] = ends.get(device, 0.0) + copies
    return memory_bytes / max(1.0, *ends.values()) if ends else memory_bytes


def link_memory(plan: Plan, subgraphs: Sequence[SubGraph], job: JobSpec) -> dict[tuple[int, str], float]:
    """(stage, device) -> bytes that its tables can take, copies for checkpoints included."""
    routes = routes_of(plan, subgraphs)
    limit, samples = limit_of(job.codec.memory_bytes, routes), job.steps * sum(job.micro_batch_sizes)
    found: dict[tuple[int, str], float] = {}
    for route, nbytes in routes.items():
        for device, copies in _holders(route):
            stage = route.stage if device == route.sender else route.source + route.target - route.stage
            found[stage, device] = found.get((stage, device), 0.0) + copies * min(limit, float(samples * nbytes))
    return found


def _holders(route: Route) -> list[tuple[str, float]]:
    held = [(route.sender, _SENDER)]
    return [*held, (route.receiver, 1.0)] if route.memory == "difference" else held


def check_samples(job: JobSpec, routes: Mapping[Route, int], samples: int) -> None:
    """Whether ``samples``, all that the data have, come again in ``job`` and fit the tables.

    Raises:
        InputError: they don't; the text says how many there are and what helps.
    """
    taken = job.steps * sum(job.micro_batch_sizes)
    if routes and taken <= samples:
        raise InputError(
            f"codec.memory = {job.codec.memory!r} is for samples that come again: {counted(job.steps, 'step')} of "
            f"{sum(job.micro_batch_sizes)} samples take {taken}, and the data have {samples}; set it to 'none', or train longer"
        )
    limit = limit_of(job.codec.memory_bytes, routes)
    for route, nbytes in routes.items():
        if samples * nbytes > limit:
            where = f"of {route.value!r:.80} from {route.sender} to {route.receiver}"
            most = job.codec.memory_bytes * samples * nbytes / limit
            raise InputError(
                f"codec.memory = {job.codec.memory!r}: {samples} samples {where} take {Bytes(samples * nbytes)}, and "
                f"codec.memory_bytes = {job.codec.memory_bytes:g} leaves {Bytes(limit)} for each table; set it to {most:.3g} or "
                "more, or codec.memory to 'none'"
            )
