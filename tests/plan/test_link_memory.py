"""What links remember stands in plans, is counted, and is refused where it can't be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farflung.cluster import Device, Topology
from farflung.errors import InputError, PlanError
from farflung.graph import Graph
from farflung.graph.builder import GraphBuilder
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.plan import Plan, check_memory, check_plan, estimate
from farflung.plan.link_memory import link_memory, routes_of
from farflung.planners import get_planner
from farflung.units import Bytes, FlopsPerSecond

ROWS, WIDTH = 8, 64


def graph() -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(4):
        value = builder.add(f"fc{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH, bias=False)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


def job(steps: int = 10, **codec: object) -> JobSpec:
    return make_job(
        {
            "steps": steps,
            "micro_batch_sizes": [ROWS, ROWS],
            "codec": {"name": "int4", "memory": "both"} | codec,
            "plan": {"planner": "equal_number"},
            "data": {"kind": "caller"},
        }
    )


def topology(memory: float = 1e9) -> Topology:
    devices = [Device(name=name, memory=Bytes(memory), speed=FlopsPerSecond(1e9)) for name in "ab"]
    return Topology.from_matrices(np.zeros((2, 2)), np.full((2, 2), 1e6), devices)


def plan(wanted: JobSpec) -> Plan:
    return get_planner("equal_number").plan(graph(), topology(), job=wanted)


def test_plans_say_what_is_remembered_in_each_direction() -> None:
    for memory, there, back in (
        ("none", "", ""),
        ("difference", "difference", ""),
        ("error_feedback", "", "error_feedback"),
        ("both", "difference", "error_feedback"),
    ):
        found = plan(job(memory=memory))
        assert [(link.activations.memory, link.gradients.memory) for link in found.links] == [(there, back)]
        assert Plan.from_json(found.to_json()) == found
        assert ("memory" in found.to_json()) == (memory != "none")
    assert str(plan(job()).links[0].activations) == "int4 with difference"


def test_memory_is_counted_and_bounded() -> None:
    """The sender twice, because checkpoints copy; differences at both ends."""
    sample = 4 * WIDTH
    for steps, memory_bytes in ((10, 1e9), (10_000, 1e6)):
        wanted = job(steps, memory_bytes=memory_bytes)
        made = plan(wanted)
        pieces = check_plan(made, graph(), topology(), wanted)
        taken = {device: nbytes for (_, device), nbytes in link_memory(made, pieces, wanted).items()}
        table = min(steps * 2 * ROWS * sample, memory_bytes / 3)  # b: what it receives, and twice what it sends
        assert taken == {"a": pytest.approx(2 * table), "b": pytest.approx(3 * table)}
        with_memory = estimate(graph(), made, topology(), wanted)
        without = estimate(graph(), plan(job(memory="none")), topology(), wanted)
        more = [one.memory_bytes - other.memory_bytes for one, other in zip(with_memory.devices, without.devices, strict=True)]
        assert more == [pytest.approx(taken["a"]), pytest.approx(taken["b"])]
        assert {route.value for route in routes_of(made, pieces)} == {"fc1"}


def test_a_device_without_memory_for_it_is_refused() -> None:
    wanted = job(100_000)
    small = topology(5e6)
    with pytest.raises(PlanError, match=r"it lacks .* \(most is samples: .* with less state, or lower codec.memory_bytes"):
        check_memory(estimate(graph(), plan(job()), small, wanted))


def test_a_memory_of_the_wrong_direction_is_refused() -> None:
    made = plan(job())
    link = made.links[0]
    wrong = replace(made, links=(replace(link, activations=link.gradients),))
    with pytest.raises(PlanError, match="the memory 'error_feedback' is none of the known '' and 'difference' there"):
        check_plan(wrong, graph(), topology(), job())


def test_codecs_that_can_not_remember_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"codec.memory = 'both' with codec.name = 'identity': it needs a codec that drops"):
        job(name="identity")
    with pytest.raises(InputError, match="remove memory, or choose another codec"):
        job(name="lowrank")
