"""Models of the transformers library: fine-tuned from their files, exported for from_pretrained, adapted by peft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farflung.cli.main import main
from farflung.foreign_text import printable
from farflung.job import JobSpec
from tests.support.models.model_folders import save_tokenizer
from tests.support.runs.loopback import Finished, Loopback, plainly, same, states_of, text_folder, text_job

pytestmark = pytest.mark.slow

GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 16, "sequence": 16}
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 256,
    "max_position_embeddings": 16,
    "sequence": 16,
}
BERT = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 256,
    "max_position_embeddings": 16,
    "sequence": 16,
}
KINDS = {"gpt2": (GPT2, "GPT2LMHeadModel"), "llama": (LLAMA, "LlamaForCausalLM"), "bert": (BERT, "BertForMaskedLM")}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Loopback]:
    text_folder(tmp_path)
    with Loopback(tmp_path, 2) as found:
        yield found


def job_of(kind: str, **changes: Any) -> JobSpec:
    """Two steps; ``args`` among the changes are added to the recipe's."""
    args = {**KINDS[kind][0], **changes.pop("args", {})}
    return text_job(**{"steps": 2, "model": {"recipe": kind, "args": args}, **changes})


def export(finished: Finished, out: Path, option: str) -> Path:
    with pytest.raises(SystemExit) as over:
        main(["checkpoint", "export", str(finished.folder), str(out), option])
    assert not over.value.code
    return out


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.arange(32).reshape(2, 16)).logits
    return found


def pretrained(kind: str, home: Path) -> Any:
    """A model that somebody trained and saved in ``home/pretrained``."""
    import transformers

    torch.manual_seed(1)
    args, name = KINDS[kind]
    made = getattr(transformers, name)
    config = made.config_class(**{key: value for key, value in args.items() if key != "sequence"})
    model = made(config)
    model.save_pretrained(home / "pretrained")
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_export_loads_with_equal_logits(cluster: Loopback, kind: str) -> None:
    import transformers

    job = job_of(kind)
    finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    module, truth = plainly(job, cluster.home)
    assert same(truth.states, states_of(finished)) == []
    folder = export(finished, cluster.home / "out", "--pretrained")
    loaded, notes = getattr(transformers, KINDS[kind][1]).from_pretrained(folder, output_loading_info=True)
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    assert torch.equal(logits(loaded), logits(module.model))


