"""The PyTorch engine."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import torch

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import ComputeDevice, choose_device
from farflung.engines.in_process import InProcessEngine
from farflung.engines.torch.accelerators import Probe, TorchProbe, compute_devices, limit_memory
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.heap import HEAP
from farflung.engines.torch.initialize import initial_states
from farflung.engines.torch.runner import TorchRunner
from farflung.engines.torch.verify import verify_graph
from farflung.engines.torch.warmup import warm_up_device
from farflung.engines.warmup import measure_device, measure_share
from farflung.errors import InputError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.opset import OPSET

__all__ = ["TorchEngine"]


_PRECISIONS = ("bf16", "float32", "fp16")
_UPDATES = ("master", "stochastic")

#: Graph objects that were checked in this process.
_VERIFIED: WeakValueDictionary[int, Graph] = WeakValueDictionary()


class TorchEngine(InProcessEngine):
    """Runs stages with PyTorch, eagerly, on a CPU or on an accelerator (CUDA, MPS, XPU)."""

    def __init__(self, probe: Probe | None = None) -> None:
        """``probe`` says which accelerators there are (None: PyTorch does)."""
        self._probe = probe or TorchProbe()

    def devices(self) -> tuple[ComputeDevice, ...]:
        """Return this machine's devices, the CPU last."""
        return compute_devices(self._probe)

    @property
    def forks_after_use(self) -> bool:
        """Whether forks may compute: with one thread, PyTorch starts no others."""
        return True

    def version(self) -> str:
        """Return ``torch`` and its version."""
        return f"torch {torch.__version__}"

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> TorchRunner:
        """A runner of ``subgraph``; the graph's declarations are checked first (once per graph object).

        ``share``: a runner of this engine whose states this one uses too, by name (the same memory).

        Raises:
            GraphError: an operator is not allowed, or a declared shape is not what the operator gives.
            InputError: a device or precision that does not exist here.
        """
        device = self.checked(subgraph, settings)
        if share is not None and not isinstance(share, TorchRunner):
            raise TypeError("share must be a runner of the same engine")
        return TorchRunner(subgraph, settings, device, share)

    def checked(self, subgraph: SubGraph, settings: EngineSettings) -> torch.device:
        """Return the device of ``settings``; errors as ``open``."""
        if settings.precision not in _PRECISIONS:
            raise InputError(f"unknown precision {settings.precision!r}: known are {', '.join(_PRECISIONS)}")
        device = self._device(settings.device)
        self.verify(subgraph.graph)
        limit_memory(device, settings.budget.total)
        return device

    def verify(self, graph: Graph) -> None:
        """Check every operator's declared results on the meta device.

        Raises:
            GraphError: names the operator, what was declared and what was found.
        """
        if _VERIFIED.get(id(graph)) is not graph:
            verify_graph(graph)
            _VERIFIED[id(graph)] = graph

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """Replay recorded initializers (see ``farflung.engines.torch.initialize``)."""
        return initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """As ``torch.nn.utils.clip_grad_norm_``: ``min(max_norm / (total + 1e-6), 1)`` in float32."""
        stacked = torch.stack([torch.tensor(norm, dtype=torch.float32) for norm in norms]) if norms else torch.zeros(1)
        total = torch.linalg.vector_norm(stacked, 2.0)
        return to_array(torch.clamp(max_norm / (total + 1e-6), max=1.0))

    def set_threads(self, threads: int) -> None:
        """Intra-operator threads; each thread that runs stages should call this itself."""
        torch.set_num_threads(threads)

    def support(self, device: str) -> EngineSupport:
        """Return the whole allow-list and all precisions."""
        del device
        return EngineSupport(operators=frozenset(OPSET), precisions=(*_PRECISIONS, *_UPDATES))

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """A short warm-up of ``device``."""
        report = measure_device(warm_up_device(device), peak_flops_per_second)
        HEAP.give_back()
        return report

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine.share``."""
        found = measure_share(warm_up_device(device), reference_seconds)
        HEAP.give_back()
        return found

    def _device(self, name: str) -> torch.device:
        return torch.device(name if name == "cpu" else choose_device(name, self.devices()).name)
