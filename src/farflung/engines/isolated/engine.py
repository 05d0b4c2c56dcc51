"""The engine of a worker whose jobs compute in processes of their own, one for each attempt."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import psutil

from farflung.engines.base import Array, DeviceReport, EngineSettings, EngineSupport, StageRunner
from farflung.engines.devices import ComputeDevice
from farflung.engines.isolated.arena import Arena, Slot
from farflung.engines.isolated.control import Done, EngineCall, Message, OpenStage, Piece, Settings
from farflung.engines.isolated.exchange import Exchange
from farflung.engines.isolated.process import Compute, Deadlines, Zygote
from farflung.engines.isolated.runner import IsolatedRunner
from farflung.errors import WireError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.memory_budget import MemoryBudget

__all__ = ["AttemptEngine", "IsolatedEngine", "start_attempt", "start_compute"]

_LEAST_SHARED = 256 << 20
_PAGE = 1 << 16


def start_compute(
    zygote: Zygote, memory: int, *, accelerator: bool = False, deadlines: Deadlines | None = None, ranks: int = 1
) -> Compute:
    """Fork the processes of an attempt; see ``Compute``. ``memory``: of each."""
    shared = 2 * max(memory or psutil.virtual_memory().total, _LEAST_SHARED) // _PAGE * _PAGE + _PAGE
    return Compute(zygote, memory, shared=shared, accelerator=accelerator, deadlines=deadlines, ranks=ranks)


def start_attempt(zygote: Zygote, memory: int, *, accelerator: bool = False, deadlines: Deadlines | None = None) -> AttemptEngine:
    """The engine of an attempt in a new process; see ``Compute``."""
    return AttemptEngine(start_compute(zygote, memory, accelerator=accelerator, deadlines=deadlines), zygote.version)


class AttemptEngine(Exchange):
    """An ``Engine`` in a process of its own, which ends with the last reference to it and its runners, or with ``end``."""

    def __init__(self, compute: Compute, version: str, rank: int = 0) -> None:
        """``rank``: which of the processes of ``compute`` this is the engine of; the engine of rank 0 closes them."""
        super().__init__(compute, rank)
        self._version = version
        self._runners = 0
        self._graph: Graph | None = None
        if rank == 0:
            weakref.finalize(self, compute.close)

    @property
    def holds(self) -> tuple[str, ...]:
        """The protections that hold (``lockdown.PROTECTIONS``)."""
        return self._compute.holds

    # -- the engine ---------------------------------------------------------------------------------------------------

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> AttemptEngine:
        """Return this engine: it is one attempt's already."""
        del device, memory, patience
        return self

    @property
    def forks_after_use(self) -> bool:
        """Whether a process may fork after the engine has computed in it."""
        return True

    @property
    def lost(self) -> bool:
        """See ``Engine``."""
        return self._compute.lost

    def version(self) -> str:
        """See ``Engine``."""
        return self._version

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> IsolatedRunner:
        """See ``Engine``."""
        if share is not None and not isinstance(share, IsolatedRunner):
            raise TypeError("share must be a runner of the same engine")
        with self.message() as arena:
            number = self._runners
            self._runners += 1
            file = settings.offload
            message = OpenStage(
                runner=number,
                graph=self._written(subgraph.graph, arena),
                piece=_piece(subgraph),
                settings=Settings(
                    device=settings.device,
                    seed=settings.seed,
                    precision=settings.precision,
                    recompute=settings.recompute,
                    split_backward=settings.split_backward,
                    training=settings.training,
                    optimizer=settings.optimizer.model_dump_json(),
                    memory=settings.budget.total,
                    any_order=settings.any_order,
                    offload=0 if file is None else file.nbytes,
                    sharded=settings.sharded,
                    tensor=settings.tensor,
                    part_ends=settings.part_ends,
                    codings=settings.codings,
                ),
                share=None if share is None else share.number,
            )
            self._compute.post(message, self.rank, files=() if file is None else (file.descriptor,))
            self.answer(f"opening stage {subgraph.stage}")
        return IsolatedRunner(self, number, subgraph, settings)

    def _written(self, graph: Graph, arena: Arena) -> Slot | None:
        """Where the document of ``graph`` lies (``None``: the process has it)."""
        if graph is self._graph:
            return None
        self._graph = graph
        return arena.write_bytes(graph.to_json().encode())

    def verify(self, graph: Graph) -> None:
        """See ``Engine``."""
        with self.message() as arena:
            self.ask(EngineCall(method="verify", graph=self._written(graph, arena)), "the check of the graph")

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """See ``Engine``."""
        with self.message() as arena:
            at = self._written(graph, arena)
            call = EngineCall(method="initial_states", graph=at, seed=seed, names=tuple(names))
            found = self.ask(call, "the first values of states").values
            for name in names:
                spec, slots = graph.state[name].spec, found.get(name, ())
                if len(slots) != 1 or (slots[0].shape, slots[0].dtype) != (spec.shape, spec.dtype):
                    raise WireError(f"the process that computes answered with another value for state {name!r:.60}")
            return {name: self.copy(found[name][0], MemoryBudget()) for name in dict.fromkeys(names)}

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """See ``Engine``."""
        with self.message():
            call = EngineCall(method="clip_scale", numbers=tuple(float(norm) for norm in norms), limit=max_norm)
            done = self.ask(call, "the factor of clipping")
            scale = self.copy(done.values["scale"][0], MemoryBudget()) if done.values.keys() == {"scale"} else None
        if scale is None or scale.shape != () or scale.dtype.name != "float32":
            raise WireError("the process that computes answered with another factor of clipping")
        return scale

    def set_threads(self, threads: int) -> None:
        """See ``Engine``."""
        self._ask(EngineCall(method="set_threads", threads=threads), "setting the threads")

    def devices(self) -> Sequence[ComputeDevice]:
        """See ``Engine``."""
        return self._ask(EngineCall(method="devices"), "listing the devices").devices

    def support(self, device: str) -> EngineSupport:
        """See ``Engine``."""
        found = self._ask(EngineCall(method="support", device=device), "listing the operators").support
        if found is None:
            raise WireError("the process that computes answered without its operators")
        return found

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """See ``Engine``."""
        found = self._ask(EngineCall(method="measure", device=device, limit=peak_flops_per_second), "the measurement").report
        if found is None:
            raise WireError("the process that computes answered without a measurement")
        return found

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine``."""
        call = EngineCall(method="share", device=device, numbers=(reference_seconds,))
        return self._ask(call, "the measurement").numbers.get("share", 1.0)

    def _ask(self, message: Message, what: str) -> Done:
        with self.message():
            return self.ask(message, what)


class IsolatedEngine:
    """An ``Engine`` that computes nothing in this process: ``attempt`` starts a process, and each measurement has one, too."""

    def __init__(self, zygote: Zygote) -> None:
        """``zygote`` forks the processes; its owner closes it."""
        self._zygote = zygote
        self._threads = 1
        self._devices: tuple[ComputeDevice, ...] = ()

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> AttemptEngine:
        """Start a process with ``memory`` bytes for tensors (0: no limit).

        Raises:
            EngineCrashed: it ends before it is ready.
        """
        deadlines = Deadlines(computing=patience)
        return start_attempt(self._zygote, memory, accelerator=device.partition(":")[0] != "cpu", deadlines=deadlines)

    @property
    def forks_after_use(self) -> bool:
        """Whether a process may fork after the engine has computed in it."""
        return True

    @property
    def forks(self) -> int:
        """The number of the process that forks (0: it does not run)."""
        return self._zygote.pid

    @property
    def lost(self) -> bool:
        """Never: each attempt has a process of its own."""
        return False

    def end(self) -> None:
        """End the process that forks: this engine is not used any more."""
        self._zygote.close()

    def version(self) -> str:
        """See ``Engine``."""
        return self._zygote.version

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> IsolatedRunner:
        """A runner in a process of its own, or in that of ``share``."""
        if isinstance(share, IsolatedRunner):
            assert isinstance(share.attempt, AttemptEngine)  # each runner is opened by one
            return share.attempt.open(subgraph, settings, share)
        return self.attempt(settings.device, 0).open(subgraph, settings)

    def verify(self, graph: Graph) -> None:
        """See ``Engine``."""
        self.attempt("cpu", 0).verify(graph)

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """See ``Engine``."""
        return self.attempt("cpu", 0).initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """See ``Engine``."""
        return self.attempt("cpu", 0).clip_scale(norms, max_norm)

    def set_threads(self, threads: int) -> None:
        """Of the next measurement."""
        self._threads = threads

    def devices(self) -> Sequence[ComputeDevice]:
        """See ``Engine``."""
        if not self._devices:
            self._devices = tuple(self.attempt("any", 0).devices())  # drivers of accelerators are needed to list them
        return self._devices

    def support(self, device: str) -> EngineSupport:
        """See ``Engine``."""
        return self.attempt(device, 0).support(device)

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """See ``Engine``."""
        return self._measuring(device).measure(device, peak_flops_per_second)

    def share(self, device: str, reference_seconds: float) -> float:
        """See ``Engine``."""
        return self._measuring(device).share(device, reference_seconds)

    def _measuring(self, device: str) -> AttemptEngine:
        attempt = self.attempt(device, 0)
        attempt.set_threads(self._threads)
        return attempt


def _piece(subgraph: SubGraph) -> Piece:
    return Piece(
        stage=subgraph.stage,
        start=subgraph.start,
        stop=subgraph.stop,
        positions=subgraph.positions,
        states=subgraph.states,
        placeholders=subgraph.placeholders,
        requires_activations=subgraph.requires_activations,
        sends_activations=subgraph.sends_activations,
    )
