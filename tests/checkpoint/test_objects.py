"""Checkpoints in an object store: a local one, and behind the marker ``s3`` a server that speaks S3."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.broker.records.mirror import Mirror
from farflung.checkpoint import CheckpointReader, CheckpointStore, Manifest, ObjectCheckpoints
from farflung.errors import CheckpointError, InputError
from farflung.job import make_job, to_json
from farflung.job.spec import CheckpointSpec
from tests.support.servers.s3_server import s3_server

pytest.importorskip("obstore")
JOB = make_job({"steps": 10})


def states(step: int) -> dict[str, np.ndarray[Any, Any]]:
    return {f"layer{index}": np.full((300, 2), 10 * step + index, np.float32) for index in range(4)}


def write(store: CheckpointStore, step: int) -> Manifest:
    mine = sorted(states(step).items())
    shards = [store.write_shard(step, f"w-{worker}", dict(mine[worker::2])) for worker in range(2)]
    manifest = Manifest(step=step, job=to_json(JOB), graph_hash="g", shards=tuple(shards))
    store.write_manifest(manifest)
    return manifest


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield (tmp_path / "objects").as_uri()
        return
    yield from s3_server(tmp_path)


def test_there_and_back(url: str, tmp_path: Path) -> None:
    here, there = CheckpointStore(tmp_path / "here"), ObjectCheckpoints(url, "run-1")
    assert there.steps() == ()
    for step in (3, 6):
        manifest = write(here, step)
        assert there.push(here, step) == sum(shard.size for shard in manifest.shards)
        assert there.push(here, step) == 0, "what is there is not sent again"
    assert there.steps() == (3, 6)
    back = CheckpointStore(tmp_path / "back")
    assert ObjectCheckpoints(f"{url}/run-1").pull(back).step == 6
    reader = CheckpointReader.from_folder(back.folder, 6)
    assert {name: array.tobytes() for name, array in reader.read(reader.manifest.states).items()} == {
        name: array.tobytes() for name, array in states(6).items()
    }
    assert there.pull(back, 3).step == 3
    assert back.steps() == (3, 6)
    with pytest.raises(CheckpointError, match=r"run-1 has no whole checkpoint of step 4: there are 3, 6"):
        there.pull(back, 4)
    assert there.prune(1) == (3,)
    assert there.steps() == (6,)
    with pytest.raises(CheckpointError, match=r"run-2 holds no whole checkpoint: it has none"):
        ObjectCheckpoints(url, "run-2").pull(back)


def test_a_copy_that_was_cut_or_damaged_is_never_read(url: str, tmp_path: Path) -> None:
    import obstore

    here, there = CheckpointStore(tmp_path / "here"), ObjectCheckpoints(url, "run")
    write(here, 3)
    there.push(here, 3)
    manifest = write(here, 6)
    store = there._store
    obstore.put(store, f"step-{6:010d}/{manifest.shards[0].file}", b"cut")  # a writer that was killed: no manifest
    assert there.steps() == (3,)
    assert there.push(here, 6) == sum(shard.size for shard in manifest.shards), "what was cut is sent again"
    data = bytearray((here.path(6) / manifest.shards[1].file).read_bytes())
    data[-1] ^= 1
    obstore.put(store, f"step-{6:010d}/{manifest.shards[1].file}", bytes(data))
    back = CheckpointStore(tmp_path / "back")
    stale = {(6, shard.file): shard.size for shard in manifest.shards} | {(6, "manifest.json"): 1}
    obstore.put(store, f"step-{6:010d}/{manifest.shards[0].file}", bytes(100_000))  # another content since it was listed
    with pytest.raises(CheckpointError, match="is torn or no safetensors file"):
        there._pull(back, 6, stale)
    with pytest.raises(CheckpointError, match=r"step 6: w-0-\S+ has 100000 bytes, its manifest says \d+"):
        there.pull(back, 6)
    with pytest.raises(CheckpointError, match=r"manifest.json has 999999999 bytes, no manifest has more than 268435456"):
        there._manifest(6, {(6, "manifest.json"): 999_999_999})
    assert there.push(here, 6) > 0
    obstore.put(store, f"step-{6:010d}/{manifest.shards[1].file}", bytes(data))
    with pytest.raises(CheckpointError, match=r"w-1-\S+ is corrupt \(its hash differs from the manifest's\)"):
        there.pull(back, 6)
    assert there.pull(back).step == 3, "the newest whole one"
    assert back.steps() == (3,)


def test_checkpoints_are_mirrored_while_training_goes_on(url: str, tmp_path: Path) -> None:
    here, said = CheckpointStore(tmp_path / "here"), list[str]()
    mirror = Mirror(url, said.append)
    for step in (2, 4, 6):
        write(here, step)
        mirror.put("run", here, step, CheckpointSpec(every=2, keep=1, keep_every=4))
    mirror.put("other", CheckpointStore(tmp_path / "none"), 1, CheckpointSpec())
    mirror.close()
    assert ObjectCheckpoints(url, "run").steps()[-1] == 6
    assert f"run run: the checkpoint after step 6 is at {url}/run (" in "\n".join(said)
    assert any(line.startswith("run other: warning: the checkpoint after step 1 is not copied: ") for line in said)


def test_what_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'bucket' is no URL of an object store; write e\.g\. s3://bucket/folder"):
        ObjectCheckpoints("bucket")
    with pytest.raises(InputError, match="fish://x is no object store that can be opened"):
        ObjectCheckpoints("fish://x")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InputError, match=r'object stores need the obstore package: pip install "farflung\[s3\]"'):
        ObjectCheckpoints(tmp_path.as_uri())


def test_a_mirror_ends_without_work(tmp_path: Path) -> None:
    before = threading.active_count()
    Mirror(tmp_path.as_uri(), print).close()
    assert threading.active_count() <= before
