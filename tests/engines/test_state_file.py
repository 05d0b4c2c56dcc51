"""A file for optimizer states: what is written is read, it has no name, and a full or broken disk is an error that says so."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.engines import state_file
from farflung.engines.state_file import DiskSpace, StateFile, disk_rate
from farflung.errors import DiskFull, InputError, TrainingError


def refused(code: int) -> Any:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "_FLUSH", 1000)
    file = StateFile.create(tmp_path, 3 * 4096)
    arrays = [np.arange(500, dtype=np.float64), np.arange(20, dtype=np.uint8).reshape(4, 5), np.ones(1000, np.float32)]
    places = [file.reserve(array.nbytes) for array in arrays]
    assert places == [0, 4096, 8192]
    for array, place in zip(arrays, places, strict=True):
        file.write(place, array)
    for array, place in zip(arrays, places, strict=True):
        found = np.empty_like(array)
        file.read(place, found)
        assert np.array_equal(found, array)
    with pytest.raises(DiskFull, match=r"more than 12\.3 kB, which the plan has"):
        file.reserve(1)


def test_the_space_is_reserved_and_the_file_has_no_name(tmp_path: Path) -> None:
    file = StateFile.create(tmp_path / "new", 1 << 20)
    assert list((tmp_path / "new").iterdir()) == []
    assert os.fstat(file.descriptor).st_blocks * 512 >= 1 << 20


def test_its_space_goes_back_with_it(tmp_path: Path) -> None:
    file = StateFile.create(tmp_path, 4096)
    descriptor = file.descriptor
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_full_disk_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refused(errno.ENOSPC))
    with pytest.raises(DiskFull, match=r"optimizer states take 5 MB, and the disk has not so much free space; free some"):
        DiskSpace(tmp_path, 10_000_000).file(5_000_000)
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_owner_offers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"take 5 MB, and this worker offers 4 MB of its disk; offer more with --disk"):
        DiskSpace(tmp_path, 4_000_000).file(5_000_000)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--disk-folder .*file: no file can be made there .* choose another folder"):
        StateFile.create(tmp_path / "file", 1)


@pytest.mark.parametrize(("call", "word"), [("pwritev", "written to"), ("preadv", "read from")])
def test_a_broken_disk_is_an_error_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, word: str) -> None:
    file, array = StateFile.create(tmp_path, 4096), np.ones(4)
    monkeypatch.setattr(os, call, refused(errno.EIO))
    with pytest.raises(TrainingError, match=f"optimizer states can't be {word} the disk: .*Input/output error"):
        (file.write if call == "pwritev" else file.read)(0, array)


def test_a_file_that_became_shorter_is_not_read(tmp_path: Path) -> None:
    file = StateFile.create(tmp_path, 4096)
    os.ftruncate(file.descriptor, 100)
    with pytest.raises(TrainingError, match="the file ends too early"):
        file.read(0, np.empty(200, np.uint8))


def test_the_rate_is_measured_over_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 12.0))
    monkeypatch.setattr(state_file, "precise_time", lambda: next(times))
    assert disk_rate(DiskSpace(tmp_path, 20 << 20)) == 2 * (16 << 20) / 2.0
    assert list(tmp_path.iterdir()) == []
