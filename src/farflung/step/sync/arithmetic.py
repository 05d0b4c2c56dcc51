"""Arithmetic of commands on a replica's registers, in NumPy on the host; the order of additions is that of the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farflung.engines.base import Array
from farflung.step.sync.stage_replica import StageReplica
from farflung.sync.commands import Aggregate, Axpy, Clip, Damp, Mean
from farflung.sync.robust_rules import merged
from farflung.sync.unit_matching import in_one_order

__all__ = ["aggregated", "axpy", "norm_of", "rescale", "weighted_mean"]


def axpy(replica: StageReplica, command: Axpy, names: Sequence[str]) -> None:
    """``into <- a x + b into``, in the element type of each array."""
    x = replica.read(command.x, names)
    y = replica.read(command.into, names) if command.b else {}
    found = {}
    for name, array in x.items():
        value = np.multiply(array, array.dtype.type(command.a))  # new memory: ``x`` may be the engine's own
        if command.b:
            value += y[name] if command.b == 1.0 else y[name] * array.dtype.type(command.b)
        found[name] = value
    replica.write(command.into, found)


def weighted_mean(replica: StageReplica, command: Mean, arrived: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of members' values by parameter. ``arrived``: in the order of ``command.group``, the order of addition."""
    sums: dict[str, Array] = {}
    if command.units:
        arrived = in_one_order(arrived, command.units, command.group.index(command.reference))
    # Members are added in the order of the group, whoever came first, so that all members get the same bits.
    for weight, values in zip(command.weights, arrived, strict=True):
        for name, array in values.items():
            part = array * array.dtype.type(weight)
            sums[name] = part if name not in sums else np.add(sums[name], part, out=sums[name])
    if command.keep_variance:
        for layer in command.layers:
            _keep_variance(sums, replica.layers[layer], arrived, command.weights)
    return sums


def aggregated(
    command: Aggregate, arrived: Sequence[Mapping[str, Array]], names: Sequence[str]
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Return what the robust rule of ``command`` makes of members' values, each one vector over all of ``names``.

    Also return the ranks whose vector is not finite: the rule leaves them out.
    """
    # One row for each member, in the order of the group: a robust rule compares whole vectors.
    stacked = np.stack([np.concatenate([values[name].reshape(-1) for name in names]) for values in arrived])
    vector, excluded = merged(command.rule, stacked, command.faulty, command.directions)
    found, at = {}, 0
    for name in names:
        like = arrived[0][name]
        found[name] = vector[at : at + like.size].reshape(like.shape).astype(like.dtype)
        at += like.size
    return found, tuple(command.group[number] for number in excluded)


def rescale(replica: StageReplica, command: Clip | Damp, names: Sequence[str]) -> None:
    """Scale a register by the factor of ``command``."""
    values = replica.read(command.register, names)
    norm = norm_of(values)
    if isinstance(command, Clip):
        factor = min(1.0, command.max_norm / norm) if norm > 0 else 1.0
    else:
        factor = 1.0 / (1.0 + norm_of(replica.read(command.gap, names)) / norm) if norm > 0 else 1.0
    if factor != 1.0:
        replica.write(command.register, _scaled(values, factor))


def norm_of(values: Mapping[str, Array]) -> float:
    """The Euclidean norm of all numbers."""
    return float(np.sqrt(sum(float(np.vdot(array, array)) for array in values.values())))


def _scaled(values: Mapping[str, Array], factor: float) -> dict[str, Array]:
    return {name: array * array.dtype.type(factor) for name, array in values.items()}


def _keep_variance(
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
