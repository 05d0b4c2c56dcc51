"""The reference engine: NumPy, slow, on request in float64. For conformance tests, dry runs and machines without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import psutil

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import ComputeDevice, choose_device, core_count, cpu_model
from farflung.engines.host.initialize import initial_states
from farflung.engines.host.operators import HOST
from farflung.engines.in_process import InProcessEngine
from farflung.engines.reference.operators import OPERATORS
from farflung.engines.reference.runner import ReferenceRunner
from farflung.engines.warmup import WarmUpDevice, host_processors, measure_device, measure_share
from farflung.errors import GraphError, InputError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.opset import OPSET, check_target
from farflung.graph.signatures import check_call, signature

__all__ = ["ReferenceEngine", "WideEngine"]

_PRECISIONS = ("float32",)


class ReferenceEngine(InProcessEngine):
    """Runs stages with NumPy on the CPU. ``wide``: floating numbers are float64 inside a stage, as declared outside."""

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide

    def devices(self) -> Sequence[ComputeDevice]:
        """Return the CPU."""
        return (ComputeDevice(name="cpu", model=cpu_model(), memory=psutil.virtual_memory().total, cores=core_count()),)

    @property
    def forks_after_use(self) -> bool:
        """Yes: the engine has no threads of its own."""
        return True

    def version(self) -> str:
        """Return the name of the engine and NumPy's version."""
        return f"{'reference64' if self._wide else 'reference'} {np.__version__}"

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> StageRunner:
        """A runner of ``subgraph``; see ``Engine``.

        Raises:
            GraphError: an operator is not allowed or not known.
            InputError: a device or precision that does not exist here.
        """
        if settings.precision not in _PRECISIONS:
            raise InputError(
                f"unknown precision {settings.precision!r}: the reference engine knows {', '.join(_PRECISIONS)}; "
                "use a worker with --engine torch"
            )
        if settings.optimizer.update != "plain":
            raise InputError(
                f"the reference engine lacks optimizer.update = {settings.optimizer.update!r}: use a worker with --engine torch"
            )
        choose_device(settings.device, self.devices())
        self._check_operators(subgraph)
        if share is not None and not isinstance(share, ReferenceRunner):
            raise TypeError("share must be a runner of the same engine")
        return ReferenceRunner(subgraph, settings, share, wide=self._wide)

    def _check_operators(self, subgraph: SubGraph) -> None:
        """Check the stage's own operators: other stages may be on other engines."""
        for op in (subgraph.graph.ops[position] for position in subgraph.positions):
            check_target(op.target)
            if op.target == "farflung.input":
                continue
            if op.target not in OPERATORS:
                raise GraphError(f"the reference engine has no operator {op.target!r}: use a worker with --engine torch")
            check_call(signature(op.target), op.args, op.kwargs, f"operator {op.name!r} ({op.target})")

    def verify(self, graph: Graph) -> None:
        """Check names and arguments of the operators; results are compared with their declarations when they are computed.

        Raises:
            GraphError: an operator is not allowed, or refuses its arguments.
        """
        for op in graph.ops:
            check_target(op.target)
            if op.target != "farflung.input":
                check_call(signature(op.target), op.args, op.kwargs, f"operator {op.name!r} ({op.target})")

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """Replay recorded initializers (see ``engines.host.initialize``).

        Raises:
            GraphError: a state is unknown or has no program.
        """
        return initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """As ``torch.nn.utils.clip_grad_norm_``: ``min(max_norm / (total + 1e-6), 1)`` in float32."""
        total = np.sqrt(np.sum(np.square(np.asarray(norms, np.float32)), dtype=np.float32))
        return np.asarray(np.minimum(np.float32(max_norm) / (total + np.float32(1e-6)), 1), np.float32)

    def set_threads(self, threads: int) -> None:
        """Nothing: NumPy's matrix products take the threads that the environment names."""

    def support(self, device: str) -> EngineSupport:
        """Return the operators of graphs and of initializers that the engine knows."""
        del device
        host = {f"aten.{name}" for name in HOST}
        known = {"farflung.input", *OPERATORS, *(name for name in host if name in OPSET and not OPSET[name].graph)}
        return EngineSupport(operators=frozenset(known & OPSET.keys()), precisions=_PRECISIONS)

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """A short warm-up of the CPU."""
        del device
        return measure_device(self._cpu(), peak_flops_per_second)

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine.share``."""
        del device
        return measure_share(self._cpu(), reference_seconds)

    def _cpu(self) -> WarmUpDevice:
        return WarmUpDevice(
            name="cpu", model=cpu_model(), processors=host_processors(), open=self.open, multiply=_multiply, memory=_memory
        )


def _multiply(size: int) -> Callable[[], object]:
    a = np.ones((size, size), np.float32)
    return lambda: np.matmul(a, a)


def _memory() -> tuple[int, int]:
    found = psutil.virtual_memory()
    return found.available, found.total


class WideEngine(ReferenceEngine):
    """The reference engine in float64."""

    def __init__(self) -> None:
        super().__init__(wide=True)
