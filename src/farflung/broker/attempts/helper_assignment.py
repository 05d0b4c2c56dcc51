"""Which helper helps which server of a hybrid plan.

The broker first asks an unreliable worker to help a server. Once the helper is ready, the servers of its stage learn its address,
and from then on they talk to each other directly, without relays. The chosen server sends it the states of the stage. The helper
also helps the other servers of the stage that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import asdict

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import HelpedRun
from farflung.cluster import Topology
from farflung.graph.cut import cut
from farflung.graph.opset import OPSET
from farflung.job import JobSpec
from farflung.messages.commands import AttemptMessage, Help, Helper, HelperGone
from farflung.messages.schema import Message
from farflung.protocol.broker import BrokerMachine
from farflung.protocol.hybrid.expected_helpers import stage_traffic, stage_work
from farflung.protocol.hybrid.server_choice import Server, best_move, choose_server, effective_speed

__all__ = ["HelperAssignment", "unreliable_of"]

#: Bytes per second of a link that was not measured.
_UNKNOWN = 125e6
#: The longest cause that servers receive.
_MAX_CAUSE = 1000


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a helper helps: the chosen server first, then the other servers of the ``stage``."""

    servers: tuple[str, ...]
    stage: int


def unreliable_of(job: JobSpec, topology: Topology | None) -> frozenset[str]:
    """Return the devices that a submitted topology marks as unreliable, if the job uses helpers."""
    if topology is None or not job.plan.helpers:
        return frozenset()
    return frozenset(device.name for device in topology.devices if not device.reliable)


class HelperAssignment:
    """The helpers of all runs. Every method is called under ``RunTable.changed``."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        machine: BrokerMachine,
        links: LinkTable,
        reachability: Reachability,
    ) -> None:
        self._send, self._machine, self._links, self._reachability = send, machine, links, reachability
        #: run -> helper -> place
        self._places: dict[str, dict[str, _Place]] = {}
        #: run -> helpers that have had a place in this attempt
        self._placed: dict[str, set[str]] = {}

    def ask(self, helped: HelpedRun, preparation: AttemptMessage | None, name: str) -> None:
        """Choose a server for the worker ``name`` and let it prepare with ``preparation``, that of the attempt.

        Raises:
            InputError: it can reach no server.
        """
        places = self._places.setdefault(helped.run, {})
        servers = self._servers(helped, name)
        chosen = self._planned(helped, name, servers) or choose_server(servers, self._machine.members[name].speed)
        others = tuple(one.name for one in servers if one.stage == chosen.stage and one.name != chosen.name)
        places[name] = _Place((chosen.name, *others), chosen.stage)
        assert preparation is not None
        command = Help(
            **asdict(preparation),
            relays={},
            device=name,
            server=chosen.name,
            stage=chosen.stage,
            addresses={one: self._address(name, one) for one in (chosen.name, *others)},
        )
        self._send(name, command)

    def ready(self, run: str, attempt: int, name: str) -> str:
        """Notify the servers that ``name`` is ready. Return a text for people (empty: it was released meanwhile)."""
        place = self._places.get(run, {}).get(name)
        members = self._machine.members
        if place is None or name not in members or place.servers[0] not in members:
            return ""
        servers, stage = [server for server in place.servers if server in members], place.stage
        for number, server in enumerate(servers):
            speed = members[name].speed / members[server].speed
            helper = Helper(
                run=run,
                attempt=attempt,
                name=name,
                stage=stage,
                speed=speed,
                address=self._address(server, name),
                fed=number == 0,
            )
            self._send(server, helper)
        return f"{name} helps {' and '.join(servers)} with stage {stage}"

    def gone(self, run: str, attempt: int, name: str, cause: str) -> str:
        """Notify the servers that ``name`` does not help any more. Return a text for people (empty: it had not begun)."""
        place = self._places.get(run, {}).pop(name, None)
        if place is None:
            return ""
        gone = HelperGone(run=run, attempt=attempt, name=name, cause=cause[:_MAX_CAUSE])
        for server in place.servers:
            self._send(server, gone)
        return f"{name} helps {' and '.join(place.servers)} no more: {cause}; its slices are computed by others"

    def move(self, helped: HelpedRun) -> str:
        """Return the helper that should help another stage (empty: none), so that helpers do not pile up on one stage."""
        members = self._machine.members
        places = {name: place for name, place in self._places.get(helped.run, {}).items() if name in members}
        seen = {name: self._servers(helped, name) for name in places}
        return best_move(
            seen, {name: members[name].speed for name in places}, {name: place.stage for name, place in places.items()}
        )

    def over(self, run: str) -> None:
        """The attempt of ``run`` is over."""
        self._places.pop(run, None)
        self._placed.pop(run, None)

    def _servers(self, helped: HelpedRun, name: str) -> list[Server]:
        planned = helped.planned
        assert planned is not None
        members, places = self._machine.members, self._places.get(helped.run, {})
        found = []
        strange = self._unsupported(helped, name)
        for stage in planned.plan.stages:
            if stage.index in strange:
                continue
            for replica in planned.plan.replicas_of(stage.index):
                server = replica.device
                able = self._reachability.can_dial(name, server) or self._reachability.can_dial(server, name)
                if server not in members or not able:
                    continue
                helping = [
                    one
                    for one, place in places.items()
                    if (place.servers[0], place.stage) == (server, stage.index) and one in members
                ]
                slices = len(replica.micro_batches)
                alone = Server(
                    name=server,
                    stage=stage.index,
                    bandwidth=self._bandwidth(name, server),
                    work=stage_work(planned.estimate, stage.index, slices),
                    power=members[server].speed,
                    traffic=stage_traffic(planned.estimate, stage.index, slices),
                    helpers=len(helping),
                )
                added = (
                    effective_speed(replace(alone, bandwidth=self._bandwidth(one, server)), members[one].speed) for one in helping
                )
                found.append(replace(alone, power=alone.power + sum(added)))
        return found

    def _planned(self, helped: HelpedRun, name: str, servers: Sequence[Server]) -> Server | None:
        """Return the server that the plan counts ``name`` with (``None``: it has been placed before, or cannot reach it)."""
        placed = self._placed.setdefault(helped.run, set())
        if helped.planned is None or name in placed:
            return None
        placed.add(name)
        wanted = helped.planned.helpers.get(name)
        return next((server for server in servers if (server.name, server.stage) == wanted), None)

    def _unsupported(self, helped: HelpedRun, name: str) -> frozenset[int]:
        """Return the stages that the engine of the worker ``name`` can't compute."""
        planned, graph, operators = helped.planned, helped.graph, self._machine.members[name].offer.operators
        if planned is None or graph is None or operators is None or OPSET.keys() <= operators:
            return frozenset()
        pieces = cut(graph, planned.plan.bounds)
        targets = [{graph.ops[position].target for position in piece.positions} for piece in pieces]
        return frozenset(index for index, needed in enumerate(targets) if not needed <= operators)

    def _bandwidth(self, name: str, server: str) -> float:
        """Return the bytes per second of the slower direction."""
        figures = [self._links.get(*direction) for direction in ((name, server), (server, name))]
        return min(_UNKNOWN if one is None else float(one.beta) for one in figures)

    def _address(self, source: str, target: str) -> str:
        """Return the address at which ``source`` dials ``target`` (empty: ``target`` dials)."""
        return self._machine.members[target].address if self._reachability.can_dial(source, target) else ""
