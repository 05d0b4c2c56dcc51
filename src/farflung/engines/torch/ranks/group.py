"""The ranks of a site, joined by torch.distributed: NCCL on GPUs, Gloo on CPUs.

Tensors of several shapes and types travel as the bytes of one buffer, because a message costs more than a copy.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from math import prod
from statistics import median
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from farflung.clock import precise_time
from farflung.errors import InputError

__all__ = ["Buffer", "Layout", "RankGroup"]

#: A rank waits so long for another one; the death of a rank is noticed at once, by the guard.
_PATIENCE = timedelta(minutes=10)
#: As PyTorch aligns tensors: the kernels of some products choose by it.
_ALIGN = 64
#: The interface that ranks use; Gloo would resolve the host's name otherwise, which may lead outside.
_INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

#: Bytes of a measured exchange, and exchanges of each size.
_EXCHANGED, _TRIES = 8 << 20, 9

Key = TypeVar("Key", bound=Hashable)


class Layout(Generic[Key]):
    """Where tensors lie in a buffer of bytes."""

    def __init__(self, shapes: Mapping[Key, tuple[torch.dtype, Sequence[int]]]) -> None:
        self.places: dict[Key, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        self.nbytes = 0
        for key, (dtype, shape) in shapes.items():
            size = dtype.itemsize * prod(shape)
            self.places[key] = (self.nbytes, size, dtype, tuple(shape))
            self.nbytes += -(-size // _ALIGN) * _ALIGN


class Buffer(Generic[Key]):
    """Memory of a layout, and tensors over it."""

    def __init__(self, layout: Layout[Key], device: torch.device) -> None:
        self.memory = torch.empty(layout.nbytes, dtype=torch.uint8, device=device)
        self.tensors = {
            key: self.memory[start : start + size].view(dtype).view(shape)
            for key, (start, size, dtype, shape) in layout.places.items()
        }

    def write(self, tensors: Mapping[Key, torch.Tensor]) -> None:
        """Copy ``tensors`` here; zeros where one is missing."""
        for key, place in self.tensors.items():
            if key in tensors:
                place.copy_(tensors[key])
            else:
                place.zero_()


class RankGroup:
    """This rank's end of the group. One thread calls."""

    def __init__(self, rank: int, devices: Sequence[str], folder: str) -> None:
        """Join the other ranks, which meet in ``folder``.

        Raises:
            InputError: this PyTorch lacks the backend.
        """
        kinds = {torch.device(name).type for name in devices}
        backend = "nccl" if kinds == {"cuda"} else "gloo"
        available = dist.is_available() and (dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available())
        if not available:
            raise InputError(
                f"a site needs torch.distributed with {backend}, which PyTorch {torch.__version__} lacks here: "
                "install a PyTorch that has it, or join each device as a worker with --device"
            )
        self.rank, self.size = rank, len(devices)
        self.device = torch.device(devices[rank])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        os.environ.update(_INTERFACES)
        store = dist.FileStore(os.path.join(folder, "ranks"), self.size)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=self.size, timeout=_PATIENCE)

    def send(self, buffer: Buffer[Any], to: int, tag: int) -> Any:
        """Begin to send ``buffer`` to another rank."""
        return dist.isend(buffer.memory, dst=to, tag=tag)

    def receive(self, buffer: Buffer[Any], source: int, tag: int) -> Any:
        """Begin to receive ``buffer`` from another rank."""
        return dist.irecv(buffer.memory, src=source, tag=tag)

    def broadcast(self, memory: torch.Tensor, source: int) -> Any:
        """Begin to send ``memory`` of ``source`` to all."""
        return dist.broadcast(memory, src=source, async_op=True)

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``tensor`` over all ranks, with the same bits on each of them. Narrow types are added in float32."""
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(wide)
        return wide.to(tensor.dtype)

    def largest(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the largest of ``tensor`` over all ranks, element by element."""
        found = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return ``tensor`` of each rank; all have the same shape."""
        own = tensor.contiguous()
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return found

    def measure(self) -> tuple[float, float]:
        """Seconds that an exchange takes beside its bytes, and its bytes per second; all ranks call at the same time.

        In an exchange each rank sends its part of the bytes to all others. Cost: some 0.1 s.
        """
        memory = torch.zeros(_EXCHANGED, dtype=torch.uint8, device=self.device)
        small, large = ([self._exchange(memory[:nbytes]) for _ in range(_TRIES)] for nbytes in (_ALIGN * self.size, _EXCHANGED))
        latency = median(small)
        return latency, _EXCHANGED / max(median(large) - latency, 1e-9)

    def _exchange(self, memory: torch.Tensor) -> float:
        parts = memory.tensor_split(self.size)
        begin = precise_time()
        for work in [self.broadcast(part, source) for source, part in enumerate(parts)]:
            work.wait()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return precise_time() - begin

    def reduce(self, tensor: torch.Tensor, to: int) -> Any:
        """Begin to add ``tensor`` of all ranks at ``to``; the contents elsewhere are undefined then."""
        return dist.reduce(tensor, dst=to, async_op=True)


class SumOfRanks(torch.autograd.Function):
    """The sum of the ranks' results. Each rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: RankGroup) -> torch.Tensor:
        return group.add(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
