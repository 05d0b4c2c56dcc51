"""In which order gradients are added, and who adds them: the policies of ``gradient_sums``.

``JobOrder``: a colocated sharded parameter server (DT-FM, equation (2)), with the order of addition made part of the job. The
uses of a stage's parameters are packed into buckets; each bucket has a server among the replicas, balanced by bytes. A replica
sends a bucket's sum over each of its virtual replicas; the first replica, whose micro-batches come first anyway, sends one sum
over all of its own. The server adds them in the job's order and sends the total to all. So the result depends neither on the
number of replicas nor on who arrives first (DESIGN invariant 1). Cost per step and replica: its gradients once (or once per
virtual replica) up, and the totals down.

``RouteOrder``: sums by servers, a ring or a tree, as ``farflung.sync.reductions`` lays them out. The uses, laid end to end, are
cut into pieces; of each a replica adds what its neighbors have added to its own sum, in the order of ranks, and passes it on.
Replicas end with the same bits; another plan adds in another order and differs by rounding. Cost: ``reductions.transfers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from farflung.errors import WireError
from farflung.graph.ir import TensorSpec, Use
from farflung.messages.data import PartialSum, Total
from farflung.plan.buckets import buckets_of, parts_of, trained_uses
from farflung.step.reduction.pieces import GradientPiece
from farflung.step.run_setup import RunSetup
from farflung.sync.reductions import Route, runs_of

__all__ = [
    "AddOrder",
    "JobOrder",
    "PartEnd",
    "Role",
    "RouteOrder",
    "StageUses",
    "add_order",
    "job_order",
    "route_order",
    "uses_of",
]


class PartEnd(Enum):
    """What ends with a backward: nothing, a part that is added here, the whole sum (of a stage without replicas), or a part
    that the group adds."""

    NONE = auto()
    OWN = auto()
    WHOLE = auto()
    SENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """This worker's part in one piece.

    ``collector``: the device that adds this worker's parts. ``adds``: the numbers of the parts that are added here, in this order
    (empty: nothing is). ``up``: the device that gets what was added here; ``None``: that is the total already, or nothing was
    added. ``down``: the devices that get the total from here.
    """

    collector: str
    adds: tuple[int, ...]
    up: str | None
    down: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUses:
    """The uses through which a stage's parameters are trained, in the order that all replicas share, and their specs."""

    uses: tuple[Use, ...]
    specs: tuple[TensorSpec, ...]


