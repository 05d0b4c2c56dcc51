"""The pages on job files agree with the job's model: every named key exists, and every block and recipe works."""

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
from farflung.job.spec import DataSpec, JobSpec, ModelSpec
from farflung.telemetry import FAULT_POINTS

DOCS = Path(__file__).parents[2] / "docs"


def is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = ModelSpec if name == "model" else field.annotation
        if is_section(inner):
            found |= keys(inner, f"{prefix}{name}.") | ({prefix + name} if prefix else set())
        else:
            found.add(prefix + name)
    return found


KEYS = keys(JobSpec)
#: Names of other things than keys: files, fault points, an attribute of a module, a part of a plan.
FILES = {"plan.html", "report.html", "plan.json", "model.safetensors"}
OTHERS = FILES | {"plan.stages", "model.beta", "sync.local_steps", *FAULT_POINTS}


def test_keys_that_pages_name_exist() -> None:
    """``section.key`` in backticks, also with a value, on every page."""
    sections = "|".join(name for name, field in JobSpec.model_fields.items() if name == "model" or is_section(field.annotation))
    for page in (one for one in DOCS.rglob("*.md") if one.name != "messages.md"):
        named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?:\.[a-z_]+)?(?: =[^`]*)?`", page.read_text(encoding="utf-8")))
        assert named - KEYS - OTHERS == set(), page.name


def test_a_key_that_does_not_exist_is_found() -> None:
    assert {"plan.replicas", "model.args", "sync.settings"} <= KEYS
    assert "plan.copies" not in KEYS | OTHERS


def test_a_job_file_names_the_kind_of_its_data(tmp_path: Path) -> None:
    table = (DOCS / "jobs.md").read_text(encoding="utf-8").partition("| `kind` | files |")[2].partition("\n\n")[0]
    kinds = set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    assert kinds | {"caller"} == set(get_args(DataSpec.model_fields["kind"].annotation))
    (tmp_path / "job.toml").write_text('[model]\nrecipe = "gpt"\n[data]\nsequence = 8\n')
    with pytest.raises(InputError, match=r"data\.kind = 'caller' needs a Python caller"):
        load_job(tmp_path / "job.toml")


def test_the_example_is_a_job() -> None:
    block, _, chats, shards, images, optimizer = re.findall(
        r"```toml\n(.*?)```", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert make_job({"steps": 1000, **tomllib.loads(optimizer)}).optimizer.name == "lion"
    assert [part.path for part in make_job(tomllib.loads(chats)).data.parts] == ["chats.jsonl", "books"]
    assert make_job(tomllib.loads(shards)).data.fields == {"images": "jpg", "labels": "cls"}
    assert make_job({"data": {"kind": "images", "path": "train", **tomllib.loads(images)["data"]}}).data.image.crop == 4
    job = make_job(tomllib.loads(block))
    assert job.micro_batches == 4
    assert (job.optimizer.name, job.schedule.warmup) == ("adamw", 20), "sgd does not learn a language in 300 steps"
    assert job.model is not None
    assert job.model.recipe == "gpt"


def test_the_topology_is_one() -> None:
    text = (DOCS / "network.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    topology = Topology.from_text(block)
    assert topology.names == ("attic-pc", "spot-0", "spot-1")
    assert topology.link("attic-pc", "spot-1").bandwidth == 5e6
    assert topology.link("spot-0", "spot-1").bandwidth == 125e6


def test_the_model_of_the_page_counts_what_is_right(tmp_path: Path) -> None:
    from farflung.frontends.recipes import load_recipe

    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "net.py").write_text(block)
    (tmp_path / "job.toml").write_text(
        re.findall(r"```toml\n(.*?)```", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    )
    job = load_job(tmp_path / "job.toml")
    assert job.model is not None
    assert (job.model.recipe, job.model.args) == (f"{tmp_path}/net.py:net", {"width": 32})
    recipe = load_recipe("net.py:net", {"width": 4}, base=tmp_path)
    train, evaluation = recipe.graph("train", 2), recipe.graph("evaluate", 2)
    assert [name for name, _ in train.outputs] == ["loss"]
    assert [name for name, _ in evaluation.outputs] == ["loss", "correct"]
    assert {state.name for state in train.states} == {state.name for state in evaluation.states}


def test_the_arguments_of_lora_are_those_of_the_recipe() -> None:
    from farflung.frontends.recipes import huggingface

    listed = re.findall(r"^\| (lora_\w+) \|", (DOCS / "jobs.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed == [name for name in huggingface.OWN_ARGUMENTS if name.startswith("lora_")]


def test_the_job_of_two_laptops_is_the_one_of_the_page_with_a_planner_that_uses_both() -> None:
    """The page tutorials/two-laptops.md."""
    tutorial, page = (
        tomllib.loads(re.findall(r"```toml\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)[0])
        for name in ("tutorials/two-laptops.md", "jobs.md")
    )
    assert make_job(tutorial).plan.planner == "equal_compute"
    assert tutorial == {**page, "name": "two-laptops", "plan": {"planner": "equal_compute"}}


def test_the_page_counts_the_examples() -> None:
    text = " ".join((DOCS / "jobs.md").read_text(encoding="utf-8").split())
    (listed,) = re.findall(r"has five whole files: (.*?)\. ", text)
    assert set(re.findall(r"`([^`]+)`", listed)) == {path.name for path in (DOCS.parent / "examples").glob("*.toml")}
