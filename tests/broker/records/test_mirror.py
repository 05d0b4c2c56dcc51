"""A broker copies the checkpoints of its runs to an object store; a store that does not answer holds up nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.records.mirror import Mirror
from farflung.broker.records.run_folders import StorageSettings
from farflung.checkpoint import CheckpointReader, CheckpointStore, ObjectCheckpoints
from farflung.client.connection import Client
from farflung.worker.membership import join
from tests.support.runs.loopback import Loopback, text_folder, text_job

pytest.importorskip("obstore")


def test_what_is_mirrored_is_resumed_elsewhere(tmp_path: Path) -> None:
    text_folder(tmp_path)
    url, back = (tmp_path / "objects").as_uri(), tmp_path / "back"
    with Loopback(tmp_path, 1, storage=StorageSettings(mirror=url)) as cluster:
        found = cluster.run(text_job(steps=4, checkpoint={"every": 2, "keep": 1}))
        whole = cluster.run(text_job(steps=6))
    there = ObjectCheckpoints(url, found.run)
    assert there.steps() == (4,), "the broker copied what was due before it ended, and older ones went"
    there.pull(CheckpointStore(back / "checkpoints"))
    assert {n: a.tobytes() for n, a in _tensors(back).items()} == {n: a.tobytes() for n, a in found.tensors(4).items()}
    with Loopback(tmp_path, 2, folder="another") as cluster:
        cluster.client.close()
        cluster.client = Client(join(cluster.ticket("owner"), name="owner", role="client"))
        again = cluster.run(text_job(steps=6, checkpoint={"resume": str(back)}))
    assert found.losses + again.losses == whole.losses


def test_a_store_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    text_folder(tmp_path)
    said: list[str] = []
    (tmp_path / "objects").mkdir()
    with Loopback(tmp_path, 1, say=said.append, storage=StorageSettings(mirror=(tmp_path / "objects").as_uri())) as cluster:
        (tmp_path / "objects").rmdir()
        (tmp_path / "objects").write_text("no folder")
        found = cluster.run(text_job(steps=2))
    assert found.result.status == "finished"
    (line,) = [line for line in said if "warning" in line]
    assert line.startswith(f"run {found.run}: warning: the checkpoint after step 2 is not copied: file:///")


def test_a_broker_without_the_newest_checkpoint_fetches_it(tmp_path: Path) -> None:
    text_folder(tmp_path)
    url, said = (tmp_path / "objects").as_uri(), list[str]()
    with Loopback(tmp_path, 1, storage=StorageSettings(mirror=url)) as cluster:
        found = cluster.run(text_job(steps=4, checkpoint={"every": 4}))
    mirror = Mirror(url, said.append)
    store = CheckpointStore(tmp_path / "elsewhere" / "checkpoints")
    for _ in range(2):
        mirror.fetch(found.run, store)
    mirror.close()
    assert said == [f"run {found.run}: the checkpoint after step 4 is from {url}/{found.run}"]
    latest = store.latest()
    assert latest is not None
    assert latest.step == 4


def test_a_checkpoint_that_cannot_be_fetched_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "objects").mkdir()
    mirror = Mirror((tmp_path / "objects").as_uri(), said.append)
    store = CheckpointStore(tmp_path / "checkpoints")
    mirror.fetch("new", store)
    assert said == []
    step = tmp_path / "objects" / "old" / "step-0000000002"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("damaged")
    mirror.fetch("old", store)
    mirror.close()
    (line,) = said
    assert line.startswith("run old: warning: no checkpoint is copied from the object store: file:///")


def _tensors(folder: Path) -> dict[str, object]:
    reader = CheckpointReader.from_folder(folder / "checkpoints")
    return dict(reader.read(reader.manifest.home))
