"""Checkpoints in a folder: whole or not there, readable under any partition, damage named."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.checkpoint import (
    CheckpointReader,
    CheckpointStore,
    FetchedBlob,
    Manifest,
    ShardRecord,
    check_resume,
    encode_shard,
    pack,
)
from farflung.errors import CheckpointError, DiskFull, VersionError
from farflung.graph.ir import State, StateKind, TensorSpec
from farflung.job import JobSpec, make_job, to_json
from farflung.job.spec import ScheduleSpec
from farflung.job.value_tables import write_values

JOB = make_job({"steps": 10, "seed": 4})
STATES = {f"layer{i}.weight": np.full((3, 2), i, np.float32) for i in range(4)}
SLOTS = {f"momentum/layer{i}.weight": np.full((3, 2), -i, np.float32) for i in range(4)}


def write(store: CheckpointStore, step: int, workers: int = 2, job: JobSpec = JOB) -> Manifest:
    """A checkpoint whose states are dealt to ``workers`` shards."""
    names = list(STATES)
    records = []
    for worker in range(workers):
        mine = names[worker::workers]
        tensors = pack(
            {name: STATES[name] + step for name in mine}, {f"momentum/{name}": SLOTS[f"momentum/{name}"] for name in mine}
        )
        records.append(store.write_shard(step, f"worker-{worker}", tensors))
    manifest = Manifest(
        step=step, job=to_json(job), graph_hash="ab" * 32, plan="{}", shards=tuple(records), ledger={"samples": step * 4}
    )
    store.write_manifest(manifest, expected=names)
    return manifest


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_partition_reads_any_other(store: CheckpointStore, workers: int) -> None:
    write(store, 5, workers)
    reader = CheckpointReader.from_folder(store.folder)
    for names in (list(STATES), list(STATES)[1:3]):
        found = reader.read(names)
        assert list(found) == names
        assert all(np.array_equal(found[name], STATES[name] + 5) for name in names)
    slots = reader.read_optimizer(["layer2.weight", "frozen.weight"])
    assert list(slots) == ["momentum/layer2.weight"]
    assert np.array_equal(slots["momentum/layer2.weight"], SLOTS["momentum/layer2.weight"])
    assert reader.manifest.ledger == {"samples": 20}
    assert set(reader.manifest.states) == set(STATES)
    assert set(reader.manifest.optimizer) == set(SLOTS)


def test_slices_over_the_network_fetch_only_what_is_needed(store: CheckpointStore) -> None:
    big = {"a": np.zeros((500, 100), np.float32), "b": np.arange(10, dtype=np.float32)}
    record = store.write_shard(1, "s", big)
    manifest = Manifest(step=1, job=to_json(JOB), graph_hash="0" * 64, shards=(record,))
    fetched: list[int] = []
    data = (store.path(1) / record.file).read_bytes()

    def fetch(offset: int, length: int) -> bytes:
        fetched.append(length)
        return data[offset : offset + length]

    reader = CheckpointReader(manifest, lambda shard: FetchedBlob(shard.file, shard.size, fetch))
    assert np.array_equal(reader.read(["b"])["b"], big["b"])
    assert reader.read_rows("a", 3, 5).shape == (2, 100)
    assert sum(fetched) < 2000
    with pytest.raises(CheckpointError, match="is torn: it has 7 of"):
        CheckpointReader(manifest, lambda shard: FetchedBlob(shard.file, 7, fetch)).read(["b"])


def test_shards_travel_in_pieces(store: CheckpointStore) -> None:
    tensors = pack(STATES)
    whole = b"".join(bytes(piece) for piece in encode_shard(tensors))
    sent = store.store_shard(1, "s", (whole[start : start + 7] for start in range(0, len(whole), 7)))
    assert sent == store.write_shard(1, "s", tensors)
    with pytest.raises(CheckpointError, match="torn"):
        store.store_shard(1, "half", (whole[: len(whole) // 2],))
    assert [file.name for file in store.path(1).iterdir()] == [sent.file]


def test_a_manifest_of_any_length_is_not_read(store: CheckpointStore) -> None:
    write(store, 2)
    with (store.path(2) / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)  # takes no space on the disk
    with pytest.raises(CheckpointError, match=r"manifest\.json has 1099511627776 bytes, no manifest has more than 268435456"):
        store.manifest(2)


def test_without_manifest_there_is_no_checkpoint(store: CheckpointStore) -> None:
    assert store.steps() == ()
    assert store.latest() is None
    store.write_shard(3, "worker-0", STATES)
    assert store.steps() == ()
    with pytest.raises(CheckpointError, match="has no whole checkpoint of step 3: there are none"):
        store.manifest(3)
    with pytest.raises(CheckpointError, match="holds no whole checkpoint: name a run, or a folder, that has one"):
        CheckpointReader.from_folder(store.folder)
    write(store, 2)
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 3: there are 2"):
        CheckpointReader.from_folder(store.folder, 3)


def test_a_writer_killed_midway_leaves_the_last_one_whole(store: CheckpointStore) -> None:
    write(store, 1)

    def killed() -> Iterator[bytes]:
        yield next(iter(encode_shard(STATES)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.store_shard(2, "worker-0", killed())
    (store.path(2) / ".worker-0.safetensors-12.part").write_bytes(b"left by a SIGKILL")
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    write(store, 2)
    assert store.steps() == (1, 2)
    assert store.verify(2).step == 2


def test_writing_a_step_again_never_harms_the_one_that_stands(store: CheckpointStore) -> None:
    write(store, 1)
    store.write_shard(1, "worker-0", {"layer0.weight": np.zeros((3, 2), np.float32)})
    store.verify(1)
    assert np.array_equal(
        CheckpointReader.from_folder(store.folder).read(["layer0.weight"])["layer0.weight"], STATES["layer0.weight"] + 1
    )


def test_manifest_needs_every_shard_and_tensor(store: CheckpointStore) -> None:
    record = store.write_shard(1, "a", STATES)
    manifest = Manifest(step=1, job="{}", graph_hash="", shards=(record,))
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 tensors, e\.g\. 'head\.weight': every stage must write"):
        store.write_manifest(manifest, expected=["layer0.weight", "head.weight"])
    (store.path(1) / record.file).unlink()
    with pytest.raises(CheckpointError, match=r"shard .*a-.*\.safetensors is missing"):
        store.write_manifest(manifest)
    assert store.steps() == ()


def damage(store: CheckpointStore, step: int, how: str) -> None:
    file = min(store.path(step).glob("worker-0*"))
    if how == "missing":
        file.unlink()
    elif how == "torn":
        file.write_bytes(file.read_bytes()[:-3])
    elif how == "corrupt":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    else:
        path = store.path(step) / "manifest.json"
        path.write_text(path.read_text().replace('"step": 2', '"step": 3') if how == "edited" else path.read_text()[:-20])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is missing: use an older checkpoint"),
        ("torn", "is torn: it has"),
        ("corrupt", "is corrupt (its hash differs from the manifest's)"),
        ("edited", "is corrupt (its hash differs): use an older checkpoint"),
        ("cut", "is torn or no manifest: use an older checkpoint"),
    ],
)
def test_damage_is_named_and_the_older_one_is_taken(store: CheckpointStore, how: str, message: str) -> None:
    write(store, 1)
    write(store, 2)
    damage(store, 2, how)
    with pytest.raises(CheckpointError) as info:
        store.verify(2)
    assert message in str(info.value)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_a_corrupt_tensor_is_noticed_when_it_is_read(store: CheckpointStore) -> None:
    write(store, 2)
    damage(store, 2, "corrupt")
    reader = CheckpointReader.from_folder(store.folder, 2)
    reader.read(["layer1.weight"])
    corrupt = [name for name in reader.manifest.home if name.endswith(("layer0.weight", "layer2.weight"))]
    with pytest.raises(CheckpointError, match=r"tensor '.*' in shard worker-0.* is corrupt \(its checksum differs\)"):
        reader.read(corrupt)


def test_unknown_names_name_close_ones(store: CheckpointStore) -> None:
    write(store, 1)
    with pytest.raises(CheckpointError, match=r"has no tensor 'layer0.wait': did you mean 'layer0.weight'\? it has 8"):
        CheckpointReader.from_folder(store.folder).read(["layer0.wait"])


def test_shared_tensors_are_read_from_the_first_shard_and_must_agree(store: CheckpointStore) -> None:
    one = store.write_shard(1, "a", {"w": np.ones(2)})
    same = store.write_shard(1, "b", {"w": np.ones(2)})
    other = store.write_shard(1, "c", {"w": np.zeros(2)})
    good = Manifest(step=1, job="{}", graph_hash="", shards=(one, same))
    assert good.home["w"][0] is one
    bad = Manifest(step=1, job="{}", graph_hash="", shards=(one, other))
    with pytest.raises(CheckpointError, match="hold different values of 'w'; the copies of a shared tensor must be equal"):
        store.write_manifest(bad, expected=["w"])


def test_retention_keeps_the_newest_whole_ones(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 4):
        write(store, step)
    assert store.prune(2) == (1, 2)
    assert store.steps() == (3, 4)
    store.write_shard(2, "late", STATES)  # torn and older
    store.write_shard(5, "worker-0", STATES)  # not yet whole
    damage(store, 4, "torn")
    assert store.prune(1) == (2,)
    assert store.steps() == (3, 4)
    assert store.path(5).is_dir()
    store.verify(3)
    with pytest.raises(ValueError, match="at least one"):
        store.prune(0)


def test_retention_keeps_milestones(store: CheckpointStore) -> None:
    for step in range(1, 9):
        write(store, step)
    assert store.prune(2, for_ever=3) == (1, 2, 4, 5)
    assert store.steps() == (3, 6, 7, 8)
    write(store, 9)
    assert store.prune(1, every=4, for_ever=3) == (7, 8)
    assert store.steps() == (3, 6, 9), "the newest, and the milestones"


def test_a_renamed_folder_is_noticed(store: CheckpointStore) -> None:
    write(store, 1)
    store.path(1).rename(store.path(7))
    with pytest.raises(CheckpointError, match=r"is the manifest of step 1: its folder was renamed, name it step-0000000001"):
        store.manifest(7)


def test_a_folder_that_cannot_be_deleted(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        write(store, step)

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(CheckpointError, match=r"step-0000000001 can't be deleted: Permission denied; delete it by hand"):
        store.prune(1)
    assert store.steps() == (2,)


_WRITER = """
import sys, numpy as np
from farflung.checkpoint import CheckpointStore, Manifest
store = CheckpointStore(sys.argv[1])
for step in range(1, 10**6):
    shard = store.write_shard(step, "a", {"w": np.full((300, 300), step, np.float32)})
    store.write_manifest(Manifest(step=step, job="{}", graph_hash="", shards=(shard,)))
    store.prune(2)
    print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_a_writer_that_is_killed_leaves_a_whole_checkpoint(tmp_path: Path, count: int) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(count):
            done = int(process.stdout.readline())
        process.kill()
    found = CheckpointStore(tmp_path).latest()
    assert found is not None
    assert found.step >= done
    read = CheckpointReader.from_folder(tmp_path).read(["w"])["w"]
    assert (read == found.step).all()


