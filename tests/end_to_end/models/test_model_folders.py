"""The recipe hf: a folder of the transformers library in, two workers, a folder out, with the weights of a plain loop."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung.checkpoint import FileBlob, Weights
from farflung.frontends.recipes.model_folder import OWN_ARGUMENTS, model_folder
from farflung.frontends.recipes.tasks import TASKS
from farflung.job import JobSpec, load_job, make_job
from tests.support.models.model_folders import FOLDERS, save_arrays, save_model, save_tokenizer
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of, text_job
from tests.support.runs.model_exports import arrays_of, exported, trained


def folder_job(kind: str, home: Path, **changes: Any) -> JobSpec:
    """Two steps in two stages on the arrays of a task; ``args`` among the changes are added to the recipe's."""
    args = {"folder": str(home / "model"), **FOLDERS[kind].args, **changes.pop("args", {})}
    data = {"kind": "array", "path": "arrays", "fields": {name: name for name in FOLDERS[kind].data}}
    given = {"steps": 2, "model": {"recipe": "hf", "args": args}, "data": data, "plan": {"planner": "equal_number"}}
    return text_job(**(given | changes))


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_in_and_a_folder_out(tmp_path: Path, kind: str) -> None:
    import transformers

    before = save_model(kind, tmp_path / "model")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    save_arrays(kind, tmp_path / "arrays")
    finished, module = trained(folder_job(kind, tmp_path, evaluate={"batches": 1}), tmp_path, arrays_of(before))
    assert finished.evaluations[-1].loss > 0
    out = exported(finished, tmp_path / "out")
    made = getattr(transformers, FOLDERS[kind].model)
    after, notes = made.from_pretrained(out, output_loading_info=True)
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    assert same(arrays_of(module), arrays_of(after)) == []
    assert same(arrays_of(before), arrays_of(after)) != []


def test_tokenizer_and_chat_template_come_out_again(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with Loopback(tmp_path, 2) as cluster:
        save_model("causal", tmp_path / "model", vocab_size=256)
        save_tokenizer(tmp_path / "model")
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "part0.txt").write_text(" ".join(f"word{number % 250 + 2}" for number in range(900)))
        data = {"kind": "text", "path": "corpus", "tokenizer": "model/tokenizer.json", "sequence": 12}
        finished = cluster.run(folder_job("causal", tmp_path, data=data))
        assert finished.result.status == "finished", finished.result.cause
        out = exported(finished, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert tokenizer.apply_chat_template([{"content": "word3"}], tokenize=False) == "word3 "
    asked = tokenizer("word7 word8", return_tensors="pt")
    assert AutoModelForCausalLM.from_pretrained(out, local_files_only=True).generate(**asked).shape[1] > 2


def test_a_worker_needs_the_files_of_its_stage_only(tmp_path: Path) -> None:
    """Each worker's folder lacks the files that have no tensor of its stage: reading another tensor would fail."""
    before = save_model("experts", tmp_path / "model")
    with Loopback(tmp_path, 0) as cluster:
        for name in "ab":
            save_arrays("experts", tmp_path / name / "arrays")
            shutil.copytree(tmp_path / "model", tmp_path / name / "model")
            cluster.add(name, data=tmp_path / name)
        save_arrays("experts", tmp_path / "arrays")
        job = folder_job("experts", tmp_path, weights={"source": "file", "path": "model", "home": "workers"}, workers=2)
        whole = cluster.run(job)
        assert whole.result.status == "finished", whole.result.cause
        files = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())["weight_map"]
        shards = {name: stage_files(whole, stage, files) for stage, name in enumerate("ab")}
        assert shards["a"] - shards["b"]
        assert shards["b"] - shards["a"]
        for name, needed in shards.items():
            for file in set(files.values()) - needed:
                (tmp_path / name / "model" / file).unlink()
        parted = cluster.run(job)
        assert parted.result.status == "finished", parted.result.cause
    _, truth = plainly(job, tmp_path, arrays_of(before))
    assert same(truth.states, states_of(parted)) == []


def stage_files(finished: Finished, stage: int, files: dict[str, str]) -> set[str]:
    """The files with a tensor of a layer, or of another module, that the stage's shard of the checkpoint names."""
    states = {
        tensor.name for tensor in finished.reader().manifest.shards[stage].tensors if not tensor.name.startswith("optimizer")
    }
    modules = {".".join(name.split(".")[:3]) for name in states}
    parts = {name for name in files if ".".join(name.split(".")[:3]) in modules}
    return {files[name] for name in parts}


def test_no_other_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("causal", tmp_path / "model")
    ranges: list[tuple[str, int, int]] = []
    read = FileBlob.read

    def watched(self: FileBlob, offset: int, length: int) -> bytearray:
        ranges.append((self.name, offset, length))
        return read(self, offset, length)

    monkeypatch.setattr(FileBlob, "read", watched)
    weights = Weights.open(tmp_path / "model")
    assert ranges == []
    name = "model.layers.1.mlp.up_proj.weight"
    found = weights.read(name)
    entry = weights.entry(name)
    assert found.nbytes == entry.stop - entry.start
    header = entry.start
    assert {file for file, _, _ in ranges} == {ranges[0][0]}
    assert all(offset < header or (offset, length) == (entry.start, found.nbytes) for _, offset, length in ranges)


def test_the_submitter_builds_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 60 GB is captured on this machine."""
    from transformers import LlamaConfig

    from farflung.frontends.recipes import load_recipe

    LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=18, num_attention_heads=64).save_pretrained(tmp_path)
    graph = load_recipe("hf", {"folder": str(tmp_path), "sequence": 8}).graph("train", 1)
    assert sum(state.spec.nbytes for state in graph.states) > 60e9
    assert torch.get_default_dtype() is torch.float32


def test_the_page_has_a_whole_job(tmp_path: Path) -> None:
    """The block of docs/transformers.md: it trains, on the folder that it names, with a tokenizer of that folder."""
    page = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text(encoding="utf-8")
    block, chats = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert make_job(tomllib.loads(chats)).data.messages == "messages"
    save_model("causal", tmp_path / "model", vocab_size=256, max_position_embeddings=512)
    save_tokenizer(tmp_path / "model")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "part0.txt").write_text(" ".join(f"word{number % 250 + 2}" for number in range(9000)))
    (tmp_path / "job.toml").write_text(block.replace("steps = 100", "steps = 1"))
    with Loopback(tmp_path, 1) as cluster:
        finished = cluster.run(load_job(tmp_path / "job.toml"))
    assert finished.result.status == "finished", finished.result.cause


def test_the_page_lists_every_task_and_argument() -> None:
    page = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| `", page, flags=re.MULTILINE) == list(TASKS)
    named = set(re.findall(r"\b[a-z_]+\b", page))
    assert {*inspect.signature(model_folder).parameters, *OWN_ARGUMENTS} - {"more"} <= named
