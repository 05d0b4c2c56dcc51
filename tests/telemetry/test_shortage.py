"""How much space is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from farflung.telemetry.shortage import free_space


def test_the_fullest_disk_counts_and_folders_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    sizes = {tmp_path: 5, tmp_path / "b": 3}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(9, 9, sizes[place]))  # type: ignore[attr-defined]
    assert free_space([tmp_path / "none" / "yet"]) == 5.0
    assert free_space([tmp_path, tmp_path / "b" / "c"]) == 3.0


def test_no_folder_or_a_disk_that_does_not_answer_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(place: Path) -> None:
        raise OSError(5, "input/output error")

    assert free_space([]) is None
    assert (free_space([tmp_path]) or 0.0) > 0
    monkeypatch.setattr(shutil, "disk_usage", broken)
    assert free_space([tmp_path]) is None
