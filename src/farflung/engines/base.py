"""What an engine must offer: run a stage's forward, backward and update on one device.

Arrays at this border are NumPy arrays on the host (bfloat16 as ``ml_dtypes.bfloat16``); they keep their strides, because the
layout of a value can decide which kernel reads it. An engine copies what it receives into memory of its own. What it hands
out stays as it is until the receiver drops it, and must not be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from farflung.engines.devices import ComputeDevice
from farflung.engines.encoded_value import Coding, SentValues
from farflung.engines.state_file import StateFile
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Use, ValueRef
from farflung.job.spec import OptimizerSpec
from farflung.memory_budget import MemoryBudget

__all__ = [
    "Array",
    "DeviceReport",
    "Engine",
    "EngineSettings",
    "EngineSupport",
    "Forward",
    "MicroBatch",
    "StageRunner",
    "gradient_parts",
]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, order=True)
class MicroBatch:
    """Names a micro-batch of a step; random numbers are keyed by it."""

    step: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a stage runner needs to know of the job and the plan.

    ``training=False`` is for evaluation and generation: no gradients, no update, states stay as they are.
    ``split_backward``: ``backward`` makes only the gradients that it returns, and ``backward_weights`` those of parameters.
    ``budget``: of the process that computes; states and what their initializers need at a time come from it.
    ``any_order``: the ranks of a site may add gradients in another order than the job's.
    ``offload``: where optimizer states are between updates (None: in memory).
    ``sharded``: each rank of a site has a part of the parameters, and gathers those of a block before it computes.
    ``tensor``: the ranks of a site compute each micro-batch together (``graph.tensor_parallel``).
    ``part_ends``: the micro-batches before which ``StageRunner.close_part`` or ``take_gradients`` will end a part of the sum.
    ``codings``: which values to hand out encoded. An engine may hand out arrays nevertheless.
    """

    device: str = "cpu"
    seed: int = 0
    precision: str = "float32"
    recompute: bool = False
    split_backward: bool = False
    training: bool = True
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    budget: MemoryBudget = field(default_factory=MemoryBudget, compare=False)
    any_order: bool = False
    offload: StateFile | None = field(default=None, compare=False)
    sharded: bool = False
    tensor: bool = False
    part_ends: tuple[int, ...] = ()
    codings: tuple[Coding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What a forward gives: ``values`` for other stages (those of ``sends_activations``), ``outputs`` of the graph made here."""

    values: SentValues
    outputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What a short warm-up found: n operators with f FLOPs together take ``n * launch_seconds + f / flops_per_second``.

    ``peak_flops_per_second`` is S*: the datasheet's figure, or the rate of the best matrix product. ``processors``: the cores or
    the accelerator that it computes on, with names that are the same for all processes of the host (empty: not known).
    ``convolution``: how many times as fast as other operators convolutions run, by their FLOPs.
    ``reference_seconds``: what ``Engine.share`` compares with (0: it can't be compared).
    ``rank_latency``, ``rank_rate``: an exchange of M bytes in a site takes ``rank_latency + M / rank_rate`` (0: it is no site).
    """

    name: str
    flops_per_second: float
    launch_seconds: float
    total_bytes: int
    free_bytes: int
    peak_flops_per_second: float = 0.0
    processors: tuple[str, ...] = ()
    reference_seconds: float = 0.0
    convolution: float = 1.0
    rank_latency: float = 0.0
    rank_rate: float = 0.0

    @property
    def speed_factor(self) -> float:
        """FusionLLM's lambda: achieved over peak (1 where the peak is not known)."""
        return self.flops_per_second / self.peak_flops_per_second if self.peak_flops_per_second > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSupport:
    """What an engine can compute on a device: the ``operators`` of the allow-list, and the ``precisions`` of jobs."""

    operators: frozenset[str]
    precisions: tuple[str, ...]


def gradient_parts(subgraph: SubGraph, value: ValueRef) -> int:
    """How many arrays a stage sends back for a received ``value`` that carries a gradient (usually one).

    A plain loop adds the gradients of a value's readers one after the other, last reader first. If farther stages read the
    value too, this stage must not add up its own readers first, so it sends one gradient per read, stacked along a new first
    axis in the order in which they are to be added.
    """
    graph = subgraph.graph
    reads, farther = 0, False
    for position in graph.users.get(value, ()):
        op = graph.ops[position]
        if op.name not in graph.grad_ops:
            continue
        if position >= subgraph.stop:
            farther = True
        elif position >= subgraph.start:
            reads += sum(read == value for read in op.values())
    return reads if farther and reads > 1 else 1


class StageRunner(Protocol):
    """One stage on one device. Not thread-safe: one thread calls it."""

    subgraph: SubGraph

    def initialize(self, names: Sequence[str]) -> None:
        """Replay the recorded initializers of the states ``names`` under the settings' seed."""

    def load(self, states: Mapping[str, Array]) -> None:
        """Set states to given values (shapes and element types are checked)."""

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """Forward of one micro-batch: ``values`` from other stages (none for edges with ``alias_of``), ``data`` by
        placeholder name. With ``training`` what backward needs is kept until then."""

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """Backward of one micro-batch, accumulating parameter gradients.

        ``gradients``: for each value of ``requires_gradients`` the gradients of its reading stages by descending stage, as
        their ``backward`` gave them (an array with one axis more than the value holds several, see ``gradient_parts``);
        ``weight`` multiplies the loss. Returns the gradient of each value of ``sends_gradients``: zeros where nothing
        flowed back.
        """

    def backward_weights(self, key: MicroBatch) -> None:
        """The rest of a ``backward`` under ``EngineSettings.split_backward``: accumulate the gradients of parameters.

        The sums have the bits of a backward that is not split. An engine may compute them in ``backward`` and only add them here.
        """

    def close_part(self, *, last: bool = False) -> None:
        """End a part of the step's sum: what was accumulated since the last end is added, as a whole, to the parts before it.

        Only after the ``last`` part do the gradients hold the sum.
        """

    def take_gradients(self) -> Mapping[Use, Array]:
        """The accumulated gradient of each use here of a trained parameter, parts and all; they are gone from here."""

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """Set the accumulated gradients of uses to given sums (``finish_gradients`` comes after)."""

    def use_gradients(self) -> Mapping[Use, Array]:
        """Accumulated gradients of the uses here of trained parameters that other stages use too."""

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """Add the uses of each tied parameter, the last in program order first; ``uses`` has those of other stages.

        Call it once after the step's last backward, before ``gradient_norms`` and ``update``.
        """

    def gradients(self) -> Mapping[str, Array]:
        """The finished gradient of each parameter that has one (copies)."""

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """The finished gradients of ``names`` that have one, which may change with the next call."""

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set finished gradients by parameter."""

    def gradient_norms(self) -> Mapping[str, float]:
        """Euclidean norm (float32 arithmetic) of the gradient of each parameter that has one."""

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity, in the stage's order (one pass over memory)."""

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step: ``rates`` are the learning rates of the job's groups (then the default); ``scale`` a float32
        scalar that multiplies all gradients first (clipping). Only the parameters ``names`` (None: all); their gradients are
        cleared."""

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """In the next ``backward``, or ``backward_weights`` of a split one, call ``ready(i)`` as soon as the gradients of the
        parameters ``groups[i]`` are complete.

        Called on a thread of that backward, in the order in which gradients get complete; what is tied, or gets no gradient, is
        never reported. The parameters of the group may be updated then.
        """

    def discard(self) -> None:
        """Clear gradients and kept activations without an update (a skipped step)."""

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """States by name; None: all parameters and persistent buffers. Without ``copy`` they may change with the next call."""

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """States that lie on the host in one piece, as flat arrays over the very memory (the others are left out).

        What is written there is the state; of those whose gradients are complete, also while the backward goes on."""

    def optimizer_states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Optimizer state as ``<slot>/<parameter>`` (``step/<parameter>`` is a scalar); ``copy`` as in ``states``.

        Only of the parameters ``names`` (None: of all)."""

    def load_optimizer(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """Set what ``optimizer_states`` gave; parameters without an entry start afresh, or (``more``) stay as they are."""


class Engine(Protocol):
    """Makes stage runners, and does the tensor work of a job that belongs to no stage."""

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> Engine:
        """The engine of one attempt of a run, with ``memory`` bytes for its tensors on ``device`` (0: no limit).

        ``patience``: how many seconds a forward or backward may take in a process of its own (0: it is not known).

        It is this engine, or one in a process of its own, whose states end with it.
        """

    @property
    def lost(self) -> bool:
        """Whether the process of an attempt's engine has ended, and its states with it."""

    @property
    def forks_after_use(self) -> bool:
        """Whether a process may fork after the engine has computed in it: threads do not survive a fork."""

    def end(self) -> None:
        """End the process of an attempt's engine, from any thread; its calls raise ``EngineCrashed`` from then on."""

    def version(self) -> str:
        """Return the name and version of the tensor library, e.g. ``torch 2.13.0``: results are bit-equal under equal ones."""

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> StageRunner:
        """A runner with no state yet (call ``initialize`` or ``load``).

        ``share``: a runner of this engine whose states are taken over by name, the very same memory (evaluation beside
        training).

        Raises:
            GraphError: an operator is not allowed, or a declared shape is not what the operator gives.
        """

    def verify(self, graph: Graph) -> None:
        """Check every operator's declared results against what it gives, without memory for data.

        Raises:
            GraphError: names the operator, what was declared and what was found.
        """

    def initial_states(self, graph: Graph, seed: int, names: Sequence[str]) -> dict[str, Array]:
        """The values that the recorded initializers give the states ``names`` under ``seed``."""

    def clip_scale(self, norms: Sequence[float], max_norm: float) -> Array:
        """The float32 scalar that clips the global norm: ``norms`` per parameter, in the order of ``Graph.parameters``."""

    def set_threads(self, threads: int) -> None:
        """Intra-operator threads; each thread that runs stages should call this itself."""

    def devices(self) -> Sequence[ComputeDevice]:
        """Return the devices of this machine that the engine can use, accelerators first, the CPU last."""

    def support(self, device: str) -> EngineSupport:
        """Return the operators and precisions that the engine supports on ``device``, for the broker's planner."""

    def measure(self, device: str, peak_flops_per_second: float | None = None) -> DeviceReport:
        """A short warm-up of ``device`` (under two seconds)."""

    def share(self, device: str, reference_seconds: float) -> float:
        """The share of its full speed that ``device`` reaches while other workers of the host measure theirs.

        ``reference_seconds``: of the report of a warm-up with as many threads, during which nobody else computed.
        """
