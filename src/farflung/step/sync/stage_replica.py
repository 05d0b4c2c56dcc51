"""A worker's replica of one stage as the commands of ``farflung.sync`` see it: its layers, and registers by parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.codecs.exchanged import Remembered
from farflung.engines.base import Array, StageRunner
from farflung.step.sync.layer_times import LayerTimes
from farflung.sync import Program, World
from farflung.sync.commands import Probe

__all__ = ["MeanUnderWay", "OpenExchanges", "StageProbe", "StageReplica", "ValuesUnderWay", "ranges"]


#: The register of the slopes that a replica has measured and not sent yet.
_SLOPES = "slopes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanUnderWay:
    """A mean that is added up on the way: flat ``arrays`` by parameter; ``in_place``: they are the engine's own memory."""

    arrays: dict[str, Array]
    in_place: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesUnderWay:
    """An exchange of values one by one: the parameters in the order in which they are sent, and the ranks that send."""

    names: list[str]
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProbe:
    """What a stage measures in a step: the command, the parameters that are moved, and the replica's slopes of earlier steps that
    have not been sent to other replicas, the oldest first."""

    command: Probe
    names: tuple[str, ...]
    slopes: list[float]


@dataclass(slots=True)
class OpenExchanges:
    """Exchanges that have begun and not ended, by tag.

    ``values``: those of values one by one. ``since``: when each began, in seconds on the trace's clock.
    """

    means: dict[str, MeanUnderWay] = field(default_factory=dict)
    values: dict[str, ValuesUnderWay] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class StageReplica:
    """This worker's replica of one stage.

    ``layers``: the parameters of each. ``registers``: name -> parameter -> array, made when first written. ``mark``: a parameter
    that no other stage holds; a checkpoint stores under it what belongs to the stage as a whole.
    """

    stage: int
    world: World
    layers: tuple[tuple[str, ...], ...]
    runner: StageRunner
    mark: str
    registers: dict[str, dict[str, Array]] = field(default_factory=dict)
    program: Program = field(default_factory=Program)
    #: Layers whose commands of this step have been carried out during the backward.
    begun: set[int] = field(default_factory=set)
    #: The rank that serves the first piece of each layer.
    first_servers: tuple[int, ...] = ()
    exchanges: OpenExchanges = field(default_factory=OpenExchanges)
    #: What codecs dropped; its registers lie among the others.
    remembered: Remembered = field(init=False)
    #: What layers take here, where the strategy follows measured times.
    times: LayerTimes | None = None

    def __post_init__(self) -> None:
        self.remembered = Remembered(registers=self.registers)

    @property
    def probe(self) -> StageProbe | None:
        """What is measured in this step (``None``: nothing)."""
        # Every parameter has the slopes, whatever stage it moves to.
        slopes: list[float] = next((array.tolist() for array in self.registers.get(_SLOPES, {}).values()), [])
        for command in self.program.after:
            if isinstance(command, Probe):
                return StageProbe(command=command, names=tuple(self.names(command.layers)), slopes=slopes)
        return None

    def record_slope(self, slope: float) -> None:
        """Store a slope, unless the step's program sends it and all before it to the others."""
        probe = self.probe
        if probe is not None and len(probe.command.group) == 1:
            held = np.array([*probe.slopes, slope], np.float32)
            self.registers[_SLOPES] = dict.fromkeys(self.names(self.world.every), held)
        else:
            self.registers.pop(_SLOPES, None)

    def begin_step(self, program: Program) -> None:
        """A step begins, in which ``program`` is carried out."""
        self.program = program
        self.begun.clear()

    def follow(self, world: World) -> None:
        """The strategy goes on with ``world``: all replicas of the stage switch between the same two steps."""
        self.world = world

    def names(self, layers: Sequence[int]) -> list[str]:
        """The parameters of ``layers``."""
        return [name for layer in layers for name in self.layers[layer]]

    def read(self, register: str, names: Sequence[str]) -> Mapping[str, Array]:
        """Views where the engine can; a register that was never written is zero."""
        if register == "parameters":
            return self.runner.states(names, copy=False)
        if register == "gradient":
            return self.runner.gradient_views(names)
        arrays = self.registers.setdefault(register, {})
        missing = [name for name in names if name not in arrays]
        for name, like in self.runner.states(missing, copy=False).items():
            arrays[name] = np.zeros(like.shape, like.dtype)
        return {name: arrays[name] for name in names}

    def write(self, register: str, values: Mapping[str, Array]) -> None:
        """Set what a register holds of some parameters."""
        if register == "parameters":
            self.runner.load(values)
        elif register == "gradient":
            self.runner.set_gradients(values)
        else:
            self.registers.setdefault(register, {}).update(values)


def ranges(layers: Sequence[int]) -> str:
    """``1-3, 7`` of any order of layers; cut where it is long."""
    found: list[list[int]] = []
    for layer in sorted(layers):
        if found and found[-1][-1] == layer - 1:
            found[-1].append(layer)
        else:
            found.append([layer])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)
    return text if len(text) < 100 else f"{text[:90]} and more"
