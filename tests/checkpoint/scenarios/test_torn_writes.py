"""A writer is killed after every single operation on the disk, and what was not forced to disk is torn: what is read is whole.

The disk is modelled by hooks around what the store calls. A kill makes the operation under way, and all that follow, fail in a
way that no handler catches; then each file loses what was written to it since it was last forced to disk, or a part of that,
whether it was renamed meanwhile or not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farflung.checkpoint import CheckpointReader, CheckpointStore, Manifest
from farflung.job import make_job, to_json

JOB = make_job({"steps": 10})


class Killed(BaseException):
    """The process is dead: nobody handles this."""


class Disk:
    """Counts operations and kills at ``limit`` (None: never)."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.count = limit, 0
        #: inode -> bytes that are forced to disk
        self.forced: dict[int, int] = {}
        self.written: dict[int, Path] = {}

    def step(self) -> None:
        if self.limit is not None and self.count >= self.limit:
            raise Killed
        self.count += 1

    def crash(self, folder: Path, share: float) -> None:
        """What was not forced to disk is there in part."""
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_ino in self.written:
                safe = self.forced.get(path.stat().st_ino, 0)
                os.truncate(path, safe + int((path.stat().st_size - safe) * share))

    @contextmanager
    def hooked(self) -> Iterator[None]:
        patch = pytest.MonkeyPatch()
        opening = Path.open

        def opened(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if not set(mode) & set("xwa+"):
                return opening(path, mode, *rest, **named)
            self.step()
            file = opening(path, mode, *rest, **named)
            self.written[os.fstat(file.fileno()).st_ino] = path
            return _Stream(file, self)

        def forced(handle: int) -> None:
            self.step()
            self.forced[os.fstat(handle).st_ino] = os.fstat(handle).st_size

        def before(call: Callable[..., Any]) -> Callable[..., Any]:
            def act(*args: Any, **named: Any) -> Any:
                self.step()
                return call(*args, **named)

            return act

        def removed(folder: Path) -> None:
            for file in sorted(folder.iterdir()):
                self.step()
                file.unlink()
            folder.rmdir()

        patch.setattr(Path, "open", opened)
        patch.setattr(os, "fsync", forced)
        patch.setattr(Path, "replace", before(Path.replace))
        patch.setattr(Path, "unlink", before(Path.unlink))
        patch.setattr(shutil, "rmtree", removed)
        try:
            yield
        finally:
            patch.undo()


class _Stream:
    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        self._disk.step()
        written: int = self._file.write(data)
        self._file.flush()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def states(step: int) -> dict[str, np.ndarray[Any, Any]]:
    return {f"layer{index}": np.full((3, 2), 10 * step + index, np.float32) for index in range(4)}


def write(store: CheckpointStore, step: int) -> None:
    """Two workers write their shards, then the manifest; older checkpoints go."""
    mine = sorted(states(step).items())
    shards = [store.write_shard(step, f"w{worker}", dict(mine[worker::2])) for worker in range(2)]
    store.write_manifest(Manifest(step=step, job=to_json(JOB), graph_hash="g", shards=tuple(shards)), list(states(step)))
    store.prune(keep=1)


def operations(folder: Path) -> int:
    disk = Disk(None)
    with disk.hooked():
        for step in (1, 2, 2):
            write(CheckpointStore(folder), step)
    return disk.count


def newest(store: CheckpointStore) -> int:
    """The step of the newest whole checkpoint, every byte of which is right (0: there is none)."""
    found = store.latest()
    if found is None:
        return 0
    reader = CheckpointReader.from_folder(store.folder, found.step)
    for name, array in reader.read(reader.manifest.states).items():
        assert array.tobytes() == states(found.step)[name].tobytes(), "a torn or mixed checkpoint was read"
    return found.step


def killed_at(folder: Path, limit: int, share: float) -> None:
    store, disk, done = CheckpointStore(folder), Disk(limit), 0
    with disk.hooked(), suppress(Killed):
        for number, step in enumerate((1, 2, 2), start=1):
            write(store, step)
            done = number
    disk.crash(folder, share)
    found = newest(store)
    assert found in {0: (0, 1), 1: (1, 2), 2: (2,), 3: (2,)}[done], f"killed at {limit}: {found} after {done} writes"
    write(store, 3)
    assert newest(store) == 3, "what was left stands in nobody's way"
    assert store.steps() == (3,)


def test_every_prefix_of_the_writes(tmp_path: Path) -> None:
    count = operations(tmp_path / "whole")
    assert count > 30
    for limit in range(count + 1):
        killed_at(tmp_path / f"at-{limit}", limit, 0.5)


@given(st.integers(0, 60), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_part_of_the_unforced_bytes_is_there(tmp_path_factory: pytest.TempPathFactory, limit: int, share: float) -> None:
    killed_at(tmp_path_factory.mktemp("torn"), limit, share)


def test_the_model_finds_a_store_that_forces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(None)
    store = CheckpointStore(tmp_path)
    with disk.hooked():
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        write(store, 1)
    disk.crash(tmp_path, 0.5)
    assert store.latest() is None, "torn files are noticed, and there is no other checkpoint"
