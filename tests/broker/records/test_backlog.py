"""A full disk of the broker: a clear warning, training goes on, and nothing is lost once there is space again."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from farflung.broker.records.backlog import Backlog
from farflung.broker.records.journal import Journal
from farflung.errors import DataError, DiskFull, FarflungError
from farflung.job import JobSpec
from farflung.messages.calls import ShardUpload
from farflung.telemetry import RunFolder, StepRecord, injecting
from farflung.worker.run_hooks import CheckpointUpload
from farflung.worker.run_part import RunRequests
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, same, text_folder, text_job

STEPS = 8


class Disk:
    """An injector: the disk is full for the files that ``full`` names; ``left``: so often."""

    def __init__(self, left: int, *full: str) -> None:
        self.left, self.full = left, full

    def __call__(self, name: str, facts: Mapping[str, int | str]) -> None:
        if name == "disk.before_write" and self.left and str(facts["file"]).startswith(self.full):
            self.left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lines_wait_in_their_order() -> None:
    written: list[int] = []
    said: list[str] = []
    full = True

    def write(item: int) -> None:
        if full:
            raise DiskFull("no space")
        written.append(item)

    told = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if "again" in text:
            told.set()

    backlog = Backlog(write, say, most=2, again=0.001, hold=0.001)
    for item in (1, 2, 3):
        backlog.put(item)  # the third one is held back for a moment; nothing is lost
    full = False
    assert told.wait(60), "it is tried without a new line, too"
    backlog.put(4)
    assert written == [1, 2, 3, 4]
    assert said == [
        "no space; what belongs there waits in memory meanwhile: nothing is lost while this process lives",
        "there is space again: what waited is written",
    ]


def test_what_can_never_be_written_is_told() -> None:
    said: list[str] = []
    told = threading.Event()
    errors: list[FarflungError] = [DiskFull("no space"), DataError("the folder is gone")]

    def write(item: int) -> None:
        raise errors.pop(0)

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            told.set()

    Backlog(write, say, again=0.001).put(1)
    assert told.wait(60)
    assert said[1] == "1 lines are lost: the folder is gone"


def test_the_journal_waits_for_space(tmp_path: Path) -> None:
    said: list[str] = []
    journal = Journal(tmp_path / "journal.sqlite", said.append)
    with injecting(Disk(2, "journal")):
        for attempt in (1, 2, 3):
            journal.write("r", "planned", attempts=attempt)
    journal.close()
    (kept,) = Journal(tmp_path / "journal.sqlite").runs
    assert kept.attempts == 3
    assert "No space left on device; free space or choose another folder; what belongs there waits in memory" in said[0]


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    record = StepRecord(step=0, loss=1.0, seconds=1.0, elapsed=1.0, samples=4)
    folder.append(record)
    with injecting(Disk(1, "metrics")), pytest.raises(DiskFull, match=r"cannot write .*metrics\.jsonl: No space left"):
        folder.append(record)
    folder.append(record)
    assert len(list(folder.records())) == 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    text_folder(folder)
    return folder


def job() -> JobSpec:
    return text_job(steps=STEPS, checkpoint={"every": 2})


@pytest.fixture(scope="module")
def truth(place: Path) -> Finished:
    with Loopback(place, 1, folder="undisturbed") as cluster:
        return cluster.run(job())


def test_a_run_outlives_a_full_disk(place: Path, tmp_path: Path, truth: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.worker.run_hooks._FULL_AGAIN", 0.0)
    disk = Disk(0, "metrics", "a.safetensors", "journal")

    def act(run: str, record: StepRecord) -> None:
        disk.left = {1: 4, STEPS - 2: 3}.get(record.step, disk.left)

    with Loopback(place, 1, folder=str(tmp_path)) as cluster:
        found = cluster.run(job(), on_record=act, injector=disk)
    assert found.result.status == "finished", found.result.cause
    assert found.losses == truth.losses
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    until(lambda: not cluster.broker.runs.live(found.run).records.unwritten.waits)
    assert [r.step for r in RunFolder(found.folder).committed() if isinstance(r, StepRecord)] == list(range(STEPS))
    notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
    assert any(text.startswith("warning: ") and "No space left on device" in text for text in notes), notes


def test_no_run_ends_for_its_telemetry(place: Path, tmp_path: Path, truth: Finished) -> None:
    disk = Disk(10**9, "a.jsonl", "links")
    with Loopback(place, 1, folder=str(tmp_path)) as cluster:
        found = cluster.run(job(), injector=disk)
    assert found.result.status == "finished", found.result.cause
    assert found.losses == truth.losses
    assert disk.left < 10**9 - 1, "it was tried more than once"
    warnings = [text for frame in found.frames if frame.kind == "note" and "warning" in (text := frame.header["text"])]
    assert len(warnings) == 1, warnings
    assert re.fullmatch(r"warning: cannot write .*a\.jsonl: No space left on device; .*; the run goes on, .*", warnings[0])


def test_a_rollback_does_not_go_on_without_its_checkpoint() -> None:
    def refuse(*args: object) -> None:
        raise DiskFull("no space")

    job = text_job(on_nan="rollback", checkpoint={"every": 1})
    upload = CheckpointUpload(job, refuse, RunRequests(), pytest.fail)
    with pytest.raises(DiskFull, match="no space"):
        upload.store(ShardUpload(run="r", step=1, committed=1, rested=0, attempt=1), {})


def test_a_stop_ends_the_tries_of_the_last_checkpoint() -> None:
    tries: list[int] = []
    warnings: list[str] = []
    requests = RunRequests()

    def refuse(*args: object) -> None:
        tries.append(1)
        if len(tries) == 2:
            requests.stop()
        raise DiskFull("no space")

    def warn(text: str) -> None:
        warnings.append(text)
        requests._wake.set()  # it is tried again at once

    assert not CheckpointUpload(text_job(steps=1), refuse, requests, warn).store(
        ShardUpload(run="r", step=1, committed=1, rested=0, attempt=1), {}
    )
    assert len(tries) == 2
    assert [text.split(":")[0] for text in warnings] == ["warning"]


def test_a_run_whose_folder_is_deleted_keeps_its_records(place: Path, tmp_path: Path) -> None:
    def act(run: str, record: StepRecord) -> None:
        if record.step == 2:
            (tmp_path / "runs" / run).rename(tmp_path / "deleted")  # at once: the broker writes meanwhile

    with Loopback(place, 1, folder=str(tmp_path)) as cluster:
        found = cluster.run(text_job(steps=STEPS), on_record=act)
    assert found.result.status == "finished", found.result.cause
    assert found.reader().manifest.step == STEPS
    assert [r.step for r in RunFolder(found.folder).committed() if isinstance(r, StepRecord)] == list(range(STEPS))
    assert RunFolder(found.folder).read_attempts() == RunFolder(tmp_path / "deleted").read_attempts()
    assert {"job.json", "graph.json", "plan.json"} <= {file.name for file in found.folder.iterdir()}
    assert RunFolder(found.folder).topology.read_text() == RunFolder(tmp_path / "deleted").topology.read_text()
    warnings = [text for frame in found.frames if frame.kind == "note" and "was deleted" in (text := frame.header["text"])]
    said = r"warning: .* was deleted or moved away during the run; it was made again with [34] of [34] records, without .*"
    assert [re.fullmatch(said, text) is not None for text in warnings] == [True], warnings
