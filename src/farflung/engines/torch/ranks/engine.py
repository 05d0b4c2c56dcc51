"""The engine of one rank of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farflung.engines.base import DeviceReport, EngineSettings, StageRunner
from farflung.engines.torch.engine import TorchEngine
from farflung.engines.torch.ranks.group import RankGroup
from farflung.engines.torch.ranks.runner import RankRunner
from farflung.engines.torch.ranks.sharded_runner import ShardedRunner
from farflung.engines.torch.ranks.tensor_runner import TensorRunner
from farflung.engines.torch.verify import verify_graph
from farflung.graph.cut import SubGraph

__all__ = ["RankEngine"]


class RankEngine(TorchEngine):
    """PyTorch on the device of one rank."""

    def __init__(self, rank: int, devices: Sequence[str], folder: str) -> None:
        """Join the other ranks; see ``RankGroup``."""
        super().__init__()
        self.group = RankGroup(rank, devices, folder)

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> RankRunner:
        """See ``Engine``."""
        device = self.checked(subgraph, settings)
        if share is not None and not isinstance(share, RankRunner):
            raise TypeError("share must be a runner of the same engine")
        if isinstance(share, ShardedRunner) or (share is None and settings.sharded):
            return ShardedRunner(subgraph, settings, (device, self.group), share)
        if isinstance(share, TensorRunner) or (share is None and settings.tensor):
            runner = TensorRunner(subgraph, settings, (device, self.group), share)
            verify_graph(runner.subgraph.graph, frozenset(runner.subgraph.positions))  # local shapes
            return runner
        return RankRunner(subgraph, settings, (device, self.group), share)

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """See ``Engine``; also how long the ranks exchange. All ranks measure at the same time."""
        report = super().measure(device, peak_flops_per_second)
        latency, rate = self.group.measure()
        return replace(report, rank_latency=latency, rank_rate=rate)