class AddOrder(Protocol):
    """Who adds which part of which piece, and in which order. All of it follows from plan and job."""

    @property
    def device(self) -> str:
        """This worker's."""

    @property
    def stages(self) -> Mapping[int, StageUses]:
        """The own stages that have replicas."""

    @property
    def pieces(self) -> Mapping[int, tuple[GradientPiece, ...]]:
        """The pieces of each of ``stages``, the same on every replica."""

    @property
    def in_place(self) -> bool:
        """Whether the own sum stays here, so that totals are written over it (else other devices add the own parts)."""

    @property
    def waits(self) -> bool:
        """Whether the compute thread waits while the queue of a link is full."""

    def ends(self, stage: int, micro_batch: int) -> PartEnd:
        """What the backward of ``micro_batch`` ends."""

    def slot(self, stage: int, end: int) -> int:
        """The number of the own part that ends before micro-batch ``end``."""

    def role(self, stage: int, number: int) -> Role:
        """The own part in piece ``number`` of ``stage``."""

    def check_part(self, peer: str, part: PartialSum) -> None:
        """Check that ``peer`` sends ``part`` here.

        Raises:
            WireError: it does not.
        """

    def check_total(self, peer: str, total: Total) -> None:
        """Check that ``peer`` sends ``total`` here.

        Raises:
            WireError: it does not.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """The exact order. ``servers``: of each piece. ``parts``: (device, end) of each stage, in the order of addition.
    ``virtual_ends``: where the job's virtual replicas end. ``single``: the first replica sends single parts, too."""

    device: str
    stages: Mapping[int, StageUses]
    pieces: Mapping[int, tuple[GradientPiece, ...]]
    servers: Mapping[int, tuple[str, ...]]
    devices: Mapping[int, tuple[str, ...]]
    parts: Mapping[int, tuple[tuple[str, int], ...]]
    virtual_ends: frozenset[int]
    last_ends: Mapping[int, int]
    micro_batches: int
    in_place: bool = False
    waits: bool = True
    single: bool = False

    def ends(self, stage: int, micro_batch: int) -> PartEnd:
        """A part ends with each virtual replica; those of the first replica are added here."""
        end = micro_batch + 1
        if end not in self.virtual_ends:  # the engine adds micro-batches inside a virtual replica
            return PartEnd.NONE
        plain = len(self.virtual_ends) == self.micro_batches  # adding one micro-batch after the other is the order already
        # The first replica's virtual replicas come first in the order, so it may add them before it sends anything.
        if self.devices[stage][0] == self.device and end != self.last_ends[stage] and not (self.single and stage in self.stages):
            return PartEnd.NONE if plain else PartEnd.OWN
        if stage not in self.stages:
            return PartEnd.NONE if plain else PartEnd.WHOLE
        return PartEnd.SENT

    def slot(self, stage: int, end: int) -> int:
        """Parts are numbered by the micro-batch before which they end."""
        return end

    def role(self, stage: int, number: int) -> Role:
        """The server adds all parts; everybody else only sends and gets the total."""
        server = self.servers[stage][number]
        serves = server == self.device
        return Role(
            collector=server,
            adds=tuple(end for _, end in self.parts[stage]) if serves else (),
            up=None,
            down=tuple(device for device in self.devices[stage] if device != self.device) if serves else (),
        )

    def check_part(self, peer: str, part: PartialSum) -> None:
        """Parts come to the bucket's server."""
        if self._server(part) != self.device or (peer, part.part) not in self.parts[part.stage]:
            raise WireError(f"{peer} has no part {part.part} of bucket {part.bucket} of stage {part.stage} to send here")

    def check_total(self, peer: str, total: Total) -> None:
        """Totals come from the bucket's server."""
        if self._server(total) != peer:
            raise WireError(f"{peer} has no total of bucket {total.bucket} of stage {total.stage} to send here")

    def _server(self, message: PartialSum | Total) -> str:
        servers = self.servers.get(message.stage, ())
        if message.bucket >= len(servers):
            raise WireError(f"stage {message.stage} has {len(servers)} buckets to exchange here, not number {message.bucket}")
        return servers[message.bucket]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOrder:
    """Order by rank along the plan's routes. ``routes``: the route of each piece. ``last_ends``: where the own replica ends."""

    device: str
    stages: Mapping[int, StageUses]
    pieces: Mapping[int, tuple[GradientPiece, ...]]
    routes: Mapping[int, tuple[Route, ...]]
    devices: Mapping[int, tuple[str, ...]]
    last_ends: Mapping[int, int]
    in_place: bool = True
    waits: bool = False  # frames hold sums that stay until the step ends

    def ends(self, stage: int, micro_batch: int) -> PartEnd:
        """The own sum is whole after the last backward."""
        return PartEnd.SENT if stage in self.stages and micro_batch + 1 == self.last_ends[stage] else PartEnd.NONE

    def slot(self, stage: int, end: int) -> int:
        """Parts are numbered by rank."""
        return self.devices[stage].index(self.device)

    def role(self, stage: int, number: int) -> Role:
        """Add the own sum and those of the children, in this order; pass it on."""
        route, devices = self.routes[stage][number], self.devices[stage]
        rank = devices.index(self.device)
        return Role(
            collector=self.device,
            adds=(rank, *route.adds(rank)),  # the own sum first, then the children by rank: the same bits for every arrival
            up=None if route.up[rank] < 0 else devices[route.up[rank]],
            down=tuple(devices[child] for child in route.passes_to(rank)),
        )

    def check_part(self, peer: str, part: PartialSum) -> None:
        """Partial sums come up the piece's route. The sender's rank is the part."""
        route, own, other = self._place(peer, part)
        if route.up[other] != own or part.part != other:
            raise WireError(f"{peer} has no part {part.part} of piece {part.bucket} of stage {part.stage} to send here")

    def check_total(self, peer: str, total: Total) -> None:
        """Totals come down the piece's route."""
        route, own, other = self._place(peer, total)
        if route.down[own] != other:
            raise WireError(f"{peer} has no total of piece {total.bucket} of stage {total.stage} to send here")

    def _place(self, peer: str, message: PartialSum | Total) -> tuple[Route, int, int]:
        """The piece's route, this worker's rank, and the rank of ``peer``."""
        routes, devices = self.routes.get(message.stage, ()), self.devices.get(message.stage, ())
        if message.bucket >= len(routes) or peer not in devices:
            which = f"number {message.bucket} of {peer} is none of them"
            raise WireError(f"stage {message.stage} has {len(routes)} pieces to sum here, {which}")
        return routes[message.bucket], devices.index(self.device), devices.index(peer)


