"""What a strategy's programs take: backward and exchanges on one clock, for predictions, explanations and comparisons.

The link is one resource that serves exchanges in the order in which they are begun, each for the sum of its layers'
``comm_seconds``; the mean is there a latency later. Computing is the backward of each layer and a forward per step. A step ends
when its backward and all exchanges that it waits for have ended. For S-SGD, local SGD and partial synchronization the sums are
equations (3), (4) and (7) of DreamDDP. ``Costs`` add what the equations leave out. Lanes share the link, so simultaneous
transfers win nothing here. What only others send takes as long and leaves the own link free. Cost O(layers) per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.sync.base import Strategy
from farflung.sync.commands import Aggregate, Exchange, Mean, Program, Replay, Update
from farflung.sync.world import World
from farflung.units import Seconds

__all__ = ["Costs", "ExchangeSpan", "StepSpan", "explain", "leaving", "mean_step_seconds", "period_seconds", "timeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that the paper's equations leave out.

    ``update``: of the inner optimizer, all layers. ``latency``: from an exchange's last byte until its mean is everywhere.
    ``control``: from the end of the backward until a step may be applied.
    """

    update: float = 0.0
    latency: float = 0.0
    control: float = 0.0


_FREE = Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpan:
    """One exchange on the clock of the run: when it could begin, when the link began and ended it.

    ``own``: whether this replica sends something in it.
    """

    tag: str
    layers: tuple[int, ...]
    ready: Seconds
    begin: Seconds
    end: Seconds
    own: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """One step: ``begin``, end of its backward, ``end``; and the exchanges that it began."""

    step: int
    begin: Seconds
    backward_end: Seconds
    end: Seconds
    exchanges: tuple[ExchangeSpan, ...]

    @property
    def seconds(self) -> Seconds:
        """Length of the step."""
        return Seconds(self.end - self.begin)

    @property
    def exposed(self) -> Seconds:
        """What it waits beyond its computing."""
        return Seconds(self.end - self.backward_end)


def timeline(
    strategy: Strategy, world: World, steps: int, *, forward_seconds: float = 0.0, factor: float = 1.0, costs: Costs = _FREE
) -> list[StepSpan]:
    """The first ``steps`` steps of replica ``world.rank``.

    ``forward_seconds``: of one forward of all samples; a step without a backward has two, one in which the replica rests none.
    ``factor``: bytes after the codec over bytes before it.
    """
    link = _Link(world, factor, costs)
    found: list[StepSpan] = []
    now = 0.0
    for step in range(steps):
        program = strategy.step(step, world)
        start, link.spans = now + forward_seconds * (0 if program.rests else 1 if program.backward else 2), []
        done = link.backward(program, start)
        end = link.carry_out(program, done + costs.control)
        found.append(
            StepSpan(step=step, begin=Seconds(now), backward_end=Seconds(done), end=Seconds(end), exchanges=tuple(link.spans))
        )
        now = end
    return found


class _Link:
    """The link, the exchanges on it, and the update's part of each layer."""

    def __init__(self, world: World, factor: float, costs: Costs) -> None:
        self._world, self._factor, self._costs = world, factor, costs
        self._free = 0.0
        self._ends: dict[str, float] = {}
        total = sum(layer.nbytes for layer in world.layers) or 1
        self._update = [costs.update * layer.nbytes / total for layer in world.layers]
        self.spans: list[ExchangeSpan] = []

    def backward(self, program: Program, start: float) -> float:
        """A backward that begins at ``start``, with what its layers begin; when it ends."""
        now = start
        for layer in reversed(self._world.every):
            now += self._world.layers[layer].bp_seconds if program.backward and not program.rests else 0.0
            for command in program.ready.get(layer, ()):
                if isinstance(command, Update):
                    now += sum(self._update[item] for item in command.layers)
                elif isinstance(command, Exchange):
                    self._send(command, now)
        return now

    def carry_out(self, program: Program, now: float) -> float:
        """What comes after a backward, from ``now`` on; when it ends."""
        for command in program.after:
            if isinstance(command, Update):
                now += sum(self._update[item] for item in command.layers)
            elif isinstance(command, Exchange):
                self._send(command, now)
            elif isinstance(command, Mean | Aggregate | Replay) and command.tag in self._ends:
                now = max(now, self._ends.pop(command.tag))
        return now

    def _send(self, exchange: Exchange, ready: float) -> None:
        seconds = self._factor * sum(self._world.layers[layer].comm_seconds for layer in exchange.layers)
        begin, done, own = ready, ready + seconds, self._world.rank in exchange.sources
        if own:
            begin = max(ready, self._free)
            self._free = done = begin + seconds
        latency = max((self._world.layers[layer].latency for layer in exchange.layers), default=0.0)
        end = done + self._costs.latency
        self._ends[exchange.tag] = end + latency
        span = ExchangeSpan(
            tag=exchange.tag, layers=exchange.layers, ready=Seconds(ready), begin=Seconds(begin), end=Seconds(end), own=own
        )
        self.spans.append(span)


def mean_step_seconds(
    strategy: Strategy, world: World, steps: int, *, forward_seconds: float = 0.0, factor: float = 1.0, costs: Costs = _FREE
) -> Seconds:
    """Mean length of a step over ``steps`` steps, which should be whole periods."""
    spans = timeline(strategy, world, steps, forward_seconds=forward_seconds, factor=factor, costs=costs)
    return Seconds(spans[-1].end / steps)


def period_seconds(strategy: Strategy, world: World) -> Seconds:
    """The backward parts of a period, with the exchanges that they do not hide."""
    return Seconds(timeline(strategy, world, strategy.traits.sync_every)[-1].end)


def leaving(strategy: Strategy, world: World) -> list[tuple[int, ...]]:
    """The layers that are exchanged in each step of a period, in the order of their exchanges."""
    steps = (strategy.step(step, world) for step in range(strategy.traits.sync_every))
    return [tuple(layer for exchange in program.exchanges for layer in exchange.layers) for program in steps]


def explain(strategy: Strategy, world: World, steps: int, names: Mapping[int, str] | None = None) -> str:
    """One line per step: which layers leave, how long that takes, how much of it is hidden. ``names``: of layers."""
    known, traits = names or {}, strategy.traits
    lines = [f"{traits.name}: exchanges {traits.sent.value}, codec {traits.codec}"]
    for span in timeline(strategy, world, steps):
        layers = [known.get(layer, str(layer)) for exchange in span.exchanges for layer in exchange.layers]
        if not layers:
            lines.append(f"step {span.step}: nothing leaves; waits {span.exposed}")
            continue
        busy = Seconds(sum(exchange.end - exchange.begin for exchange in span.exchanges))
        what = "layer" if len(layers) == 1 else "layers"
        hidden = Seconds(max(busy - span.exposed, 0.0))
        text = f"{busy} on the link, {hidden} of it hidden, the step waits {span.exposed}"
        lines.append(f"step {span.step}: {what} {', '.join(layers)}; {text}")
    if traits.updates_early:
        lines.append("with several micro-batches only the backward of the last one hides exchanges")
    return "\n".join(lines)
