"""Replicas of each stage: whoever dies, wherever, another worker's memory has its state, and no committed step is made again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from farflung.engines.base import Array
from farflung.job import JobSpec
from farflung.step.stages.copy_coding import Incoming
from farflung.step.stages.state_copies import StateCopies
from farflung.step.transfer.outbox import Outbox
from farflung.telemetry import Injector, RunFolder, StepRecord, injecting
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, text_folder, text_job
from tests.support.runs.worker_deaths import CopiedStates, at, equal, recoveries_of, vanish, vanish_when_told

STEPS = 12


def job(**changes: object) -> JobSpec:
    return text_job(
        **{
            "steps": STEPS,
            "checkpoint": {"every": 0},
            "micro_batch_sizes": [2, 1, 1, 1],
            "plan": {"planner": "equal_compute", "replicas": 2},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("survivors")
    text_folder(folder)
    return folder


CLIPPED = {"optimizer": {"clip_norm": 0.5}}


@pytest.fixture(scope="module")
def truths(place: Path) -> Mapping[bool, Finished]:
    with Loopback(place, 4, folder="undisturbed") as cluster:
        return {False: cluster.run(job()), True: cluster.run(job(**CLIPPED))}


POINTS = ["worker.before_forward", "worker.before_backward", "worker.prepared", "worker.before_update", "worker.after_update"]
FEW = [(POINTS[0], "a", False), (POINTS[1], "d", True), (POINTS[2], "a", True), (POINTS[2], "d", False), (POINTS[4], "d", True)]
MANY = [(point, victim, clipped) for point in POINTS for victim in "abcd" for clipped in (False, True)]


@pytest.mark.parametrize(
    ("point", "victim", "clipped"), [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY if case not in FEW)]
)
def test_nothing_is_made_again(
    place: Path, tmp_path: Path, truths: Mapping[bool, Finished], point: str, victim: str, *, clipped: bool
) -> None:
    changes = CLIPPED if clipped else {}
    with Loopback(place, 4, folder=str(tmp_path)) as cluster, injecting(at(point, 7, victim, lambda: vanish(cluster, victim))):
        found = cluster.run(job(**changes), anybody=True)
    equal(truths[clipped], found)
    (recovery,) = recoveries_of(found)
    assert recovery.source == "memory"
    assert recovery.replayed == 0, "no step that anybody has committed is made again"
    assert recovery.step in (6, 7, 8), "8 where one of those left had heard that all were ready"
    if point == "worker.before_backward":
        assert recovery.step == 7


def one_after_the_other(cluster: Loopback, *steps: tuple[int, str]) -> Injector:
    """Each of ``steps`` (step, victim) once, when the victim comes to its forward."""
    left = list(steps)

    def inject(name: str, facts: Mapping[str, int | str]) -> None:
        if left and name == "worker.before_forward" and (facts.get("step"), facts.get("device")) == left[0]:
            vanish(cluster, left.pop(0)[1])

    return inject


def test_two_deaths_one_after_the_other(place: Path, tmp_path: Path, truths: Mapping[bool, Finished]) -> None:
    with Loopback(place, 4, folder=str(tmp_path)) as cluster, injecting(one_after_the_other(cluster, (3, "d"), (8, "b"))):
        found = cluster.run(job(), anybody=True)
    equal(truths[False], found)
    first, second = recoveries_of(found)
    assert (first.step in (2, 3), second.step in (7, 8)) == (True, True)
    assert [(one.source, one.replayed) for one in (first, second)] == [("memory", 0)] * 2


def test_a_death_while_the_next_plan_is_prepared_loses_nothing_either(
    place: Path, tmp_path: Path, truths: Mapping[bool, Finished]
) -> None:
    """d dies in step 5; then c, while it fetches what it needs; a and b still hold everything."""
    with Loopback(place, 4, folder=str(tmp_path)) as cluster:
        gone: list[str] = []

        def inject(name: str, facts: Mapping[str, int | str]) -> None:
            if name == "worker.before_forward" and (facts.get("step"), facts.get("device")) == (5, "d") and not gone:
                gone.append("d")
                vanish(cluster, "d")
            elif name == "worker.begins" and facts.get("step") == 5 and gone == ["d"]:
                gone.append(str(facts.get("device")))
                vanish(cluster, gone[-1])

        with injecting(inject):
            found = cluster.run(job(), anybody=True)
    equal(truths[False], found)
    assert len(gone) == 2
    assert [one.replayed for one in recoveries_of(found)] == [0] * len(recoveries_of(found))


def test_the_records_of_all_steps_are_there_when_the_leader_dies(
    place: Path, tmp_path: Path, truths: Mapping[bool, Finished]
) -> None:
    """The worker that knows the losses dies before it has told: the others know them, too."""
    leader = truths[False].devices[-1]
    with Loopback(place, 4, folder=str(tmp_path)) as cluster:
        die = at("worker.after_update", 4, leader, lambda: vanish(cluster, leader))
        with injecting(die):
            found = cluster.run(job(), anybody=True)
    counted = [r for r in RunFolder(found.folder).committed() if isinstance(r, StepRecord)]
    assert [record.loss for record in counted] == truths[False].losses


# -- copies ------------------------------------------------------------------------------------------------------------------


def pipeline(**changes: object) -> JobSpec:
    return job(**{"plan": {"planner": "equal_compute", "replicas": 1}, "micro_batch_sizes": [3, 2], "copy_every": 3, **changes})


@pytest.fixture(scope="module")
def alone(place: Path) -> Finished:
    with Loopback(place, 3, folder="alone") as cluster:
        return cluster.run(pipeline(copies=0))


@pytest.mark.parametrize(("point", "victim"), [("worker.before_backward", "b"), ("worker.after_update", "a")])
def test_copies_serve_where_the_only_holder_dies(
    place: Path, tmp_path: Path, alone: Finished, point: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "rate", lambda *_: 0.0)  # the loopback may be faster than the coder
    copies = CopiedStates(monkeypatch)

    def die() -> None:
        copies.wait(victim)
        vanish_when_told(cluster, victim, 10)

    with Loopback(place, 3, folder=str(tmp_path)) as cluster, injecting(at(point, 10, victim, die)):
        found = cluster.run(pipeline(), anybody=True)
    equal(alone, found)
    (recovery,) = recoveries_of(found)
    assert recovery.source == "copies"
    assert recovery.step > 0
    assert recovery.step + recovery.replayed in (10, 11)


def test_a_copy_that_its_owner_did_not_compute_is_refused_and_whoever_sends_it_is_named(
    place: Path, tmp_path: Path, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Incoming.arrays

    def forged(copy: Incoming) -> dict[str, Array]:
        return {name: array + 1 for name, array in honest(copy).items()}

    monkeypatch.setattr(Incoming, "arrays", forged)
    copies = CopiedStates(monkeypatch)

    def die() -> None:
        copies.wait("b")
        vanish_when_told(cluster, "b", 10)

    with Loopback(place, 3, folder=str(tmp_path)) as cluster, injecting(at("worker.before_backward", 10, "b", die)):
        found = cluster.run(pipeline(), anybody=True)
    equal(alone, found)
    said = r"worker [ac] is planned last, since it failed: the copy of '.*' that [ac] sends is not what its owner computed"
    notes = [str(frame.header["text"]) for frame in found.frames if frame.kind == "note"]
    assert [re.match(said, text) is not None for text in notes if "is planned last" in text] == [True], notes
    assert [one.source for one in recoveries_of(found)] == ["start"]


def coding(found: Finished, copies: Sequence[StateCopies]) -> list[tuple[int, int]]:
    """Bytes of copies before and after coding, for each worker that sent some; each reports them at the end of the run."""
    reported = [f for f in found.frames if f.kind == "note" and "of the state" in str(f.header["text"])]
    assert all(frame.header["detail"] for frame in reported)
    sent = [(one._coder.raw, one._coder.sent) for one in copies if one._coder.raw]
    assert len(reported) == len(sent)
    return sent


def test_copies_are_coded_by_those_before_and_whole_for_who_lacks_them(
    place: Path, tmp_path: Path, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "rate", lambda *_: 0.0)
    everybody: list[StateCopies] = []
    build = StateCopies.__init__
    monkeypatch.setattr(StateCopies, "__init__", lambda self, *args: (everybody.append(self), build(self, *args))[1])

    def one_by_one(name: str, facts: Mapping[str, int | str]) -> None:
        """No step begins while copies are on their way, so rounds are as many in both runs."""
        if name == "worker.before_forward":
            until(lambda: not any(copies.under_way for copies in everybody))

    with Loopback(place, 3, folder=str(tmp_path / "kept")) as cluster, injecting(one_by_one):
        kept = coding(cluster.run(pipeline()), everybody)
    everybody.clear()
    monkeypatch.setattr(StateCopies, "_version", lambda *_: None)
    with Loopback(place, 3, folder=str(tmp_path / "lacking")) as cluster, injecting(one_by_one):
        lacking = cluster.run(pipeline())
    equal(alone, lacking)
    whole = coding(lacking, everybody)
    assert len(kept) == len(whole) == 3
    assert all(sent < 0.9 * raw for raw, sent in kept)
    assert sum(raw for raw, _ in whole) > 1.3 * sum(raw for raw, _ in kept), "all rounds but the first go twice"


def test_without_copies_the_first_states_serve(place: Path, tmp_path: Path, alone: Finished) -> None:
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        die = at("worker.before_backward", 10, "b", lambda: vanish_when_told(cluster, "b", 10))
        with injecting(die):
            found = cluster.run(pipeline(copies=0), anybody=True)
    equal(alone, found)
    assert [(one.source, one.step, one.replayed) for one in recoveries_of(found)] == [("start", 0, 10)]