def add_order(setup: RunSetup) -> AddOrder:
    """Return the job's order, or that of the plan's routes where the job allows any order."""
    return job_order(setup) if all(stage.adds is None for stage in setup.plan.stages) else route_order(setup)


def job_order(setup: RunSetup) -> JobOrder:
    """The exact order of ``setup``'s run; with a sync strategy nothing is summed here."""
    stages = {} if setup.plan.sync is not None else uses_of(setup)
    pieces, servers = {}, {}
    for stage, of_stage in stages.items():
        places = {use: index for index, use in enumerate(of_stage.uses)}
        buckets = buckets_of(setup.graph, setup.subgraphs[stage], setup.job.optimizer, setup.plan.stages[stage].devices)
        servers[stage] = tuple(bucket.server for bucket in buckets)
        pieces[stage] = tuple(
            GradientPiece(
                runs=tuple((places[use], 0, spec.numel) for use, spec in zip(bucket.uses, bucket.specs, strict=True)),
                specs=bucket.specs,
                states=tuple(use.state for use in bucket.uses),
            )
            for bucket in buckets
        )
    parts = {}
    for stage in stages:
        replicas = setup.plan.replicas_of(stage)
        ends = parts_of(replicas, setup.job.virtual_ends, single=setup.job.verify.share > 0)
        # Replicas hold consecutive virtual replicas, so this is the job's order of addition.
        parts[stage] = tuple((replica.device, end) for replica, own in zip(replicas, ends, strict=True) for end in own)
    return JobOrder(
        device=setup.device,
        stages=stages,
        pieces=pieces,
        servers=servers,
        devices={stage: setup.plan.stages[stage].devices for stage in setup.own_stages},
        parts=parts,
        virtual_ends=frozenset(setup.job.virtual_ends),
        last_ends=_last_ends(setup),
        micro_batches=setup.job.micro_batches,
        single=setup.job.verify.share > 0,
    )


def route_order(setup: RunSetup) -> RouteOrder:
    """The order of the routes that ``setup``'s plan chose for each stage."""
    stages = uses_of(setup)
    pieces, routes = {}, {}
    for stage, of_stage in stages.items():
        reduction, members = setup.plan.stages[stage].adds, len(setup.plan.stages[stage].devices)
        assert reduction is not None
        count = reduction.count(members, sum(spec.nbytes for spec in of_stage.specs))
        cuts = runs_of([spec.numel for spec in of_stage.specs], count)
        routes[stage] = tuple(reduction.route(number, members) for number in range(len(cuts)))
        pieces[stage] = tuple(
            GradientPiece(
                runs=runs,
                specs=tuple(TensorSpec(dtype=of_stage.specs[index].dtype, shape=(stop - start,)) for index, start, stop in runs),
                states=tuple(of_stage.uses[index].state for index, _, _ in runs),
            )
            for runs in cuts
        )
    return RouteOrder(
        device=setup.device,
        stages=stages,
        pieces=pieces,
        routes=routes,
        devices={stage: setup.plan.stages[stage].devices for stage in setup.own_stages},
        last_ends=_last_ends(setup),
    )


def uses_of(setup: RunSetup) -> dict[int, StageUses]:
    """Of the own stages that have replicas."""
    found = {}
    for stage in setup.own_stages:
        if len(setup.plan.stages[stage].devices) > 1:
            uses = tuple(trained_uses(setup.graph, setup.subgraphs[stage], setup.job.optimizer))
            found[stage] = StageUses(uses=uses, specs=tuple(setup.graph.state[use.state].spec for use in uses))
    return found


def _last_ends(setup: RunSetup) -> dict[int, int]:
    """Where the micro-batches of the own replica of each stage end."""
    return {
        stage: next(replica.end for replica in setup.plan.replicas_of(stage) if replica.device == setup.device)
        for stage in setup.own_stages
    }
