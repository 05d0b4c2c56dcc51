"""Ways to lose a worker or a link in the middle of a step, and the comparison with an undisturbed run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest

from farflung.errors import ConnectionLost
from farflung.step.context import StepContext
from farflung.step.run_setup import RunSetup
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.state_copies import StateCopies
from farflung.telemetry import EvaluationRecord, Injector, RecoveryRecord, RunFolder, StepRecord
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, cut_off, same

STEPS = 12


def at(point: str, step: int, device: str, act: Callable[[], None]) -> Injector:
    """``act``, once, where ``device`` comes to ``point`` of ``step``."""
    done: list[str] = []

    def inject(name: str, facts: Mapping[str, int | str]) -> None:
        if (name, facts.get("step"), facts.get("device", device)) == (point, step, device) and not done:
            done.append(name)
            act()

    return inject


def vanish(cluster: Loopback, name: str) -> None:
    """As if its machine had lost its power: nobody is told anything."""
    worker = cluster.workers.pop(name)
    cut_off(worker)


def vanish_when_told(cluster: Loopback, name: str, steps: int) -> None:
    """Once the broker has heard that ``steps`` are made: what nobody was told of is not counted as made again."""
    until(lambda: max(live.times.furthest for live in cluster.broker.runs.all()) >= steps)
    vanish(cluster, name)


class CopiedStates:
    """The copies of states on the workers of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._everybody: list[tuple[RunSetup, StateCopies]] = []
        build = StateCopies.__init__

        def noted(made: StateCopies, context: StepContext, stages: LocalStages) -> None:
            self._everybody.append((context.setup, made))
            build(made, context, stages)

        monkeypatch.setattr(StateCopies, "__init__", noted)

    def wait(self, lost: str) -> None:
        """Wait until the workers without ``lost`` have copies of all states after one same step.

        Copies travel behind everything else: on a busy machine, the first ones may not be complete after some steps.
        """
        until(lambda: self._whole(lost))

    def _whole(self, lost: str) -> bool:
        found: defaultdict[int, set[str]] = defaultdict(set)
        for setup, copies in self._everybody:
            for copy in copies.retained() if setup.device != lost else ():
                found[copy.retained_state.step] |= copy.retained_state.states
        names = {name for setup, _ in self._everybody for piece in setup.subgraphs for name in piece.states}
        return any(states == names for states in found.values())


def equal(truth: Finished, found: Finished) -> None:
    """The same losses, evaluations, ledger and states; each step counts once."""
    assert found.result.status == "finished", found.result.cause
    counted = RunFolder(found.folder).committed()
    steps = [record for record in counted if isinstance(record, StepRecord)]
    assert [record.step for record in steps] == list(range(STEPS))
    assert [record.loss for record in steps] == truth.losses
    told = {record.step: record.loss for record in counted if isinstance(record, EvaluationRecord)}
    assert told == {record.step: record.loss for record in truth.evaluations}
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    assert found.reader().manifest.ledger == truth.reader().manifest.ledger == {"steps": STEPS, "samples": STEPS * 5}
    assert found.result.steps == STEPS


def cut(cluster: Loopback) -> None:
    """The link from b to a breaks for good; both live on."""
    link = cluster.workers["b"].endpoint.link_to("a", incoming=False)
    link.fail(ConnectionLost("lost a: a cable was cut"))


def recoveries_of(found: Finished) -> list[RecoveryRecord]:
    return [record for record in RunFolder(found.folder).committed() if isinstance(record, RecoveryRecord)]
