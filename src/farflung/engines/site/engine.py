"""The engine of a worker that is a site: one attempt of a run computes in several processes, one for each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import ComputeDevice
from farflung.engines.isolated.control import Done, EngineCall
from farflung.engines.isolated.engine import IsolatedEngine, start_compute
from farflung.engines.isolated.process import Deadlines, Zygote
from farflung.engines.site.rank import Pending, RankEngine, wait_for_all
from farflung.engines.site.runner import SiteRunner
from farflung.engines.site.tensor_runner import TensorSiteRunner
from farflung.errors import InputError, WireError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph

__all__ = ["SiteAttempt", "SiteEngine"]


class SiteAttempt:
    """An ``Engine`` whose stages compute on all ranks of a site. The end of one rank ends all."""

    def __init__(self, zygote: Zygote, devices: Sequence[str], memory: int, deadlines: Deadlines | None = None) -> None:
        """Start the ranks and connect them. ``memory``: bytes for the tensors of all ranks together (0: no limit).

        Raises:
            EngineCrashed: one ends before it is ready.
            InputError: this PyTorch has no torch.distributed with the backend that the devices need.
        """
        ranks, accelerator = len(devices), not devices[0].startswith("cpu")
        compute = start_compute(zygote, memory // ranks, accelerator=accelerator, deadlines=deadlines, ranks=ranks)
        self._compute, self._version, self._devices = compute, zygote.version, tuple(devices)
        self.ranks = tuple(RankEngine(compute, zygote.version, rank) for rank in range(ranks))
        #: See ``SiteRunner``.
        self._together: list[Pending[Any]] = []
        self._ask_all(
            lambda rank: EngineCall(method="connect", numbers=(rank,), names=self._devices), "the connection of the ranks"
        )

    def _ask_all(self, make: Callable[[int], EngineCall], what: str) -> list[Done]:
        pending = [engine.begin_engine_call(make(rank), what) for rank, engine in enumerate(self.ranks)]
        return wait_for_all(pending, self.ranks, what)

    @property
    def holds(self) -> tuple[str, ...]:
        """The protections that hold in every rank."""
        return self._compute.holds

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> SiteAttempt:
        """Return this engine: it is one attempt's already."""
        del device, memory, patience
        return self

    @property
    def lost(self) -> bool:
        """See ``Engine``."""
        return self._compute.lost

    @property
    def forks_after_use(self) -> bool:
        """See ``Engine``."""
        return True

    def end(self) -> None:
        """End all ranks, from any thread."""
        self._compute.end()

    def version(self) -> str:
        """See ``Engine``."""
        return self._version

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> SiteRunner:
        """See ``Engine``; each rank opens the stage on its device.

        Raises:
            InputError: the optimizer states should be on a disk: the ranks would write to one place of it.
        """
        if share is not None and not isinstance(share, SiteRunner):
            raise TypeError("share must be a runner of the same engine")
        if settings.offload is not None:
            raise InputError(
                f"the plan puts the optimizer states of stage {subgraph.stage} on a disk, and a site has them in memory: "
                'set plan.offload = "none", or plan again'
            )
        opened = []
        for rank, (engine, device) in enumerate(zip(self.ranks, self._devices, strict=True)):
            of_rank = None if share is None else share.stages[rank].runner
            opened.append(engine.open(subgraph, replace(settings, device=device), of_rank))
        if isinstance(share, TensorSiteRunner) or (share is None and settings.tensor):
            return TensorSiteRunner(opened, self.ranks, subgraph, settings, share)
        stages = [engine.runner(runner) for engine, runner in zip(self.ranks, opened, strict=True)]
        return SiteRunner(stages, subgraph, settings, share, self._together)

    def verify(self, graph: Graph) -> None:
        """See ``Engine``."""
        self.ranks[0].verify(graph)

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """See ``Engine``."""
        return self.ranks[0].initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """See ``Engine``."""
        return self.ranks[0].clip_scale(norms, max_norm)

    def set_threads(self, threads: int) -> None:
        """Of each rank."""
        self._ask_all(lambda _: EngineCall(method="set_threads", threads=threads), "setting the threads")

    def devices(self) -> Sequence[ComputeDevice]:
        """See ``Engine``."""
        return self.ranks[0].devices()

    def support(self, device: str) -> EngineSupport:
        """See ``Engine``."""
        del device
        return self.ranks[0].support(self._devices[0])

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """The speed of all ranks together, which measure at the same time. ``peak_flops_per_second``: of each."""
        del device

        def make(rank: int) -> EngineCall:
            return EngineCall(method="measure", device=self._devices[rank], limit=peak_flops_per_second)

        reports = [done.report for done in self._ask_all(make, "the measurement")]
        found = [report for report in reports if report is not None]
        if len(found) != len(reports):
            raise WireError("a rank answered without a measurement")
        return _together(found, shared=self._devices[0].startswith("cpu"))

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine``: the mean of the ranks."""
        del device

        def make(rank: int) -> EngineCall:
            return EngineCall(method="share", device=self._devices[rank], numbers=(reference_seconds,))

        shares = [done.numbers.get("share", 1.0) for done in self._ask_all(make, "the measurement")]
        return sum(shares) / len(shares)


def _together(reports: Sequence[DeviceReport], *, shared: bool) -> DeviceReport:
    """One report for ranks that compute different micro-batches at the same time; ``shared``: they share one memory."""
    count = len(reports)
    join = max if shared else sum
    return DeviceReport(
        name=f"site of {count} ranks, {reports[0].name}",
        flops_per_second=sum(report.flops_per_second for report in reports),
        launch_seconds=sum(report.launch_seconds for report in reports) / count**2,
        total_bytes=join(report.total_bytes for report in reports),
        free_bytes=join(report.free_bytes for report in reports),
        peak_flops_per_second=sum(report.peak_flops_per_second for report in reports),
        processors=tuple(dict.fromkeys(name for report in reports for name in report.processors)),
        reference_seconds=sum(report.reference_seconds for report in reports) / count,
        convolution=sum(report.convolution for report in reports) / count,
        rank_latency=max(report.rank_latency for report in reports),
        rank_rate=min(report.rank_rate for report in reports),
    )


class SiteEngine(IsolatedEngine):
    """An ``Engine`` of several devices of one machine. ``attempt`` starts a process for each."""

    def __init__(self, zygote: Zygote, devices: Sequence[ComputeDevice]) -> None:
        """``zygote`` forks the processes; ``devices``: of the ranks, in their order."""
        super().__init__(zygote)
        self.ranks = tuple(devices)

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> SiteAttempt:  # type: ignore[override]
        """Start the ranks with ``memory`` bytes for tensors together (0: no limit).

        Raises:
            EngineCrashed: one ends before it is ready.
        """
        del device
        return SiteAttempt(self._zygote, [one.name for one in self.ranks], memory, Deadlines(computing=patience))

    def devices(self) -> Sequence[ComputeDevice]:
        """Return the site as one device, with the name of its first one."""
        first = self.ranks[0]
        model = f"site of {len(self.ranks)} ranks" + (f", {first.model}" if first.model else "")
        memory = 0 if first.kind == "cpu" else sum(one.memory for one in self.ranks)
        return (ComputeDevice(name=first.name, model=model, memory=memory),)
