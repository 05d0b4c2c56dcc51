"""Gradients of tied parameters: who sends which use to whom, and what each stage waits for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from farflung.engines.base import Array
from farflung.graph.ir import Use
from farflung.job.spec import GroupSpec
from farflung.messages.data import UseKey
from farflung.step.context import StepContext
from farflung.step.inbox import Inbox
from farflung.step.stages.local_stages import LocalStages
from farflung.step.tied_gradients import exchange_uses

IN, OUT = Use(state="tied", op="embed"), Use(state="tied", op="head")
#: Operator -> position: stage 0 embeds, stage 1 has nothing of the tied weight, stage 2 has the head.
POSITIONS = {"embed": 0, "middle": 1, "head": 2}


class Scene:
    """Worker ``device``; ``stages``: the devices of each stage. ``sent``: (pair of stages, device, use)."""

    def __init__(self, device: str, stages: Sequence[Sequence[str]], *, sync: bool = False, frozen: bool = False) -> None:
        self.sent: list[tuple[tuple[int, int], str, Use]] = []
        self.inbox = Inbox()
        self.finished: dict[int, dict[Use, Array]] = {}
        own = [index for index, devices in enumerate(stages) if device in devices]
        states = [("tied",), ("other",), ("tied",)]
        group = GroupSpec(match="tied", frozen=True)
        setup = SimpleNamespace(
            device=device,
            number=next(devices.index(device) for devices in stages if device in devices),
            plan=SimpleNamespace(
                sync=object() if sync else None,
                stages=[SimpleNamespace(index=index, devices=tuple(devices)) for index, devices in enumerate(stages)],
            ),
            subgraphs=[SimpleNamespace(states=states[index], positions=(index,)) for index in range(3)],
            graph=SimpleNamespace(trained={"tied"}, gradient_uses={"tied": (IN, OUT)}, position=POSITIONS),
            job=SimpleNamespace(optimizer=SimpleNamespace(groups=[group] if frozen else [])),
            primary_stages=frozenset(index for index in own if stages[index][0] == device),
        )
        context = SimpleNamespace(setup=setup, inbox=self.inbox, transfer=SimpleNamespace(send_use=self._send))
        bases = {index: self._runner(index, frozen=frozen) for index in own}
        self.run = lambda: exchange_uses(cast(StepContext, context), cast(LocalStages, SimpleNamespace(bases=bases)), 5)

    def _runner(self, index: int, *, frozen: bool) -> Any:
        use = None if frozen else {0: IN, 2: OUT}.get(index)
        return SimpleNamespace(
            use_gradients=lambda: {} if use is None else {use: np.ones(1)},
            finish_gradients=lambda uses: self.finished.update({index: uses}),
        )

    def _send(self, step: int, pair: tuple[int, int], device: str, use: Use, array: Array) -> None:
        assert step == 5
        self.sent.append((pair, device, use))

    def came(self, stage: int, use: Use) -> None:
        self.inbox.put(UseKey(step=5, stage=stage, state=use.state, op=use.op), np.full(1, 2.0))


def test_each_stage_sends_its_use_and_waits_for_the_other() -> None:
    scene = Scene("a", [["a"], ["b"], ["c"]])
    scene.came(0, OUT)
    scene.run()
    assert scene.sent == [((0, 2), "c", IN)]
    assert {use: float(array[0]) for use, array in scene.finished[0].items()} == {OUT: 2.0}


def test_a_stage_without_the_parameter_takes_no_part() -> None:
    scene = Scene("b", [["a"], ["b"], ["c"]])
    scene.run()
    assert (scene.sent, scene.finished) == ([], {1: {}})


def test_a_frozen_parameter_is_not_waited_for() -> None:
    scene = Scene("a", [["a"], ["b"], ["c"]], frozen=True)
    scene.run()
    assert (scene.sent, scene.finished) == ([], {0: {}})


def test_only_the_owner_sends_to_replicas_of_the_other_stage() -> None:
    """A device that has both stages takes its own use, whoever owns the stage."""
    stages = [["a", "d"], ["b"], ["c", "d"]]
    owner = Scene("a", stages)
    owner.came(0, OUT)
    owner.run()
    assert owner.sent == [((0, 2), "c", IN)], "d has the sum of stage 0 itself"
    both = Scene("d", stages)
    both.came(0, OUT)
    both.came(2, IN)
    both.run()
    assert both.sent == [((0, 2), "d", IN), ((2, 0), "d", OUT)]


def test_with_a_strategy_uses_stay_inside_a_pipeline() -> None:
    scene = Scene("d", [["a", "d"], ["b", "e"], ["c", "f"]], sync=True)
    scene.came(0, OUT)
    scene.run()
    assert scene.sent == [((0, 2), "f", IN)]


def test_an_engine_that_fails_sends_nothing_more() -> None:
    scene = Scene("a", [["a"], ["b"], ["c"]])
    scene.inbox.abort(RuntimeError("b is gone"))
    with pytest.raises(RuntimeError, match="b is gone"):
        scene.run()
    assert scene.finished == {}
