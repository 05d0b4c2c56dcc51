"""A broker copies the checkpoints of its runs to an object store; a store that does not answer holds up nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.broker.records.run_folders import StorageSettings
from farflung.checkpoint import CheckpointReader, CheckpointStore, ObjectCheckpoints
from farflung.client.connection import Client
from farflung.worker.membership import join
from tests.support.loopback import Loopback, text_folder, text_job

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


def _tensors(folder: Path) -> dict[str, object]:
    reader = CheckpointReader.from_folder(folder / "checkpoints")
    return dict(reader.read(reader.manifest.home))