def test_an_export_brings_tokenizer_and_generation_settings(cluster: Loopback) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pretrained("gpt2", cluster.home)
    save_tokenizer(cluster.home / "pretrained")
    (cluster.home / "corpus" / "part0.txt").write_text(" ".join(f"word{number % 250 + 2}" for number in range(900)))
    args = {"sequence": 16, "folder": str(cluster.home / "pretrained")}
    data = {"glob": "part0.txt", "tokenizer": "pretrained/tokenizer.json"}
    finished = cluster.run(text_job(steps=2, model={"recipe": "gpt2", "args": args}, data=data))
    assert finished.result.status == "finished", finished.result.cause
    folder = export(finished, cluster.home / "out", "--pretrained")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    asked = tokenizer("word7 word8", return_tensors="pt")
    assert asked["input_ids"].tolist() == [[7, 8]]
    assert tokenizer.apply_chat_template([{"content": "word3"}], tokenize=False) == "word3 "
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    answer = model.generate(**asked)
    assert 2 < answer.shape[1] <= 7, "generation_config.json says five tokens at most"
    assert model.generation_config.max_new_tokens == 5
    assert tokenizer.decode(answer[0, :2]) == "word7 word8"


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2, "lora_targets": "c_attn"}])
def test_generate_writes_what_the_run_wrote(
    cluster: Loopback, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    """The run's own text at its end, token by token through two stages, and that of the command are the same."""
    pretrained("gpt2", cluster.home)
    model = cluster.home / "pretrained"
    wanted = {"prompt": "def answer", "tokens": 12, "temperature": 0.0}
    args = {"sequence": 16, "folder": str(model), **changes}
    finished = cluster.run(text_job(steps=4, model={"recipe": "gpt2", "args": args}, generate=wanted))
    assert finished.result.status == "finished", finished.result.cause
    for place in (model, model.rename(cluster.home / "elsewhere")):  # with, and without the folder of the model
        with pytest.raises(SystemExit) as over:
            main(["generate", str(finished.folder), "--prompt", "def answer", "--temperature", "0", "--max-tokens", "12"])
        assert not over.value.code, place
        assert capsys.readouterr().out == f"{printable(finished.result.sample)}\n"


@pytest.mark.parametrize("where", ["submitter", "workers"])
def test_fine_tuning_from_a_saved_folder(cluster: Loopback, where: str) -> None:
    model = pretrained("gpt2", cluster.home)
    path = "pretrained" if where == "workers" else str(cluster.home / "pretrained")
    job = job_of("gpt2", weights={"source": "file", "path": path, "home": where})
    finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    _, truth = plainly(job, cluster.home, {f"model.{name}": value.detach().numpy() for name, value in model.named_parameters()})
    assert same(truth.states, states_of(finished)) == []


LORA = {"lora_rank": 2, "lora_alpha": 8, "lora_targets": "c_attn,c_proj"}


def adapted(home: Path, **changes: Any) -> JobSpec:
    """Adapters in every block; the layers' own names of GPT-2."""
    path = str(home / "pretrained")
    return job_of("gpt2", args=LORA, weights={"source": "file", "path": path}, checkpoint={"every": 2}, steps=4, **changes)


def test_adapters_are_trained_and_nothing_else(cluster: Loopback) -> None:
    base = pretrained("gpt2", cluster.home)
    job = adapted(cluster.home)
    finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    states = states_of(finished)
    for name, value in base.named_parameters():
        held = [state for state in states if state.replace(".base_layer.", ".").endswith(f"base_model.model.{name}")]
        assert len(held) == 1
        assert states[held[0]].tobytes() == value.detach().numpy().tobytes()
    trained = {name.partition("/")[2] for name in finished.reader().manifest.optimizer}
    assert trained == {name for name in states if ".lora_" in name}
    assert any(np.abs(states[name]).max() > 0 for name in trained if ".lora_B." in name)

    resumed = cluster.run(
        job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"resume": resume_from(finished)}), "workers": 1})
    )
    assert resumed.losses == finished.losses[2:]
    assert same(finished.tensors(4), resumed.tensors(4)) == []


def resume_from(finished: Finished) -> str:
    return str(finished.folder / "checkpoints" / "step-0000000002")


def test_adapters_merged_and_alone_give_the_same_model(cluster: Loopback) -> None:
    from peft import PeftModel
    from transformers import GPT2LMHeadModel

    pretrained("gpt2", cluster.home)
    job = adapted(cluster.home)
    finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    folder = cluster.home / "pretrained"
    alone = PeftModel.from_pretrained(
        GPT2LMHeadModel.from_pretrained(folder), export(finished, cluster.home / "alone", "--adapters")
    )
    merged = GPT2LMHeadModel.from_pretrained(export(finished, cluster.home / "whole", "--pretrained"))
    before = logits(GPT2LMHeadModel.from_pretrained(folder))
    assert not torch.allclose(logits(alone), before, atol=1e-4)
    torch.testing.assert_close(logits(merged), logits(alone), atol=2e-6, rtol=1e-5)


def test_frozen_layers_below_the_first_adapter_hear_nothing(cluster: Loopback) -> None:
    pretrained("gpt2", cluster.home)
    job = adapted(cluster.home, plan={"planner": "equal_number"})
    assert job.model is not None
    args = {**job.model.args, "lora_targets": "h.1.attn.c_attn,h.1.mlp.c_proj"}
    finished = cluster.run(job.model_copy(update={"model": job.model.model_copy(update={"args": args})}))
    assert finished.result.status == "finished", finished.result.cause
    assert {pair for record in finished.steps for pair, count in record.link_bytes.items() if count} == {(0, 1)}
