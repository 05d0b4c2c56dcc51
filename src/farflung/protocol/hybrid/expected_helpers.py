"""What helpers add to the stages of a plan: the bytes of a stage's slices, and the speed that remains after these transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farflung.cluster import Topology
from farflung.plan import Estimate, Plan
from farflung.protocol.hybrid.server_choice import Server, choose_server, effective_speed

__all__ = ["expected_helpers", "stage_traffic", "stage_work", "with_helpers"]

#: Bytes of a parameter and of its gradient on the way to a helper and back.
_FLOAT = 4.0


def stage_work(estimate: Estimate, stage: int, slices: int) -> float:
    """Return the FLOPs of the forwards and backwards of ``slices`` slices of ``stage``."""
    found = estimate.stages[stage]
    return (found.forward_flops + found.backward_flops) * slices


def stage_traffic(estimate: Estimate, stage: int, slices: int) -> float:
    """Return the bytes between a server of ``stage`` and a helper that computes ``slices`` slices of a step.

    A slice has its input, its output, both of their gradients, and a gradient of each parameter. The parameters come once.
    """
    values = sum(link.forward_bytes + link.backward_bytes for link in estimate.links if stage in (link.source, link.target))
    parameters = _FLOAT * estimate.stages[stage].parameters
    return slices * (values + parameters) + parameters


def expected_helpers(plan: Plan, estimate: Estimate, topology: Topology, unreliable: Sequence[str]) -> dict[str, Server]:
    """Return the server that each of ``unreliable`` would join, the fastest helper first.

    ``estimate``: of ``plan`` without helpers. ``topology``: of all devices.
    """
    helping: dict[tuple[str, int], list[float]] = {}
    found: dict[str, Server] = {}
    for name in sorted(unreliable, key=lambda name: (-float(topology.device(name).achieved), name)):
        servers = []
        for stage in plan.stages:
            for replica in plan.replicas_of(stage.index):
                added = helping.get((replica.device, stage.index), [])
                slices = len(replica.micro_batches)
                servers.append(
                    Server(
                        name=replica.device,
                        stage=stage.index,
                        bandwidth=min(_rate(topology, name, replica.device), _rate(topology, replica.device, name)),
                        work=stage_work(estimate, stage.index, slices),
                        power=float(topology.device(replica.device).achieved) + sum(added),
                        traffic=stage_traffic(estimate, stage.index, slices),
                        helpers=len(added),
                    )
                )
        speed = float(topology.device(name).achieved)
        chosen = found[name] = choose_server(servers, speed)
        helping.setdefault((chosen.name, chosen.stage), []).append(effective_speed(chosen, speed))
    return found


def with_helpers(servers: Topology, topology: Topology, helpers: Mapping[str, Server]) -> Topology:
    """Return ``servers``, each as fast as it is with those of ``helpers`` that it has. ``topology``: of all devices."""
    more = dict.fromkeys(servers.names, 0.0)
    for name, server in helpers.items():
        more[server.name] += effective_speed(server, float(topology.device(name).achieved))
    return servers.with_devices([replace(one, helped=1.0 + more[one.name] / float(one.achieved)) for one in servers.devices])


def _rate(topology: Topology, source: str, target: str) -> float:
    return float(topology.beta[topology.index(source), topology.index(target)])