def test_pruning_nothing(store: CheckpointStore) -> None:
    assert store.prune(1) == ()
    store.write_shard(1, "a", STATES)
    assert store.prune(1) == ()
    assert store.path(1).is_dir()


def test_manifest_round_trip_and_limits(store: CheckpointStore) -> None:
    manifest = write(store, 1)
    assert Manifest.from_json(manifest.to_json()) == manifest
    body = json.loads(manifest.to_json())
    with pytest.raises(VersionError, match="has version 99, this farflung reads 1"):
        Manifest.from_json(json.dumps({**body, "version": 99}))
    for text in ("", "[]", "{}", "null", "[" * 100_000):
        with pytest.raises(CheckpointError, match="torn or no manifest"):
            Manifest.from_json(text)
    with pytest.raises(CheckpointError, match="is not a farflung checkpoint's manifest"):
        Manifest.from_json('{"format": "other"}')


def test_records_of_shards_travel(store: CheckpointStore) -> None:
    record = store.write_shard(1, "a", STATES)
    assert ShardRecord.from_json(record.to_json()) == record
    for text in ("", "[]", "{}", record.to_json().replace("a-", "../a-")):
        with pytest.raises(CheckpointError, match="a shard's record is torn or malformed"):
            ShardRecord.from_json(text)


