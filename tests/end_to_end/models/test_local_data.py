"""Data where they are read: present, fitting, and looked for on no other machine, before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_folder, text_job

LAYERS = {"recipe": "gpt", "args": {"sequence": 16, "layers": 3, "width": 16, "heads": 2, "tied": False}}
BY_NUMBER = {"planner": "equal_number"}


def test_a_stage_in_the_middle_needs_no_data(tmp_path: Path) -> None:
    text_folder(tmp_path)
    job = text_job(
        steps=2,
        workers=3,
        model=LAYERS,
        plan=BY_NUMBER,
        evaluate={"batches": 1},
        generate={"prompt": "def ", "tokens": 3},
        data={"tokenizer": "chars"},
    )
    with Loopback(tmp_path, 1) as cluster:
        cluster.add("b", data=tmp_path / "nothing")
        cluster.add("c")
        finished = cluster.run(job)
        assert finished.result.status == "finished", finished.result.cause
        assert finished.devices == ("a", "b", "c")
        assert finished.result.sample.startswith("def ")
    _, truth = plainly(job, tmp_path)
    assert same(truth.states, states_of(finished)) == []


def test_missing_data_fail_the_run_before_it_starts(tmp_path: Path) -> None:
    text_folder(tmp_path)
    with Loopback(tmp_path, 1) as cluster:
        cluster.add("b", data=tmp_path / "nothing")
        finished = cluster.run(text_job(model=LAYERS, plan=BY_NUMBER, workers=2))
        assert finished.result.status == "failed"
        assert finished.result.cause.startswith("worker b: data 'corpus' is not on this machine (looked at ")
        assert finished.steps == []
        cluster.run(text_job(steps=1, workers=1))
        missing = cluster.run(text_job(data={"tokenizer": "own/tokenizer.json"}))
        assert "tokenizer 'own/tokenizer.json' is not on this machine" in missing.result.cause


def test_the_vocabulary_must_hold_the_tokenizer(two: Loopback) -> None:
    small = {"recipe": "gpt", "args": {"vocab": 100, "sequence": 16, "layers": 1, "width": 16, "heads": 2}}
    result = two.run(text_job(model=small)).result
    assert result.status == "failed"
    assert "data.tokenizer = 'bytes' has 256 ids, the model's vocabulary 100: raise the vocabulary in model.args" in result.cause


def test_the_window_must_fit_the_model(two: Loopback) -> None:
    result = two.run(text_job(data={"sequence": 8})).result
    assert result.status == "failed"
    assert "takes [16] per sample, the data's '" in result.cause  # whichever stage tells first
    assert "has [8]: set data.sequence" in result.cause


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_evaluation_has_its_own_samples(two: Loopback, fraction: float) -> None:
    job = text_job(steps=1, data={"eval_fraction": fraction}, evaluate={"batches": 2})
    finished = two.run(job)
    if fraction:
        assert [record.step for record in finished.evaluations] == [1]
    else:
        assert "nothing to evaluate on: set data.eval_path, or data.eval_fraction above 0" in finished.result.cause


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"data": {"path": "../corpus"}}, "../corpus"),
        ({"data": {"path": "away"}}, "away"),
        ({"data": {"tokenizer": "../tokenizer.json"}}, "../tokenizer.json"),
        ({"data": {"path": "corpus", "eval_path": "../corpus"}, "evaluate": {"batches": 1}}, "../corpus"),
        ({"weights": {"source": "file", "home": "workers", "path": "../w.safetensors"}}, "../w.safetensors"),
        ({"weights": {"source": "file", "home": "workers", "path": "folder"}}, "folder"),
    ],
)
def test_a_job_reads_nothing_outside_of_the_data_folder(inner: Loopback, changes: dict[str, Any], path: str) -> None:
    finished = inner.run(text_job(steps=1, workers=1, **changes))
    assert finished.result.status == "failed"
    cause = finished.result.cause
    assert cause.startswith(f"worker a: data path {path!r} leads out of this machine's data folder, which jobs may not leave (")
    assert f" is not in {inner.home.resolve() / 'inner'}): put the files there, or start this worker with --data FOLDER" in cause
    assert "with --any-path" in cause


def test_a_worker_may_let_jobs_read_everything(tmp_path: Path) -> None:
    text_folder(tmp_path)
    with Loopback(tmp_path, 0) as cluster:
        (tmp_path / "inner").mkdir()
        cluster.add("a", data=tmp_path / "inner", any_path=True)
        assert cluster.run(text_job(steps=1, data={"path": "../corpus"})).result.status == "finished"


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A worker whose data folder is ``inner``; beside it lies what jobs may not read, and in it are links that lead there."""
    home = tmp_path_factory.mktemp("home")
    text_folder(home)
    text_folder(home / "inner")
    (home / "inner" / "away").symlink_to(home / "corpus")
    (home / "w.safetensors").write_bytes(b"")
    (home / "inner" / "folder").mkdir()
    (home / "inner" / "folder" / "model.safetensors").symlink_to(home / "w.safetensors")
    with Loopback(home, 0) as cluster:
        cluster.add("a", data=home / "inner")
        yield cluster
