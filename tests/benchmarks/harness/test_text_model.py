"""The made-up text of benchmarks is the same each time and long enough for its samples."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.text_model import gpt2_of, made_up_text
from benchmarks.training.memory import MemorySettings
from benchmarks.training.sync_memory import SyncMemorySettings
from farflung.data import open_source


def test_the_text_is_read_as_its_section_says(tmp_path: Path) -> None:
    section = made_up_text(tmp_path, 16, samples=20)
    first = (tmp_path / "text.txt").read_bytes()
    assert len(first) == 320
    assert made_up_text(tmp_path, 16, samples=20) == section
    assert (tmp_path / "text.txt").read_bytes() == first
    assert open_source(section, tmp_path).size > 0


def test_both_memory_benchmarks_train_the_same_model() -> None:
    one, two = gpt2_of(MemorySettings(sequence=64)), gpt2_of(SyncMemorySettings())
    assert one == two
    assert one.args["n_layer"] == 12
