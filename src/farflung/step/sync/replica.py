"""A worker's replica of one stage as the commands of ``farflung.sync`` see it: its layers, and registers by parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.codecs.exchanged import Remembered
from farflung.engines.base import Array, StageRunner
from farflung.step.sync.layer_times import LayerTimes
from farflung.sync import Program, World
from farflung.sync.commands import Clip, Damp

__all__ = ["Member", "keep_variance", "norm_of", "ranges", "rescale"]


@dataclass(slots=True)
class Member:
    """This worker's replica of one stage. ``registers``: name -> parameter -> array (made when first written). ``mark``: a
    parameter that no other stage holds, for what a checkpoint keeps of the stage as a whole."""

    stage: int
    world: World
    layers: tuple[tuple[str, ...], ...]
    runner: StageRunner
    mark: str
    registers: dict[str, dict[str, Array]] = field(default_factory=dict)
    program: Program = field(default_factory=Program)
    begun: set[int] = field(default_factory=set)
    #: The server of the first piece of each layer.
    first: tuple[int, ...] = ()
    #: tag -> what is averaged: flat arrays by parameter, and whether they are the engine's own memory
    rounds: dict[str, tuple[dict[str, Array], bool]] = field(default_factory=dict)
    #: tag -> (parameters, group) of exchanges under way whose values are needed one by one
    flying: dict[str, tuple[list[str], tuple[int, ...]]] = field(default_factory=dict)
    #: What codecs dropped; its registers lie among the others.
    remembered: Remembered = field(default_factory=Remembered)
    #: tag -> when exchanges under way began, on the trace's clock
    since: dict[str, float] = field(default_factory=dict)
    #: What layers take here, where the strategy follows that.
    times: LayerTimes | None = None

    def names(self, layers: Sequence[int]) -> list[str]:
        """The parameters of ``layers``."""
        return [name for layer in layers for name in self.layers[layer]]

    def read(self, register: str, names: Sequence[str]) -> Mapping[str, Array]:
        """Views where the engine can; a register that was never written is zero."""
        if register == "parameters":
            return self.runner.states(names, copy=False)
        if register == "gradient":
            return self.runner.gradient_views(names)
        held = self.registers.setdefault(register, {})
        missing = [name for name in names if name not in held]
        for name, like in self.runner.states(missing, copy=False).items():
            held[name] = np.zeros(like.shape, like.dtype)
        return {name: held[name] for name in names}

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


def rescale(member: Member, command: Clip | Damp, names: Sequence[str]) -> None:
    """Carry ``command`` out."""
    values = member.read(command.register, names)
    norm = norm_of(values)
    if isinstance(command, Clip):
        factor = min(1.0, command.max_norm / norm) if norm > 0 else 1.0
    else:
        factor = 1.0 / (1.0 + norm_of(member.read(command.gap, names)) / norm) if norm > 0 else 1.0
    if factor != 1.0:
        member.write(command.register, _scaled(values, factor))


def norm_of(values: Mapping[str, Array]) -> float:
    """The Euclidean norm of all numbers."""
    return float(np.sqrt(sum(float(np.vdot(array, array)) for array in values.values())))


def _scaled(values: Mapping[str, Array], factor: float) -> dict[str, Array]:
    return {name: array * array.dtype.type(factor) for name, array in values.items()}


def keep_variance(
    sums: dict[str, Array], names: Sequence[str], members: Sequence[Mapping[str, Array]], weights: Sequence[float]
) -> None:
    """Scale the deviation of a layer's mean to the mean of the members' variances (over all numbers of the layer)."""

    def joined(values: Mapping[str, Array]) -> Array:
        return np.concatenate([values[name].reshape(-1) for name in names])

    wanted = sum(weight * float(joined(values).var()) for weight, values in zip(weights, members, strict=True))
    together = joined(sums)
    centre, found = together.mean(), float(together.var())
    if found > 0:
        factor = together.dtype.type(np.sqrt(wanted / found))
        for name in names:
            sums[name] = centre + (sums[name] - centre) * factor
