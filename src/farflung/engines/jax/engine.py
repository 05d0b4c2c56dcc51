"""The JAX engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from weakref import WeakValueDictionary

import jax
import numpy as np

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import ComputeDevice, choose_device
from farflung.engines.host.initialize import initial_states
from farflung.engines.in_process import InProcessEngine
from farflung.engines.jax.devices import compute_devices, device_called
from farflung.engines.jax.operators import OPERATORS
from farflung.engines.jax.runner import JaxRunner
from farflung.engines.jax.verify import verify_graph
from farflung.engines.jax.warmup import small_models, warm_up_device
from farflung.engines.warmup import measure_device, measure_share
from farflung.errors import InputError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph

__all__ = ["JaxEngine"]

_PRECISIONS = ("bf16", "float32")
#: Graph objects that were checked in this process.
_VERIFIED: WeakValueDictionary[int, Graph] = WeakValueDictionary()


class JaxEngine(InProcessEngine):
    """Runs stages with JAX: each stage is compiled by XLA when it is opened."""

    def __init__(self) -> None:
        self._flags = os.environ.get("XLA_FLAGS", "")
        jax.config.update("jax_enable_x64", True)  # graphs have int64 and float64, as PyTorch does
        jax.config.update("jax_default_matmul_precision", "highest")
        # A micro-batch is computed by the thread that asks for it: its caller waits for the result anyway.
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def devices(self) -> tuple[ComputeDevice, ...]:
        """Return this machine's devices, the CPU last."""
        return compute_devices()

    @property
    def forks_after_use(self) -> bool:
        """Never: XLA starts threads with its first computation."""
        return False

    def version(self) -> str:
        """Return ``jax`` and its version."""
        return f"jax {jax.__version__}"

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> JaxRunner:
        """A runner of ``subgraph``, compiled; the graph's declarations are checked first (once per graph object).

        ``share``: a runner of this engine whose states this one uses too, by name (the same memory).

        Raises:
            GraphError: an operator is not in the table, or a declared shape is not what the operator gives.
            InputError: a device or precision that does not exist here.
        """
        if settings.precision not in _PRECISIONS:
            raise InputError(f"unknown precision {settings.precision!r}: known are {', '.join(_PRECISIONS)}")
        if settings.optimizer.update != "plain":
            raise InputError(
                f"the jax engine lacks optimizer.update = {settings.optimizer.update!r}: use a worker with --engine torch"
            )
        device = device_called(choose_device(settings.device, self.devices()).name)
        self.verify(subgraph.graph)
        if share is not None and not isinstance(share, JaxRunner):
            raise TypeError("share must be a runner of the same engine")
        return JaxRunner(subgraph, settings, device, share)

    def verify(self, graph: Graph) -> None:
        """Trace every operator, without memory for data, and compare its results with what is declared.

        Raises:
            GraphError: names the operator, what was declared and what was found.
        """
        if _VERIFIED.get(id(graph)) is not graph:
            verify_graph(graph)
            _VERIFIED[id(graph)] = graph

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """Replay recorded initializers (see ``farflung.engines.host.initialize``).

        Raises:
            GraphError: the graph has no such state.
        """
        return initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """As ``torch.nn.utils.clip_grad_norm_``: ``min(max_norm / (total + 1e-6), 1)`` in float32."""
        total = np.linalg.norm(np.asarray(norms, np.float32)) if norms else np.float32(0)
        return np.asarray(np.minimum(np.float32(max_norm) / (total + np.float32(1e-6)), 1), np.float32)

    def set_threads(self, threads: int) -> None:
        """Intra-operator threads. XLA starts them with its first computation in a process, so the last call before counts."""
        os.environ["NPROC"] = os.environ["PJRT_NPROC"] = str(threads)
        alone = "--xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
        os.environ["XLA_FLAGS"] = f"{self._flags} {alone}".strip()

    def support(self, device: str) -> EngineSupport:
        """Return the operators of the table, and the precisions."""
        del device
        return EngineSupport(operators=frozenset({*OPERATORS, "farflung.input"}), precisions=_PRECISIONS)

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """A short warm-up of ``device``."""
        return measure_device(warm_up_device(device), peak_flops_per_second, small_models(device))

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine.share``."""
        return measure_share(warm_up_device(device), reference_seconds, small_models(device))
