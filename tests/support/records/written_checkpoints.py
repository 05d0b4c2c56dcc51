"""Checkpoints of a small GPT with random states, written as runs write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from farflung.checkpoint import CheckpointStore, Manifest
from farflung.frontends.recipes.registry import load_recipe
from farflung.job import make_job, to_json

__all__ = ["ARGS", "checkpoint"]

ARGS = {"vocab": 256, "sequence": 8, "layers": 2, "width": 16, "heads": 2}


def checkpoint(folder: Path, step: int, *, without: str = "", **changes: Any) -> torch.nn.Module:
    """A checkpoint of a GPT with random states in the run's ``folder``; the module that has these states."""
    data = {"kind": "text", "path": "{stdlib}", "glob": "json/*.py", "sequence": 8}
    job = make_job({"model": {"recipe": "gpt", "args": ARGS}, "data": data} | changes)
    torch.manual_seed(step)
    generate = load_recipe("gpt", ARGS).generate
    assert generate is not None
    module = generate.factory().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    states = {name: value.detach().numpy() for name, value in module.named_parameters() if name != without}
    store = CheckpointStore(folder / "checkpoints")
    shard = store.write_shard(step, "a", states)
    store.write_manifest(
        Manifest(step=step, job=to_json(job), graph_hash="0" * 64, shards=(shard,), ledger={"steps": step, "samples": step})
    )
    return module
