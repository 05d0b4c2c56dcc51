"""Steps of transformers under Megatron-LM and DeepSpeed, as cost models: the systems that DT-FM (section 4) compares itself with.

Megatron-LM (Narayanan et al. 2021): tensor parallel groups inside pipeline stages inside data parallel groups. Each layer sums
its activations over a tensor parallel group twice forward and twice backward. The pipeline is 1F1B, and gradients are summed over
each data parallel group at the end. The degrees are those with the shortest step that fits into memory.
ZeRO-3 (Rajbhandari et al. 2020): each device computes its samples with all layers. It gathers the parameters of each layer for
the forward and for the backward, and gradients are reduced to their owners. A step has as few passes as memory allows.
DeepSpeed with pipelines: as Megatron-LM without tensor parallelism. ZeRO-1 divides optimizer states over a data parallel group.
Collectives are rings over neighbors in the topology's order, at the pace of the slowest link: (n - 1) (alpha + M / (n beta)) for
a gather or a reduction, twice that for a sum. Both models favor these systems: transfers of ZeRO-3 and between stages overlap
with computing, and nothing else uses the links. Both systems recompute activations where memory requires it.
Cost: O(divisors of the devices squared), each a few NumPy calls over all devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology

__all__ = ["SystemStep", "TransformerWork", "megatron_step", "zero1_step", "zero3_step"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerWork:
    """A step of a transformer. FLOPs and bytes are those of one micro-batch.

    ``activations``: bytes between two layers, ``saved``: bytes that the backward needs. ``parameters``: bytes, ``states``: bytes
    of parameters, gradients and the optimizer together. ``heads``: the largest tensor parallel degree.
    """

    layers: int
    heads: int
    micro_batches: int
    forward: float
    backward: float
    activations: float
    saved: float
    parameters: float
    states: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStep:
    """A system's step in seconds, and its degrees of parallelism in words."""

    name: str
    seconds: float
    degrees: str


def megatron_step(work: TransformerWork, topology: Topology, most: int | None = None) -> SystemStep | None:
    """The shortest step of Megatron-LM on all devices (None: no degrees of parallelism fit).

    ``most``: the largest degree. DT-FM (section 10.2) searches degrees up to 8.
    """
    return _shortest("Megatron-LM", work, topology, (work.heads, most or len(topology)))


def zero1_step(work: TransformerWork, topology: Topology, most: int | None = None) -> SystemStep | None:
    """The shortest step of DeepSpeed's pipelines with ZeRO-1 on all devices (None: no degrees of parallelism fit)."""
    return _shortest("DeepSpeed, pipelines", work, topology, (1, most or len(topology)), sharded=True)


def _shortest(
    name: str, work: TransformerWork, topology: Topology, most: tuple[int, int], *, sharded: bool = False
) -> SystemStep | None:
    """``most``: the largest tensor parallel degree, and the largest degree. ``sharded``: optimizer states are divided."""
    count, (tensors, largest) = len(topology), most
    found: list[tuple[float, str]] = []
    for tensor in _divisors(count, min(tensors, largest)):
        for pipeline in _divisors(count // tensor, min(work.layers, largest)):
            data = count // tensor // pipeline
            if data <= largest and work.micro_batches % data == 0:
                seconds = _pipelined(work, topology, (pipeline, data, tensor), sharded=sharded)
                found.append((seconds, f"tensor {tensor}, pipeline {pipeline}, data {data}"))
    seconds, degrees = min(found, default=(math.inf, ""))
    return None if math.isinf(seconds) else SystemStep(name=name, seconds=seconds, degrees=degrees)


def zero3_step(work: TransformerWork, topology: Topology) -> SystemStep | None:
    """The step of ZeRO-3 on all devices (None: it does not fit)."""
    count, memory = len(topology), min(float(device.memory) for device in topology.devices)
    own = math.ceil(work.micro_batches / count)
    left = memory - work.states / count - 2 * work.parameters / work.layers
    for passes in range(1, own + 1):
        together = math.ceil(own / passes)
        full = together * work.saved <= left
        if not full and together * (work.layers * work.activations + work.saved / work.layers) > left:
            continue
        compute = together * (work.forward * (1 if full else 2) + work.backward) / float(topology.speeds.min())
        ring = np.arange(count)[None, :]
        transfer = 3 * (work.layers - 1) * _gather(topology, ring, 0.0) + 3 * _gather(topology, ring, work.parameters)
        degrees = f"data {count}, {passes} x {together} micro-batches"
        return SystemStep(name="ZeRO-3", seconds=passes * max(compute, transfer), degrees=degrees)
    return None


def _pipelined(work: TransformerWork, topology: Topology, degrees: tuple[int, int, int], *, sharded: bool) -> float:
    """Seconds with (pipeline, data, tensor) degrees; infinite: it does not fit. Ranks count tensor, data, pipeline."""
    pipeline, data, tensor = degrees
    grid = np.arange(len(topology)).reshape(degrees)
    memory = min(float(device.memory) for device in topology.devices)
    optimizer = work.states - 2 * work.parameters
    states = work.states - (optimizer * (1 - 1 / data) if sharded else 0.0)
    left = memory - states / (pipeline * tensor)
    saved, boundary = work.saved / (pipeline * tensor), work.activations * math.ceil(work.layers / pipeline)
    full = pipeline * saved <= left
    if not full and pipeline * boundary + saved * pipeline / work.layers > left:
        return math.inf
    flops = (work.forward * (1 if full else 2) + work.backward) / (pipeline * tensor)
    sums = (4 if full else 6) * work.layers / pipeline
    stage = flops / topology.speeds[grid].min(axis=(1, 2))
    if tensor > 1:
        stage = stage + sums * 2 * _gather_each(topology, grid.reshape(-1, tensor), work.activations).reshape(pipeline, data).max(
            1
        )
    hops = _hops(topology, grid, work.activations / tensor)
    count = work.micro_batches // data
    slowest = max(float(stage.max()), float(hops.max(initial=0.0)))
    exchange = 0.0
    if data > 1:
        groups = grid.transpose(0, 2, 1).reshape(-1, data)
        exchange = 2 * _gather(topology, groups, work.parameters / (pipeline * tensor))
    return float(stage.sum() + 2 * hops.sum() + (count - 1) * slowest + exchange)


def _hops(topology: Topology, grid: npt.NDArray[np.int64], nbytes: float) -> Array:
    """Seconds of the slowest transfer between each two neighboring stages."""
    here, there = grid[:-1], grid[1:]
    seconds = topology.alpha[here, there] + nbytes / topology.beta[here, there]
    slowest: Array = np.asarray(seconds, dtype=np.float64).max(axis=(1, 2), initial=0.0)
    return slowest


def _gather(topology: Topology, groups: npt.NDArray[np.int64], nbytes: float) -> float:
    """Seconds in which every group has gathered ``nbytes`` by rings."""
    return float(_gather_each(topology, groups, nbytes).max())


def _gather_each(topology: Topology, groups: npt.NDArray[np.int64], nbytes: float) -> Array:
    size = groups.shape[1]
    if size == 1:
        return np.zeros(len(groups))
    there = np.roll(groups, -1, axis=1)
    links = topology.alpha[groups, there] + nbytes / size / topology.beta[groups, there]
    return np.asarray((size - 1) * links.max(axis=1), dtype=np.float64)


def _divisors(number: int, most: int) -> Iterator[int]:
    return (one for one in range(1, min(number, most) + 1) if number % one == 0)
