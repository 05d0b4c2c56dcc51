"""The files beside a model's weights: which of them a job brings, and the tokenizer of plain bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.checkpoint import ModelFiles, bytes_tokenizer, find_model_files
from farflung.errors import InputError
from farflung.job import JobSpec, make_job


def job(**changes: Any) -> JobSpec:
    data = {"kind": "text", "path": "corpus", "tokenizer": "model/tokenizer.json"}
    return make_job({"model": {"recipe": "gpt2", "args": {"folder": "model"}}, "data": data} | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder with a model, which has a tokenizer, settings for generation, and weights."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_text(f"model's {name}")
    (tmp_path / "other.json").write_text("another tokenizer")
    return tmp_path


def test_the_files_of_the_model_folder_are_found(folder: Path) -> None:
    assert sorted(find_model_files(job(), folder)) == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    weights = {"source": "file", "path": "model/model.safetensors"}
    assert find_model_files(job(model={"recipe": "gpt2"}, weights=weights), folder) == find_model_files(job(), folder)
    assert find_model_files(job(model={"recipe": "gpt2"}, data={"kind": "array", "path": "x"}), folder) == {}


def test_the_tokenizer_is_the_one_of_the_training(folder: Path) -> None:
    def data(tokenizer: str) -> dict[str, str]:
        return {"kind": "text", "path": "corpus", "tokenizer": tokenizer}

    found = find_model_files(job(data=data("other.json")), folder)
    assert found == {"tokenizer.json": b"another tokenizer", "generation_config.json": b"model's generation_config.json"}
    for plain in ("bytes", "chars"):
        assert sorted(find_model_files(job(data=data(plain)), folder)) == ["generation_config.json"]
    # a tokenizer that only the workers have: the folder's is taken for it
    assert find_model_files(job(data=data("elsewhere.json")), folder)["tokenizer.json"] == b"model's tokenizer.json"


def test_a_file_that_is_no_tokenizer_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.checkpoint.model_files._LARGEST", 4)
    with pytest.raises(InputError, match=r"generation_config.json has 30 bytes, at most 4 are kept with a run: is it the file"):
        find_model_files(job(), folder)


def test_a_run_keeps_files(tmp_path: Path) -> None:
    kept = ModelFiles(tmp_path / "run-1")
    assert (kept.read(), kept.tokenizer) == ({}, None)
    kept.write({"tokenizer.json": b"{}"})
    assert kept.read() == {"tokenizer.json": b"{}"}
    assert kept.tokenizer == tmp_path / "run-1" / "model" / "tokenizer.json"


def test_the_tokenizer_of_bytes_gives_bytes_and_their_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ModelFiles(tmp_path).write(bytes_tokenizer())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model", local_files_only=True)
    for text in ("def f(x):\n\treturn  x", "Grüße, 世界", "".join(map(chr, range(256)))):
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
