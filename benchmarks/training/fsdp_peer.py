"""The opponent of ``sites``: one rank of FSDP2 over Gloo, as its documentation shows it, on our GPT recipe.

``python -m benchmarks.training.fsdp_peer SETTINGS`` for each rank; SETTINGS is a JSON object (``FsdpSettings``). Each line on its
standard input is one step: forward, backward, AdamW. A line of output says that the step is over.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["FsdpSettings", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSettings:
    """``model``: arguments of the recipe ``gpt``. ``rows``: samples of each rank in a step. ``store``: a file for the ranks."""

    rank: int
    ranks: int
    store: str
    model: dict[str, int]
    rows: int
    threads: int = 1
    seed: int = 0


def main(arguments: list[str]) -> None:
    """Compute a step for each line of the input."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from farflung.frontends.recipes import load_recipe

    settings = FsdpSettings(**json.loads(arguments[0]))
    torch.set_num_threads(settings.threads)
    store = dist.FileStore(settings.store, settings.ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=settings.rank, world_size=settings.ranks)
    mesh = init_device_mesh("cpu", (settings.ranks,))
    torch.manual_seed(settings.seed)
    module: Any = load_recipe("gpt", settings.model).train.factory().train()
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    torch.manual_seed(settings.seed + settings.rank)
    shape = (settings.rows, settings.model["sequence"])
    tokens, labels = (torch.randint(settings.model["vocab"], shape) for _ in range(2))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        module(tokens, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write("done\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
