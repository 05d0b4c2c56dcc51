"""A helper gets only stages whose operators its engine supports, and begins where the plan counts it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts.helper_assignment import HelperAssignment
from farflung.errors import InputError
from farflung.graph.opset import OPSET
from farflung.job.spec import JobSpec
from farflung.messages.commands import AttemptMessage, CopyRounds
from farflung.plan import estimate
from farflung.planners import get_planner
from farflung.protocol.events import Offer
from farflung.protocol.members import Member
from tests.support.plans.chains import chain, network


def ask(operators: frozenset[str] | None) -> None:
    """Ask a helper whose engine supports ``operators``."""
    graph, topology, job = chain((8, 8, 8), rows=4), network(0, 2), JobSpec(micro_batch_sizes=(4, 4))
    plan = get_planner("equal_number").plan(graph, topology, job=job)
    planned = SimpleNamespace(plan=plan, estimate=estimate(graph, plan, topology, job), helpers={})
    helped: Any = SimpleNamespace(run="run", planned=planned, graph=graph)
    offers = {
        **dict.fromkeys(plan.devices, Offer(memory=1e9, speed=1e9)),
        "helper": Offer(memory=1e9, speed=1e9, operators=operators),
    }
    machine: Any = SimpleNamespace(members={name: Member(name=name, address="x", offer=offer) for name, offer in offers.items()})
    reachability: Any = SimpleNamespace(can_dial=lambda source, target: True)
    links: Any = SimpleNamespace(get=lambda source, target: None)
    assignment = HelperAssignment(lambda name, message: None, machine, links, reachability)
    assignment.ask(helped, None, "helper")


def test_a_helper_whose_engine_lacks_an_operator_reaches_no_server() -> None:
    for operators in (None, frozenset(OPSET)):
        with pytest.raises(AssertionError):  # a server is chosen; the attempt, which has no preparation here, comes after that
            ask(operators)
    with pytest.raises(InputError, match="a helper needs a server to join, and can reach none"):
        ask(frozenset({"farflung.input"}))


def test_a_helper_begins_where_the_plan_counts_it_and_later_where_it_is_needed() -> None:
    graph, topology, job = chain((8, 8, 8), rows=4), network(0, 2), JobSpec(micro_batch_sizes=(4, 4))
    plan = get_planner("equal_number").plan(graph, topology, job=job)
    found = estimate(graph, plan, topology, job)
    speeds = dict(zip(plan.devices, (1e9, 1e6), strict=True)) | {"helper": 1e9}  # the second stage needs help
    members = {name: Member(name=name, address="x", offer=Offer(memory=1e9, speed=speed)) for name, speed in speeds.items()}
    first, second = plan.devices
    planned = SimpleNamespace(plan=plan, estimate=found, helpers={"helper": (first, 0)})
    preparation = AttemptMessage(
        bundle=1,
        run="run",
        documents=(),
        emulate=False,
        notes={},
        first_step=0,
        committed=0,
        attempt=1,
        states="init",
        checkpoint_step=0,
        checkpoint_committed=0,
        recovered=False,
        submitter="submitter",
        rounds=CopyRounds(every=0, guards={}, least=0, budget=0),
    )
    helped: Any = SimpleNamespace(run="run", planned=planned, graph=graph)
    sent: list[Any] = []
    reachability: Any = SimpleNamespace(can_dial=lambda source, target: True)
    links: Any = SimpleNamespace(get=lambda source, target: None)
    machine: Any = SimpleNamespace(members=members)
    assignment = HelperAssignment(lambda name, message: sent.append(message), machine, links, reachability)
    for expected in (first, second):  # after a loss or a move, it joins the stage that needs it
        assignment.ask(helped, preparation, "helper")
        assert sent[-1].server == expected
        assignment.gone("run", 1, "helper", "lost")
    assignment.over("run")
    assignment.ask(helped, preparation, "helper")
    assert sent[-1].server == first