def test_manifest_refuses_paths_outside_its_folder(store: CheckpointStore) -> None:
    for file in ("../../etc/passwd.safetensors", "/a.safetensors", "a.bin", ".a.safetensors"):
        shard = ShardRecord(file=file, size=1, sha256="0" * 64, tensors=())
        with pytest.raises(CheckpointError, match="torn or no manifest"):
            Manifest.from_json(Manifest(step=1, job="", graph_hash="", shards=(shard,)).to_json())


def test_resume_refuses_another_model_or_other_numbers(store: CheckpointStore) -> None:
    manifest = write(store, 3)
    check_resume(manifest, "ab" * 32, make_job({"steps": 99, "seed": 4, "workers": 7}))
    with pytest.raises(
        CheckpointError, match=r"of step 3 belongs to another model \(graph abababababab, this job has cdcdcdcdcdcd\)"
    ):
        check_resume(manifest, "cd" * 32, JOB)
    changed = make_job({"steps": 10, "seed": 5, "optimizer": {"lr": 1.0}})
    differences = r"other settings \(seed: 4 -> 5, optimizer\.lr: 0\.001 -> 1\.0\): set them back, or load its exported weights"
    with pytest.raises(CheckpointError, match=differences):
        check_resume(manifest, "ab" * 32, changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"layer1.weight": (5, 2)}, "'layer1.weight' is float32 [3, 2] in the checkpoint and float32 [5, 2] in this job's model"),
        ({"head.weight": (3, 2)}, "the checkpoint lacks 'head.weight'"),
        ({"layer2.weight": None}, "this job's model lacks 'layer2.weight'"),
        ({}, "graph abababababab, this job has cdcdcdcdcdcd"),
    ],
)
def test_resume_names_the_first_parameter_that_differs(store: CheckpointStore, changed: dict[str, Any], text: str) -> None:
    shapes = dict.fromkeys(STATES, (3, 2)) | changed
    states = [
        State(name=name, kind=StateKind.PARAMETER, spec=TensorSpec(dtype="float32", shape=shape))
        for name, shape in shapes.items()
        if shape is not None
    ]
    with pytest.raises(CheckpointError) as caught:
        check_resume(write(store, 3), "cd" * 32, JOB, states)
    assert f"belongs to another model ({text}): resume with the model that wrote it" in str(caught.value)


