"""The page on job files and the job's model say the same: every key is on the page, and every default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.job import load_job, make_job
from farflung.job.spec import DataSpec, JobSpec

DOCS = Path(__file__).parent.parent / "docs"


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= keys(inner, f"{name}.")
        elif name == "model":
            found |= {"recipe", "args"}
        else:
            found.add(name if prefix in ("data.", "codec.", "plan.", "sync.") else prefix + name)
    return found


def documented() -> set[str]:
    rows = re.findall(r"^\| (`[^|]+`) \|", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([a-z_.]+)`", row)}


def test_every_key_is_on_the_page() -> None:
    assert documented() == keys(JobSpec)


def test_a_job_file_names_the_kind_of_its_data(tmp_path: Path) -> None:
    page = (DOCS / "jobs.md").read_text(encoding="utf-8")
    (kinds,) = re.findall(r"^\| `kind` \| must be named \| (.*); `farflung.train` has `caller`", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", kinds)) | {"caller"} == set(get_args(DataSpec.model_fields["kind"].annotation))
    (tmp_path / "job.toml").write_text('[model]\nrecipe = "gpt"\n[data]\nsequence = 8\n')
    with pytest.raises(InputError, match=r"data\.kind = 'caller' needs a Python caller"):
        load_job(tmp_path / "job.toml")


def test_the_example_is_a_job() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    job = make_job(tomllib.loads(block))
    assert job.micro_batches == 4
    assert job.model is not None
    assert job.model.recipe == "gpt"


def test_the_topology_is_one() -> None:
    text = (DOCS / "machines.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    topology = Topology.from_text(block)
    assert topology.names == ("attic-pc", "spot-0", "spot-1")
    assert topology.link("attic-pc", "spot-1").bandwidth == 5e6
    assert topology.link("spot-0", "spot-1").bandwidth == 125e6


def test_the_model_of_the_page_counts_what_is_right(tmp_path: Path) -> None:
    from farflung.frontends.recipes import load_recipe

    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "net.py").write_text(block)
    recipe = load_recipe("net.py:net", {"width": 4}, base=tmp_path)
    train, evaluation = recipe.graph("train", 2), recipe.graph("evaluate", 2)
    assert [name for name, _ in train.outputs] == ["loss"]
    assert [name for name, _ in evaluation.outputs] == ["loss", "correct"]
    assert {state.name for state in train.states} == {state.name for state in evaluation.states}


def test_the_arguments_of_lora_are_those_of_the_recipe() -> None:
    from farflung.frontends.recipes import huggingface

    listed = re.findall(r"^\| (lora_\w+) \|", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed == [name for name in huggingface.OWN_ARGUMENTS if name.startswith("lora_")]


def test_the_page_counts_the_examples() -> None:
    assert "has five whole files" in (DOCS / "jobs.md").read_text(encoding="utf-8")
    assert len(list((DOCS.parent / "examples").glob("*.toml"))) == 5
