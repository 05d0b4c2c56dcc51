"""Hybrid-PS: stages of reliable servers, their order, front and back servers, clients, and layers.

Source: Hybrid-PS section 3.3, equations (1) to (3). Reliable devices are clustered from the top down while the pipeline time (2)
falls; clusters are ordered by an open tour over mean edges; a server is a front server if it is nearer to the previous stage,
else a back server, and both kinds have one at least; unreliable devices join the stage with the least mean delay; layers go
to stages by power. The text models no memory; here a client that cannot hold its stage's parameters is left out.

What differs. Equation (3) as printed divides the whole cluster's time by the number of stages once more than power allows, so
it promises more than the cluster's speed; ``text_form`` keeps it. The default prices clusters by equation (1), with the hops
inside a stage that the text leaves out while clustering. Then only memory, which the text does not model, and slow links
inside a stage are reasons for more stages. The tour is exact up to 13 stages where the text anneals. Splits
follow DIANA (the device that is farthest on average leaves, and takes along those that are nearer to it). O(n^3) for n
reliable devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from farflung.cluster import Topology
from farflung.errors import InputError, PlanError
from farflung.planners.grid.tours import open_tour

__all__ = ["HybridPsPlan", "HybridPsStage", "HybridPsWork", "plan_hybrid_ps", "score_hybrid_ps"]

Array = npt.NDArray[np.float64]
Cluster = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPsWork:
    """What is trained: ``flops`` of a whole batch (forward and backward), ``mini_batches`` in it (d), ``layers``, and
    ``message`` bytes of a mini-batch's activations between two stages (t B / d). ``parameters``: bytes that all layers take on a
    device (each device of a stage holds the stage's share). ``text_form``: equation (3) as printed.
    """

    flops: float
    message: float
    mini_batches: int
    layers: int
    parameters: float = 0.0
    text_form: bool = False

    def __post_init__(self) -> None:
        for key in ("flops", "message", "mini_batches", "layers"):
            if not getattr(self, key) > 0:
                raise InputError(f"{key} must be more than 0, got {getattr(self, key)!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPsStage:
    """Device indices of one stage. ``front`` and ``back`` servers (a single server is both), ``clients``, and how many layers."""

    front: Cluster
    back: Cluster
    clients: Cluster
    layers: int

    @property
    def servers(self) -> Cluster:
        """Front and back servers, each once."""
        return tuple(sorted({*self.front, *self.back}))


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPsPlan:
    """Stages in pipeline order, and ``seconds`` of a batch by equation (2) with (1) for each stage."""

    stages: tuple[HybridPsStage, ...]
    seconds: float


def plan_hybrid_ps(topology: Topology, work: HybridPsWork) -> HybridPsPlan:
    """The plan of section 3.3 for the topology's reliable and unreliable devices.

    Raises:
        PlanError: no device is reliable, or the parameters fit no number of stages.
    """
    servers = tuple(i for i, device in enumerate(topology.devices) if device.reliable)
    if not servers:
        raise PlanError("Hybrid-PS needs a reliable device for each stage, and none is; mark one with reliable = true")
    delay = np.asarray(topology.alpha) + work.message / np.asarray(topology.beta)
    clusters, best, least = [servers], [servers], np.inf
    while True:
        seconds = _clustered_seconds(topology, work, delay, clusters)
        if np.isfinite(least) and seconds >= least:
            break
        if np.isfinite(seconds):
            best, least = clusters, seconds
        if len(clusters) == min(len(servers), work.layers):
            break
        clusters = _split(delay + delay.T, clusters)
    plan = score_hybrid_ps(topology, work, best)
    if not np.isfinite(least):
        raise PlanError(
            f"no number of stages up to {len(clusters)} holds {work.parameters:.3g} bytes of parameters on these devices; "
            "add reliable devices, or leave out those with little memory"
        )
    return plan


def score_hybrid_ps(topology: Topology, work: HybridPsWork, clusters: Sequence[Cluster]) -> HybridPsPlan:
    """The plan for given clusters of reliable devices: their order, roles, clients, layers, and the time of a batch.

    Clients that cannot hold their stage's parameters are left out. The time is infinite if a server cannot.

    Raises:
        PlanError: there are more clusters than layers.
    """
    if len(clusters) > work.layers:
        raise PlanError(f"{len(clusters)} stages need a layer each, and the model has {work.layers}; give fewer clusters")
    delay = np.asarray(topology.alpha) + work.message / np.asarray(topology.beta)
    ordered = _ordered(delay, clusters)
    clients: list[list[int]] = [[] for _ in ordered]
    for i, device in enumerate(topology.devices):
        if not device.reliable:
            clients[int(np.argmin([delay[list(cluster), i].mean() for cluster in ordered]))].append(i)
    while True:  # without a client, its stage has less power and gets fewer layers, and others get more
        power = np.array([topology.speeds[[*cluster, *own]].sum() for cluster, own in zip(ordered, clients, strict=True)])
        layers = _shares(power, work.layers)
        needs = [work.parameters * count / work.layers for count in layers]
        able = [[i for i in own if topology.memory[i] >= need] for own, need in zip(clients, needs, strict=True)]
        if able == clients:
            break
        clients = able
    stages = []
    for k, cluster in enumerate(ordered):
        front, back = _roles(delay, ordered, k)
        stages.append(HybridPsStage(front=front, back=back, clients=tuple(clients[k]), layers=layers[k]))
        assert set(cluster) == set(stages[-1].servers)
    return HybridPsPlan(stages=tuple(stages), seconds=_batch_seconds(topology, work, delay, stages))


def _batch_seconds(topology: Topology, work: HybridPsWork, delay: Array, stages: Sequence[HybridPsStage]) -> float:
    """Equation (2): mini-batches times the slowest stage with its links to both neighbours."""
    links = [_mean(delay, a.back, b.front) for a, b in pairwise(stages)]
    hops = [0.0, *links, 0.0]
    spent = [hops[k] + hops[k + 1] + _stage_seconds(topology, work, stage) for k, stage in enumerate(stages)]
    fits = all(
        topology.memory[[*stage.servers, *stage.clients]].min() >= work.parameters * stage.layers / work.layers
        for stage in stages
    )
    return work.mini_batches * max(spent) if fits else float("inf")


def _stage_seconds(topology: Topology, work: HybridPsWork, stage: HybridPsStage) -> float:
    """Equation (1) with slices by power: a client uses the two servers nearest to it, a server any pair of front and back."""
    alpha, beta, speeds = topology.alpha, topology.beta, topology.speeds
    total = float(speeds[[*stage.servers, *stage.clients]].sum())
    worst = 0.0
    for i in (*stage.front, *stage.clients):
        slice_bytes = work.message * float(speeds[i]) / total
        out = [float(alpha[i, k] + slice_bytes / beta[i, k]) for k in stage.back]
        into = [float(alpha[j, i] + slice_bytes / beta[j, i]) for j in stage.front]
        worst = max(worst, min(into) + min(out) if i in stage.clients else max(out))
    return worst + work.flops / work.mini_batches * stage.layers / work.layers / total


def _clustered_seconds(topology: Topology, work: HybridPsWork, delay: Array, clusters: Sequence[Cluster]) -> float:
    """Equation (2) while clustering."""
    scored = score_hybrid_ps(topology, work, clusters).seconds
    if not work.text_form or not np.isfinite(scored):
        return scored
    ordered = _ordered(delay, clusters)
    links = [0.0, *(_mean(delay, a, b) for a, b in pairwise(ordered)), 0.0]
    reliable = float(topology.speeds[[i for cluster in clusters for i in cluster]].sum())
    inside = work.flops / (work.mini_batches * len(clusters) * reliable)
    return work.mini_batches * max(links[k] + links[k + 1] + inside for k in range(len(ordered)))


def _mean(delay: Array, sources: Sequence[int], targets: Sequence[int]) -> float:
    return float(delay[np.ix_(list(sources), list(targets))].mean())


def _ordered(delay: Array, clusters: Sequence[Cluster]) -> list[Cluster]:
    cost = np.array([[_mean(delay, a, b) + _mean(delay, b, a) for b in clusters] for a in clusters])
    np.fill_diagonal(cost, 0.0)
    order = open_tour(cost)[1]
    # either direction costs the same: begin with the cluster that has the first device
    order = order if clusters[order[0]] <= clusters[order[-1]] else order[::-1]
    return [clusters[i] for i in order]


def _roles(delay: Array, ordered: Sequence[Cluster], k: int) -> tuple[Cluster, Cluster]:
    """Front and back servers of stage k; at an end of the pipeline only the neighbour that exists counts."""
    cluster = ordered[k]
    if len(cluster) == 1:
        return cluster, cluster
    far = np.full(len(cluster), np.inf)
    before = delay[np.ix_(list(ordered[k - 1]), list(cluster))].mean(axis=0) if k > 0 else far
    after = delay[np.ix_(list(cluster), list(ordered[k + 1]))].mean(axis=1) if k + 1 < len(ordered) else far
    nearer = before <= after if k + 1 < len(ordered) or k > 0 else np.arange(len(cluster)) < len(cluster) // 2
    if nearer.all():
        nearer[int(np.argmax(before))] = False
    elif not nearer.any():
        nearer[int(np.argmax(after))] = True
    front = tuple(i for i, near in zip(cluster, nearer, strict=True) if near)
    return front, tuple(i for i, near in zip(cluster, nearer, strict=True) if not near)


def _split(weight: Array, clusters: Sequence[Cluster]) -> list[Cluster]:
    """The cluster with the longest edge in two (DIANA)."""
    spans = [weight[np.ix_(cluster, cluster)][~np.eye(len(cluster), dtype=bool)].max(initial=-1.0) for cluster in clusters]
    widest = int(np.argmax(spans))
    stay, leave = list(clusters[widest]), list[int]()
    while len(stay) > 1:
        gain = []
        for i in stay:
            home = float(np.mean([weight[i, j] for j in stay if j != i]))
            gain.append(home - (float(np.mean([weight[i, j] for j in leave])) if leave else 0.0))
        first = int(np.argmax(gain))
        if leave and gain[first] <= 0:
            break
        leave.append(stay.pop(first))
    return [*clusters[:widest], tuple(stay), tuple(sorted(leave)), *clusters[widest + 1 :]]


def _shares(power: Array, layers: int) -> list[int]:
    """Whole layers in proportion to power (largest remainders), one at least."""
    exact = power / power.sum() * layers
    result = np.maximum(np.floor(exact).astype(int), 1)
    while result.sum() > layers:
        result[int(np.argmax(np.where(result > 1, result - exact, -np.inf)))] -= 1
    while result.sum() < layers:
        result[int(np.argmax(exact - result))] += 1
    return [int(count) for count in result]
