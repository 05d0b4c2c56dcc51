"""The shape-only engine: a plan runs with the same messages in the same order as with another engine, without arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import choose_device, cpu_model
from farflung.engines.reference.engine import ReferenceEngine
from farflung.engines.shapes.runner import ShapeRunner, zeros
from farflung.errors import GraphError, InputError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.graph.opset import OPSET

__all__ = ["ShapeEngine"]

_PRECISIONS = ("float32",)
_VERSION = 1
#: What it says of its speed, which nothing depends on.
_FLOPS_PER_SECOND = 1e12


class ShapeEngine(ReferenceEngine):
    """Gives zeros. A broker refuses workers with it, because their gradients are not those of the probe."""

    def version(self) -> str:
        """Return the name of the engine and its version."""
        return f"shapes {_VERSION}"

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> ShapeRunner:
        """A runner of ``subgraph``; see ``Engine``.

        Raises:
            InputError: a device or precision that does not exist here.
        """
        if settings.precision not in _PRECISIONS:
            raise InputError(f"unknown precision {settings.precision!r}: the shape-only engine knows {', '.join(_PRECISIONS)}")
        choose_device(settings.device, self.devices())
        if share is not None and not isinstance(share, ShapeRunner):
            raise TypeError("share must be a runner of the same engine")
        return ShapeRunner(subgraph, settings, share)

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """Zeros.

        Raises:
            GraphError: a state is unknown.
        """
        for name in names:
            if name not in graph.state:
                raise GraphError(f"graph {graph.name!r} has no state {name!r}")
        return {name: zeros(graph.state[name].spec) for name in names}

    def support(self, device: str) -> EngineSupport:
        """Return the whole allow-list: nothing is computed."""
        del device
        return EngineSupport(operators=frozenset(OPSET), precisions=_PRECISIONS)

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """A report that nothing was measured for."""
        del device
        memory = psutil.virtual_memory()
        return DeviceReport(
            name=cpu_model(),
            flops_per_second=peak_flops_per_second or _FLOPS_PER_SECOND,
            launch_seconds=0.0,
            total_bytes=memory.total,
            free_bytes=memory.available,
        )

    def share(self, device: str, reference_seconds: float) -> float:
        """All of its speed: nothing is computed."""
        del device, reference_seconds
        return 1.0
