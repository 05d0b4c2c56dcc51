"""Ways to lose a worker or a link in the middle of a step, and the comparison with an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.errors import ConnectionLost
from farflung.telemetry import EvaluationRecord, Injector, RecoveryRecord, RunFolder, StepRecord
from tests.support.loopback import Finished, Loopback, cut_off, same
from tests.support.quiet import until

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