def test_resume_under_another_schedule_than_a_function_names_the_function_and_not_its_values() -> None:
    values = {"lr": write_values([0.1 / (1 + step) for step in range(10)])}
    held = JOB.model_copy(update={"schedule": ScheduleSpec(name="values", values=values)})
    manifest = Manifest(step=1, job=held.model_dump_json(), graph_hash="ab", shards=())
    with pytest.raises(CheckpointError, match=r"other settings \(schedule\.name: a function -> constant\): set them back"):
        check_resume(manifest, "ab", JOB)


def test_bad_shard_names_and_folders(store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"shard name '\.\./a' is not allowed"):
        store.write_shard(1, "../a", STATES)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can't be written: Not a directory; choose another folder"):
        CheckpointStore(tmp_path / "file").write_shard(1, "a", STATES)


def test_the_error_of_a_resume_lists_at_most_four_changes(store: CheckpointStore) -> None:
    manifest = write(store, 3)
    other = {"seed": 5, "precision": "bf16", "micro_batch_sizes": [3, 5], "schedule": {"name": "cosine", "warmup": 2}}
    with pytest.raises(CheckpointError) as caught:
        check_resume(manifest, "ab" * 32, make_job({"steps": 10, **other, "optimizer": {"name": "adamw", "lr": 1.0}}))
    text = str(caught.value)
    assert "seed: 4 -> 5" in text
    assert text.count(" -> ") == 4
    assert re.search(r" and \d more\): set them back", text)
    assert "\n" not in text


def test_a_lack_of_descriptors_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run would go back to an older checkpoint."""
    store = CheckpointStore(tmp_path)
    (tmp_path / "step-0000000004").mkdir()
    (tmp_path / "step-0000000004" / "manifest.json").write_text("{}")

    def refuse(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", refuse)
    said = r"manifest\.json can't be read: Too many open files; raise the limit of open files \(ulimit -n\)"
    for read in (store.latest, lambda: store.manifest(4)):
        with pytest.raises(DiskFull, match=said):
            read()
