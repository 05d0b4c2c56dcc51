"""Where unreliable devices only help, plans are made for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_runs import small_bundle, small_graph

from farflung.broker.planning import plan_run
from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.graph.ir import ValueRef


def topology(*reliable: bool) -> Topology:
    found = Topology.preset(f"homogeneous-{len(reliable)}")
    return found.with_devices([replace(device, reliable=is_so) for device, is_so in zip(found.devices, reliable, strict=True)])


def test_unreliable_devices_get_no_stage() -> None:
    bundle = small_bundle(plan={"helpers": True, "planner": "equal_number"})
    planned = plan_run(bundle, topology(True, False, True))
    names = planned.topology.names
    assert len(names) == 2
    assert set(planned.plan.devices) <= set(names)


def test_the_explanation_tells_what_helpers_are_sent() -> None:
    planned = plan_run(small_bundle(plan={"helpers": True, "planner": "equal_number"}), topology(True, False, True))
    assert "helpers: not counted in the predicted step" in planned.explanation
    assert "optimizer.delayed would hide this transfer behind the previous step" in planned.explanation


def test_somebody_must_be_reliable() -> None:
    with pytest.raises(PlanError, match=r"plan\.helpers gives stages to reliable devices only, and none of the 2 is; mark"):
        plan_run(small_bundle(plan={"helpers": True}), topology(False, False))


def test_batch_norm_is_refused() -> None:
    graph = replace(small_graph(), state_updates=(("norm.running_mean", ValueRef(op="bend", index=0)),))
    bundle = replace(small_bundle(plan={"helpers": True}), graphs={4: graph})
    with pytest.raises(PlanError, match=r"plan\.helpers: the model updates 'norm\.running_mean' in its forward \(batch norm\)"):
        plan_run(bundle, topology(True, False))
