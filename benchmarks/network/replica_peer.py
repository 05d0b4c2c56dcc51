"""The opponents of ``replicas``: one member that trains the whole model beside others, as each library's documentation shows it.

``python -m benchmarks.network.replica_peer SETTINGS`` in each node; SETTINGS is a JSON object (``ReplicaSettings``). RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and NODE_ADDRESS are in the environment. Each member prints when its steps ended, by the
machine's clock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn, optim

__all__ = ["PEERS", "ReplicaSettings", "main"]

#: Seconds that members wait for each other at most.
_PATIENCE = 120.0
_LIGHTHOUSE_PORT = 29600


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """``peer``: of ``PEERS``. ``model``: arguments of the recipe ``gpt``. ``rows``: samples of a member's step. ``meeting``: a
    folder that all members see."""

    peer: str
    model: dict[str, int]
    rows: int
    steps: int
    sync_every: int
    meeting: str
    threads: int = 1
    seed: int = 0
    lr: float = 1e-3


@dataclass(frozen=True, slots=True)
class Member:
    """What the library of a peer gets; ``stack`` ends what it opens."""

    settings: ReplicaSettings
    model: nn.Module
    optimizer: optim.Optimizer
    stack: ExitStack

    @property
    def rank(self) -> int:
        """The number of this member."""
        return int(os.environ["RANK"])

    @property
    def world(self) -> int:
        """How many members there are."""
        return int(os.environ["WORLD_SIZE"])


#: What computes the loss, and what is done after each update.
Wrapped = tuple[Callable[..., Any], Callable[[int], None]]


def _ddp(member: Member) -> Wrapped:
    """``DistributedDataParallel``: gradients are averaged in buckets while the backward runs."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    member.stack.callback(distributed.destroy_process_group)
    return DistributedDataParallel(member.model), lambda step: None


@contextmanager
def _manager(member: Member) -> Iterator[Any]:
    """torchft's manager of a group of one rank; the first member runs the lighthouse."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    lighthouse = None
    if member.rank == 0:
        lighthouse = LighthouseServer(bind=f"[::]:{_LIGHTHOUSE_PORT}", min_replicas=member.world, join_timeout_ms=60_000)
    here, patience = os.environ["NODE_ADDRESS"], timedelta(seconds=_PATIENCE)
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        load_state_dict=member.model.load_state_dict,
        state_dict=member.model.state_dict,
        min_replica_size=member.world,
        use_async_quorum=False,
        timeout=patience,
        quorum_timeout=patience,
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{_LIGHTHOUSE_PORT}",
        replica_id=f"member{member.rank}",
        hostname=here,
        init_sync=False,
    )
    try:
        yield manager
        _meet(member, "done")  # a manager that leaves early ends the steps of the others
    finally:
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()


def _torchft_local_sgd(member: Member) -> Wrapped:
    """torchft's LocalSGD: parameters are averaged every ``sync_every`` steps."""
    from torchft.local_sgd import LocalSGD

    manager = member.stack.enter_context(_manager(member))
    member.stack.enter_context(LocalSGD(manager, member.model, member.optimizer, member.settings.sync_every))
    return member.model, lambda step: None


def _torchft_diloco(member: Member) -> Wrapped:
    """torchft's DiLoCo with the outer optimizer of the paper; parameters travel in buckets, which is faster than one by one."""
    import torch
    from torchft.local_sgd import DiLoCo

    manager = member.stack.enter_context(_manager(member))
    outer = torch.optim.SGD(member.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    every = member.settings.sync_every
    made = DiLoCo(manager, [member.model], member.optimizer, outer, every, use_bucketization=True, pin_memory=False)
    member.stack.enter_context(made)
    return member.model, lambda step: None


def _hivemind(member: Member) -> Wrapped:
    """hivemind's averager of parameters, every ``sync_every`` steps; it looks for partners for as short as it may."""
    import hivemind

    place = Path(member.settings.meeting) / "first-peer"
    given: dict[str, Any] = {"host_maddrs": [f"/ip4/{os.environ['NODE_ADDRESS']}/tcp/0"], "start": True}
    if member.rank:
        _wait(place.exists, "the first peer")
        given["initial_peers"] = json.loads(place.read_text(encoding="utf-8"))
    dht = hivemind.DHT(**given)
    member.stack.callback(dht.shutdown)
    if member.rank == 0:
        made = place.with_suffix(".new")
        made.write_text(json.dumps([str(address) for address in dht.get_visible_maddrs()]), encoding="utf-8")
        made.rename(place)
    values = [parameter.detach() for parameter in member.model.parameters()]
    averager = hivemind.averaging.DecentralizedAverager(
        [value.clone() for value in values],
        dht,
        start=True,
        prefix="bench",
        target_group_size=member.world,
        min_group_size=member.world,
        min_matchmaking_time=1.0,
        request_timeout=0.9,
    )
    member.stack.callback(averager.shutdown)
    _meet(member, "averagers")

    def average(step: int) -> None:
        if (step + 1) % member.settings.sync_every:
            return
        with averager.get_tensors() as tensors:
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        if averager.step(timeout=_PATIENCE) is None:
            raise SystemExit("hivemind found no group")
        with averager.get_tensors() as tensors:
            for tensor, value in zip(tensors, values, strict=True):
                value.copy_(tensor)

    return member.model, average


#: What a member does, by the peer's name.
PEERS: dict[str, Callable[[Member], Wrapped]] = {
    "torch ddp": _ddp,
    "torchft local_sgd": _torchft_local_sgd,
    "torchft diloco": _torchft_diloco,
    "hivemind": _hivemind,
}


def _wait(ready: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {_PATIENCE:.0f} s")
        time.sleep(0.01)


def _meet(member: Member, where: str) -> None:
    """Wait until all members are there."""
    folder = Path(member.settings.meeting)
    (folder / f"{where}-{member.rank}").touch()
    _wait(lambda: sum(1 for _ in folder.glob(f"{where}-*")) == member.world, f"a member for {where!r}")


def _steps(member: Member) -> None:
    import torch

    settings = member.settings
    forward, after = PEERS[settings.peer](member)
    for step in range(settings.steps):
        draw = torch.Generator().manual_seed(settings.seed + step * member.world + member.rank)
        shape = (settings.rows, settings.model["sequence"] + 1)
        tokens = torch.randint(0, settings.model["vocab"], shape, generator=draw)
        member.optimizer.zero_grad()
        loss = forward(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        member.optimizer.step()
        after(step)
        print(json.dumps({"step": step, "at": time.monotonic(), "loss": loss.item()}), flush=True)  # noqa: T201 - for the parent


def main(text: str) -> None:
    """One member."""
    import torch

    from farflung.frontends.recipes import load_recipe

    settings = ReplicaSettings(**json.loads(text))
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    model: Any = load_recipe("gpt", {**settings.model, "tied": 0}).train.factory().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    with ExitStack() as stack:
        _steps(Member(settings, model, optimizer, stack))


if __name__ == "__main__":
    main(sys.argv[1])
