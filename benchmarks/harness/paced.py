"""A device emulation: an engine that computes for real and holds each action until its modelled time has passed.

Two processors cannot be eight devices. A small model's arithmetic is done by the engine inside, and its results go over real
links; then the computing thread sleeps until a device of the given speed would have been ready: FLOPs of the action (``cost``) /
speed. Sleeping threads take no processor, so eight devices pass time beside each other. What is real: values, codecs, TLS,
transport, executors, broker. What is not: how long computing takes. If the arithmetic takes longer than the model says, the
action takes as long as it took, and the overrun counts (``PacedEngine.late``). Within a backward, who watches hears of a
parameter's gradient when the modelled backward has come to its first reader, so what layers begin then overlaps as it would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import psutil

from farflung.engines.base import Array, DeviceReport, Engine, EngineSettings, EngineSupport, Forward, MicroBatch, StageRunner
from farflung.engines.devices import ComputeDevice
from farflung.engines.encoded_value import SentValues
from farflung.optim import update_flops
from farflung.plan import CostTables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farflung.graph.cut import SubGraph
    from farflung.graph.ir import Graph, ValueRef

__all__ = ["Pace", "PacedEngine", "pace_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Modelled seconds of one stage: a forward, a backward, an update.

    ``ready``: state -> seconds from the begin of a backward until its gradient is complete. ``shares``: its part of the update.
    """

    forward: float
    backward: float
    update: float
    ready: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)


def pace_of(piece: SubGraph, settings: EngineSettings, speed: float) -> Pace:
    """The pace of ``piece`` on a device of ``speed`` FLOP/s, by the formula of ``plan.estimate``."""
    cost = CostTables(piece.graph).table("cpu")
    forward = float(cost.forward[list(piece.positions)].sum())
    backward = float(cost.backward_sum[piece.stop] - cost.backward_sum[piece.start])
    states = [piece.graph.state[name] for name in piece.states]
    sizes = {state.name: state.spec.numel for state in states if state.trainable}
    trained = sum(sizes.values())
    update = trained * update_flops(settings.optimizer, piece.graph)
    again = forward if settings.recompute else 0.0
    earliest: dict[str, int] = {}
    for position in piece.positions:
        for name in piece.graph.ops[position].states():
            earliest.setdefault(name, position)
    ready = {n: again + float(cost.backward_sum[piece.stop] - cost.backward_sum[p]) for n, p in earliest.items()}
    return Pace(
        forward=forward / speed,
        backward=(backward + again) / speed,
        update=update / speed,
        ready={name: flops / speed for name, flops in ready.items()},
        shares={name: size / trained for name, size in sizes.items()},
    )


class PacedEngine:
    """``engine`` at the speed that ``speed()`` gives (FLOP/s; asked at each measurement and at each opening of a stage)."""

    def __init__(self, engine: Engine, speed: Callable[[], float], sleep: Callable[[float], None] = time.sleep) -> None:
        self._engine, self._speed, self._sleep = engine, speed, sleep
        #: Seconds by which arithmetic took longer than the model says.
        self.late = 0.0

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> StageRunner:
        """See ``Engine.open``."""
        inner = share.inner if isinstance(share, _PacedRunner) else share
        runner = self._engine.open(subgraph, settings, share=inner)
        return cast(StageRunner, _PacedRunner(runner, pace_of(subgraph, settings, self._speed()), self))

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """What is modelled; the memory is the machine's own."""
        del device, peak_flops_per_second
        memory, speed = psutil.virtual_memory(), self._speed()
        return DeviceReport(
            name="emulated device",
            flops_per_second=speed,
            launch_seconds=0.0,
            total_bytes=memory.total,
            free_bytes=memory.available,
            peak_flops_per_second=speed,
        )

    def support(self, device: str) -> EngineSupport:
        """See ``Engine.support``."""
        return self._engine.support(device)

    def share(self, device: str, reference_seconds: float) -> float:
        """Emulated devices share nothing."""
        del device, reference_seconds
        return 1.0

    @contextmanager
    def retained_state(self, seconds: float) -> Iterator[None]:
        """Let the block take ``seconds``."""
        begin = time.perf_counter()
        yield
        rest = seconds - (time.perf_counter() - begin)
        if rest > 0:
            self._sleep(rest)
        else:
            self.late -= rest

    def hold_until(self, moment: float) -> None:
        """Return at ``moment`` of ``time.perf_counter``, or at once if it is over."""
        rest = moment - time.perf_counter()
        if rest > 0:
            self._sleep(rest)

    # -- what belongs to no stage takes no modelled time ----------------------------------------------------------------

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> Engine:
        """This engine: it computes in this process."""
        del device, memory, patience
        return self

    @property
    def forks_after_use(self) -> bool:
        """Whether a process may fork after the engine has computed in it."""
        return True

    @property
    def lost(self) -> bool:
        """See ``Engine.lost``."""
        return self._engine.lost

    def end(self) -> None:
        """See ``Engine.end``."""
        self._engine.end()

    def version(self) -> str:
        """See ``Engine.version``."""
        return self._engine.version()

    def devices(self) -> Sequence[ComputeDevice]:
        """See ``Engine.devices``."""
        return self._engine.devices()

    def verify(self, graph: Graph) -> None:
        """See ``Engine.verify``."""
        self._engine.verify(graph)

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """See ``Engine.initial_states``."""
        return self._engine.initial_states(graph, seed, names)

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """See ``Engine.clip_scale``."""
        return self._engine.clip_scale(norms, max_norm)

    def set_threads(self, threads: int) -> None:
        """See ``Engine.set_threads``."""
        self._engine.set_threads(threads)


class _PacedRunner:
    """A stage runner whose forward, backward and update take modelled time; all else is that of ``inner``."""

    def __init__(self, inner: StageRunner, pace: Pace, engine: PacedEngine) -> None:
        self.inner, self._pace, self._engine = inner, pace, engine
        self._begin = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        with self._engine.retained_state(self._pace.forward):
            return self.inner.forward(key, values, data)

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        self._begin = time.perf_counter()
        with self._engine.retained_state(self._pace.backward):
            return self.inner.backward(key, gradients, weight)

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        moments = [max((self._pace.ready.get(name, 0.0) for name in names), default=0.0) for names in groups]

        def held(index: int) -> None:
            self._engine.hold_until(self._begin + moments[index])
            ready(index)

        self.inner.watch(groups, held)

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        part = 1.0 if names is None else sum(self._pace.shares.get(name, 0.0) for name in names)
        with self._engine.retained_state(self._pace.update * part):
            self.inner.update(rates, scale, names)
