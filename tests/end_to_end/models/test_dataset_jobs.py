"""Jobs on datasets: order and weights of a run that resumes, with other workers; only the readers have the data."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path

import pytest

from farflung.job import JobSpec, make_job
from tests.support.models.tables import NEEDS_DATASETS, chat, tokenizer_folder, write_rows
from tests.support.runs.loopback import Loopback, plainly, same, text_job
from tests.support.runs.resumed_runs import continues, rest

pytestmark = NEEDS_DATASETS

STEPS = 6


def rows(home: Path) -> None:
    tokenizer_folder(home / "tok")
    write_rows(home / "chats.jsonl", [chat(f"what is {i}?", f"{i * i}", "and then?", f"{i}") for i in range(40)])
    write_rows(home / "texts.jsonl", [{"text": f"number {i} " * (i % 5 + 1)} for i in range(60)])


CHATS = {"path": "chats.jsonl", "messages": "messages", "tokenizer": "tok", "packing": "whole"}
MIXTURE = {
    "path": "",
    "text": "text",
    "tokenizer": "tok",
    "mixture": [{"path": "texts.jsonl", "weight": 3.0}, {"path": "chats.jsonl", "messages": "messages"}],
}


def job(seed: int, data: dict[str, object]) -> JobSpec:
    """Six steps with a checkpoint after each."""
    return text_job(
        seed=seed,
        steps=STEPS,
        checkpoint={"every": 1, "keep": STEPS},
        model={"args": {"vocab": 257, "sequence": 64, "layers": 2, "width": 16, "heads": 2}},
        data={"kind": "dataset", "sequence": 64, **data},
    )


@pytest.mark.parametrize(
    ("seed", "data"), [(1, CHATS), (2, CHATS), (3, MIXTURE), (4, MIXTURE)], ids=["1", "2", "mixed-3", "mixed-4"]
)
def test_a_run_resumes_at_the_exact_sample_with_other_workers(seed: int, data: dict[str, object], tmp_path: Path) -> None:
    rows(tmp_path)
    choice = random.Random(seed)
    before, after = choice.sample([1, 2, 3], 2)
    whole, step = job(seed, data), choice.randrange(1, STEPS)
    with Loopback(tmp_path, before) as cluster:
        first = cluster.run(whole)
    assert first.result.status == "finished", first.result.cause
    truth = plainly(whole, tmp_path)[1]
    assert first.losses == [pytest.approx(loss, rel=1e-12) for loss in truth.losses]
    assert same({name: first.tensors(STEPS)[name] for name in truth.states}, truth.states) == []
    with Loopback(tmp_path, after) as cluster:
        second = cluster.run(rest(whole, f"{first.folder}/checkpoints/step-{step:010}"))
    continues(first, second, step)


def test_the_job_of_the_page(tmp_path: Path) -> None:
    """The first job of docs/jobs.md that trains on a dataset, for two steps."""
    import datasets

    page = Path(__file__).resolve().parents[3] / "docs/jobs.md"
    blocks = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    block = next(one for one in blocks if "model" in one and one["data"]["kind"] == "dataset")
    tokenizer_folder(tmp_path / "tokenizer")
    write_rows(tmp_path / "chats.jsonl", [chat("what?", "that", "why?", str(i)) for i in range(200)])
    (tmp_path / "books").mkdir()
    datasets.Dataset.from_dict({"text": [f"a book of {i} words" * 9 for i in range(50)]}).to_parquet(tmp_path / "books/a.parquet")
    with Loopback(tmp_path, 2) as cluster:
        found = cluster.run(make_job({**block, "steps": 2}))
    assert found.result.status == "finished", found.result.cause
    assert found.steps[0].tokens == 8 * 256


def test_only_the_workers_that_read_have_the_data(tmp_path: Path) -> None:
    owner, other = tmp_path / "owner", tmp_path / "other"
    other.mkdir(parents=True)
    rows(owner)
    with Loopback(tmp_path, 0) as cluster:
        cluster.add("a", data=owner)
        cluster.add("b", data=other)
        cluster.add("c", data=owner)
        found = cluster.run(job(1, CHATS))
    assert found.result.status == "finished", found.result.cause
    assert found.devices == ("a", "b", "c"), "the first and the last stage read"
    assert not list(other.iterdir())
