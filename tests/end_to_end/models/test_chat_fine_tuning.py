"""A folder and a JSONL of chats in, a folder out: LoRA on a frozen 4-bit base, three workers over emulated links of 20 Mbit/s."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from farflung.api.submission import bundle_job, send_weights
from farflung.cli.main import main
from farflung.cluster import Topology
from farflung.ids import new_id
from farflung.job import load_job
from farflung.telemetry.records import RunResult, StepRecord, read_record
from tests.support.models.model_folders import save_model
from tests.support.models.tables import NEEDS_DATASETS, chat, tokenizer_folder, write_rows
from tests.support.runs.loopback import Loopback
from tests.support.runs.watched_runs import watched

pytestmark = [NEEDS_DATASETS, pytest.mark.slow]

JOB = """name = "chats"
steps = 8
micro_batch_sizes = [2, 2]
[model]
recipe = "hf"
args = { folder = "model", sequence = 32, inputs = "input_ids, position_ids", lora_rank = 4, quantize = "nf4" }
[data]
kind = "dataset"
path = "chats.jsonl"
messages = "messages"
tokenizer = "model"
sequence = 32
[optimizer]
name = "adamw"
lr = 1e-3
[plan]
planner = "equal_number"
"""

NETWORK = """name = "three homes"
[default]
latency = "5 ms"
bandwidth = "20 Mbit/s"
""" + "".join(f'[[device]]\nname = "{name}"\nregion = "{name}"\nmemory = "4 GB"\nspeed = "10 GFLOP/s"\n' for name in "abc")


def losses(home: Path, workers: int, topology: Topology | None) -> tuple[list[float], Path]:
    """The losses of the job's run, and its folder."""
    job = load_job(home / "job.toml").model_copy(update={"workers": workers})
    with Loopback(home, workers, folder=f"broker-{workers}") as cluster:
        bundle = replace(bundle_job(job, base=home, topology=topology, emulate=topology is not None), run=new_id("run"))
        send_weights(cluster.client, bundle)
        folder = Path(cluster.client.submit(bundle)["folder"])
        frames = list(watched(cluster.client, bundle.run))
    result = RunResult.from_json(str(frames[-1].header["result"]))
    assert result.status == "finished", result.cause
    records = [read_record(str(frame.header["line"])) for frame in frames if frame.kind == "record"]
    return [record.loss for record in records if isinstance(record, StepRecord)], folder


def test_a_job_of_twenty_lines(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert len(JOB.splitlines()) <= 20
    before = save_model("causal", tmp_path / "model", vocab_size=257, num_hidden_layers=3)
    tokenizer_folder(tmp_path / "model")
    write_rows(tmp_path / "chats.jsonl", [chat(f"{n} + 1?", str(n + 1)) for n in range(60)])
    (tmp_path / "job.toml").write_text(JOB)
    far, folder = losses(tmp_path, 3, Topology.from_text(NETWORK))
    near, _ = losses(tmp_path, 1, None)
    assert far == near  # the target is 1 %: it is the same
    assert len(far) == 8
    with pytest.raises(SystemExit) as over:
        main(["checkpoint", "export", str(folder), str(tmp_path / "out"), "--pretrained"])
    assert not over.value.code
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    changed = [
        not torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items() if "q_proj" in name
    ]
    assert len(changed) == 3
    assert all(changed)
    text = tokenizer.apply_chat_template(chat("3 + 1?")["messages"], tokenize=False, add_generation_prompt=True)
    assert model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=3, do_sample=False).shape[1] > 8
