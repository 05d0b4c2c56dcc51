"""Who helps whom: the broker tells an unreliable worker which server of a hybrid plan to help, and that server who helps it.

A helper is told first; once it is ready, the servers of its stage are told, and from then on they deal with each other. They need
a way without relays. The chosen server sends it the stage's states; it helps the stage's other ones, too, where it can.
Thread-safe by the lock of ``Runs``, under which everything here is called.
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.broker.links.reachability import Reaching
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import LiveRun
from farflung.cluster import Topology
from farflung.job import JobSpec
from farflung.protocol.broker import BrokerMachine
from farflung.protocol.joining import Server, choose_server
from farflung.wire.frames import Frame

__all__ = ["Assisting", "unreliable_of"]

#: Bytes per second where nobody has measured.
_UNKNOWN = 125e6


def unreliable_of(job: JobSpec, topology: Topology | None) -> frozenset[str]:
    """The devices that a submitted topology marks as unreliable, where the job makes a difference."""
    if topology is None or not job.plan.helpers:
        return frozenset()
    return frozenset(device.name for device in topology.devices if not device.reliable)


class Assisting:
    """The helpers of all runs."""

    def __init__(self, send: Callable[[str, Frame], None], machine: BrokerMachine, links: LinkTable, reaching: Reaching) -> None:
        self._send, self._machine, self._links, self._reaching = send, machine, links, reaching
        #: run -> helper -> (servers, the one that was chosen first; stage)
        self._places: dict[str, dict[str, tuple[tuple[str, ...], int]]] = {}

    def ask(self, live: LiveRun, name: str) -> None:
        """Choose a server for ``name`` and let it get ready.

        Raises:
            InputError: it can reach none.
        """
        held = self._places.setdefault(live.run, {})
        servers = self._servers(live, name)
        chosen = choose_server(servers)
        others = tuple(one.name for one in servers if one.stage == chosen.stage and one.name != chosen.name)
        held[name] = ((chosen.name, *others), chosen.stage)
        assert live.preparation is not None
        where = {
            "device": name,
            "server": chosen.name,
            "stage": chosen.stage,
            "addresses": {one: self._way(name, one) for one in (chosen.name, *others)},
        }
        frame = live.preparation
        self._send(name, Frame("help", {**frame.header, "relays": {}, **where}, frame.sections))

    def ready(self, live: LiveRun, name: str) -> str:
        """``name`` is ready: tell its server; what to tell people (empty: it was given up meanwhile)."""
        place = self._places.get(live.run, {}).get(name)
        members = self._machine.members
        if place is None or name not in members or place[0][0] not in members:
            return ""
        servers, stage = [server for server in place[0] if server in members], place[1]
        for number, server in enumerate(servers):
            speed = members[name].speed / members[server].speed
            told = {"name": name, "stage": stage, "speed": speed, "address": self._way(server, name), "fed": number == 0}
            self._send(server, Frame("helper", {"run": live.run, "attempt": live.attempt, **told}))
        return f"{name} helps {' and '.join(servers)} with stage {stage}"

    def gone(self, live: LiveRun, name: str, cause: str) -> str:
        """``name`` helps no more: tell its server; what to tell people (empty: it had not begun)."""
        place = self._places.get(live.run, {}).pop(name, None)
        if place is None:
            return ""
        frame = Frame("helper_gone", {"run": live.run, "attempt": live.attempt, "name": name, "cause": cause[:1000]})
        for server in place[0]:
            self._send(server, frame)
        return f"{name} helps {' and '.join(place[0])} no more: {cause}; its slices are computed by others"

    def over(self, run: str) -> None:
        """The attempt is over."""
        self._places.pop(run, None)

    def _servers(self, live: LiveRun, name: str) -> list[Server]:
        assert live.planned is not None
        members, held = self._machine.members, self._places.get(live.run, {})
        found = []
        for stage, estimate in ((stage, live.planned.estimate.stages[stage.index]) for stage in live.planned.plan.stages):
            for replica in live.planned.plan.replicas_of(stage.index):
                server = replica.device
                able = self._reaching.can_dial(name, server) or self._reaching.can_dial(server, name)
                if server not in members or not able:
                    continue
                helping = [
                    one for one, place in held.items() if (place[0][0], place[1]) == (server, stage.index) and one in members
                ]
                flops = estimate.forward_flops + estimate.backward_flops
                found.append(
                    Server(
                        name=server,
                        stage=stage.index,
                        bandwidth=self._bandwidth(name, server),
                        work=flops * len(replica.micro_batches),
                        power=members[server].speed + sum(members[one].speed for one in helping),
                        helpers=len(helping),
                    )
                )
        return found

    def _bandwidth(self, name: str, server: str) -> float:
        ways = [self._links.get(*ends) for ends in ((name, server), (server, name))]
        return min(_UNKNOWN if way is None else float(way.beta) for way in ways)

    def _way(self, source: str, target: str) -> str:
        """The address at which ``source`` dials ``target`` (empty: it is dialled)."""
        return self._machine.members[target].address if self._reaching.can_dial(source, target) else ""
