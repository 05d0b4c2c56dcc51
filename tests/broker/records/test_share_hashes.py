"""Hashes of checkpoint shares, and what follows from one that is wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from farflung.broker.records.share_hashes import ShareHashes
from farflung.messages.conversions.step_reports import StepReport
from farflung.telemetry.records import RunResult
from farflung.worker import broker_storage
from farflung.worker.run_hooks import WorkerHooks
from tests.support.network.futures import PATIENCE, later
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.watched_runs import watched

KEY = (1, 4)
SAME = {"a": 1, "b": 1, "c": 1}


def hashes(**of_a: str) -> ShareHashes:
    """What workers report of the share of a."""
    made = ShareHashes()
    for worker, found in of_a.items():
        made.report(KEY, worker, "a", found)
    return made


def test_whoever_is_outvoted_lies() -> None:
    assert hashes(a="x", b="x", c="x").liars(KEY, "a", SAME) == ([], [])
    assert hashes(a="y", b="x", c="x").liars(KEY, "a", SAME) == (["a"], [])
    assert hashes(a="x", b="x", c="y").liars(KEY, "a", SAME) == (["c"], [])


@pytest.mark.parametrize("ends", ["the attempt", "the upload"])
def test_nobody_waits_for_a_hash_that_cannot_come_any_more(ends: str) -> None:
    """Else the broker's end, and the worker's next attempt, would wait for it."""
    made, over, asked = ShareHashes(), threading.Event(), threading.Event()

    def ended() -> bool:
        asked.set()
        return over.is_set()

    waiting = later(lambda: made.own(KEY, "a", 1e6, ended))
    assert asked.wait(PATIENCE)
    if ends == "the attempt":
        made.begin(KEY[0] + 1)
    else:
        over.set()
        made.poke()
    assert waiting.result(PATIENCE) == ""


def test_two_that_differ_are_in_a_dispute() -> None:
    assert hashes(a="x", b="y").liars(KEY, "a", SAME) == ([], ["a", "b"])
    assert hashes(a="x", b="y", c="z").liars(KEY, "a", SAME) == ([], ["a", "b", "c"])


def test_other_devices_have_other_bits() -> None:
    assert hashes(a="x", b="y").liars(KEY, "a", {"a": 1, "b": 2}) == ([], [])


def test_old_checkpoints_are_forgotten() -> None:
    made = ShareHashes()
    for step in range(100):
        made.report((1, step), "a", "a", "x")
    assert [step for step in range(100) if made.own((1, step), "a", 0.0)] == list(range(92, 100))


def test_a_worker_cannot_fill_the_memory() -> None:
    made = ShareHashes()
    for number in range(1000):
        made.report(KEY, "a", f"of {number}", "x")
    assert made.own(KEY, "a", 0.0) == ""
    made.report(KEY, "b", "b", "x")
    assert made.own(KEY, "b", 0.0) == "x"


def test_hashes_of_steps_that_nobody_made_take_the_place_of_no_other() -> None:
    made = hashes(a="x", b="x")
    for step in range(1000):
        made.report((1, 10**9 + step), "liar", "liar", "z")
    assert made.own(KEY, "a", 0.0) == "x"
    made.report(KEY, "c", "a", "y")
    assert made.liars(KEY, "a", SAME) == (["c"], [])


def follow(cluster: Loopback, **job: object) -> tuple[RunResult, list[str]]:
    bundle, _ = cluster.submit(text_job(steps=4, checkpoint={"every": 2}, **job))
    frames = list(watched(cluster.client, bundle.run))
    texts = [str(frame.header["text"]) for frame in frames if frame.kind == "note"]
    return RunResult.from_json(str(frames[-1].header["result"])), texts


@pytest.mark.timeout(300)
def test_a_share_that_is_not_what_its_worker_hashed_is_refused_and_the_run_continues_without_the_worker(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = broker_storage._hashed
    forged: list[str] = []

    def forge(blocks: Iterable[bytes | memoryview], report: Callable[[str], None]) -> Iterator[bytes | memoryview]:
        found = [bytes(block) for block in honest(blocks, report)]
        if not forged:
            forged.append("once")
            found[-1] = bytes([found[-1][0] ^ 1]) + found[-1][1:]
        yield from found

    with Loopback(home, 2) as cluster:
        monkeypatch.setattr(broker_storage, "_hashed", forge)
        result, texts = follow(cluster)
    assert result.status == "finished", result.cause
    (judged,) = [text for text in texts if "is in quarantine" in text]
    assert "it broke the protocol: its share of the checkpoint of step 2 is not what it has hashed" in judged


@pytest.mark.timeout(300)
def test_a_replica_that_is_outvoted_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three replicas of one stage: one of them reports another hash of the same states."""
    report, lied = WorkerHooks.on_copy, list[int]()

    def lie(hooks: WorkerHooks, step: int, device: str, *arrays: object) -> None:
        if not lied:
            lied.append(step)
            first, *others = arrays
            assert isinstance(first, dict)
            arrays = ({name: array + 1 for name, array in first.items()}, *others)
        report(hooks, step, device, *arrays)  # type: ignore[arg-type]

    job = text_job(steps=4, checkpoint={"every": 2}, micro_batch_sizes=[2, 2, 2], plan={"replicas": 3})
    with Loopback(home, 3) as cluster:
        monkeypatch.setattr(WorkerHooks, "on_copy", lie)
        bundle, _ = cluster.submit(job)
        frames = watched(cluster.client, bundle.run)
        judged = next(text for frame in frames if "is in quarantine" in (text := str(frame.header.get("text", ""))))
        cluster.client.stop(bundle.run, now=True)  # else it waits for another third replica
        list(frames)
    said = "worker [bc] is in quarantine, since it broke the protocol: its states after step 2 differ from those of the other"
    assert re.match(said, judged), judged


@pytest.mark.timeout(300)
def test_whoever_hashes_states_of_others_breaks_the_protocol(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash would accuse those who have a copy of the states."""
    lied = list[str]()
    report = WorkerHooks.on_step

    def lie(hooks: WorkerHooks, found: StepReport) -> None:
        if not lied:
            lied.append(hooks.run)
            hooks.on_copied(1, {"a state of others": "0" * 64})
        report(hooks, found)

    monkeypatch.setattr(WorkerHooks, "on_step", lie)
    with Loopback(home, 2) as cluster:
        result, texts = follow(cluster)
    assert result.status == "finished", result.cause
    (judged,) = [text for text in texts if "is in quarantine" in text]
    assert re.search(r"it broke the protocol: [ab] hashes the state 'a state of others', which it does not compute", judged)


@pytest.mark.timeout(300)
def test_honest_replicas_agree(home: Path) -> None:
    with Loopback(home, 2) as cluster:
        result, texts = follow(cluster, micro_batch_sizes=[2, 2], plan={"planner": "equal_compute", "replicas": 2})
    assert result.status == "finished", result.cause
    assert not [text for text in texts if "quarantine" in text or "differ" in text]
