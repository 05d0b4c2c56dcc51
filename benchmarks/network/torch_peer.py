"""The opponent: one rank of ``torch.distributed.pipelining`` over Gloo, as its documentation shows it, on our GPT recipe.

``python -m benchmarks.network.torch_peer SETTINGS`` in each node; SETTINGS is a JSON object (``PeerSettings``), RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are in the environment. Parameters, micro-batches, split and optimizer are those of the job that the
product runs. Nothing is compressed: it can't. Each rank prints when its steps ended, by the machine's clock; ranks do not wait
for each other between steps beyond what the pipeline asks for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PeerSettings", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """``blocks``: of each stage. ``model``: arguments of the recipe ``gpt`` (not tied). ``rows``: samples of a micro-batch."""

    blocks: tuple[int, ...]
    model: dict[str, int]
    rows: int
    micro_batches: int
    steps: int
    schedule: str = "1f1b"
    threads: int = 1
    seed: int = 0
    lr: float = 1e-3


def stage_module(settings: PeerSettings, rank: int) -> nn.Module:
    """The part of the model that ``rank`` holds: its blocks, embeddings on the first rank, norm and head on the last."""
    import torch
    from torch import nn

    from farflung.frontends.recipes import load_recipe

    torch.manual_seed(settings.seed)
    whole: Any = load_recipe("gpt", {**settings.model, "tied": 0}).train.factory().train()
    first, last = rank == 0, rank == len(settings.blocks) - 1
    begin = sum(settings.blocks[:rank])

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(whole.blocks[begin : begin + settings.blocks[rank]])
            if first:
                self.token, self.place = whole.token, whole.place
            if last:
                self.norm, self.head = whole.norm, whole.head

        def forward(self, x: Tensor) -> Tensor:
            if first:
                x = self.token(x) + self.place(torch.arange(x.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)) if last else x

    return Part()


def _stage(settings: PeerSettings, rank: int) -> Any:
    import torch
    from torch.distributed.pipelining import PipelineStage

    shape = (settings.rows, settings.model["sequence"])
    width, vocab = settings.model["width"], settings.model["vocab"]
    last = rank == len(settings.blocks) - 1
    values = torch.zeros(*shape, width, requires_grad=True)
    taken = torch.zeros(shape, dtype=torch.int64) if rank == 0 else values
    given = torch.zeros(*shape, vocab, requires_grad=True) if last else values
    module = stage_module(settings, rank)
    count = len(settings.blocks)
    return PipelineStage(module, rank, count, torch.device("cpu"), input_args=(taken,), output_args=(given,))


def _steps(settings: PeerSettings, rank: int) -> None:
    import torch
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
    from torch.nn import functional

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    stage = _stage(settings, rank)
    make = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[settings.schedule]
    schedule = make(stage, settings.micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=settings.lr)
    first, last = rank == 0, rank == len(settings.blocks) - 1
    samples = settings.rows * settings.micro_batches
    for step in range(settings.steps):
        draw = torch.Generator().manual_seed(settings.seed + step)
        tokens = torch.randint(0, settings.model["vocab"], (samples, settings.model["sequence"] + 1), generator=draw)
        optimizer.zero_grad()
        losses: list[Tensor] = []
        more: dict[str, Any] = {"target": tokens[:, 1:], "losses": losses} if last else {}
        schedule.step(*((tokens[:, :-1],) if first else ()), **more)
        optimizer.step()
        loss = float(torch.stack(losses).mean()) if last else None
        print(json.dumps({"step": step, "at": time.monotonic(), "loss": loss}), flush=True)  # noqa: T201 - for the parent


def main(text: str) -> None:
    """One rank."""
    import torch
    from torch import distributed

    given = json.loads(text)
    settings = PeerSettings(**{**given, "blocks": tuple(given["blocks"])})
    torch.set_num_threads(settings.threads)
    distributed.init_process_group("gloo")
    _steps(settings, int(os.environ["RANK"]))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
